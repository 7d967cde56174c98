//! Opens files in folders that may come from someone else: only regular files, and only those of limited size
//! are read. A link may lead to any of the user's files, and a FIFO or a device may never end.

use crate::error::{Error, IoContext, Result};
use rustix::fs::OFlags;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The largest manifest, summary, page or other text that is read whole, in bytes.
pub const MAX_TEXT: u64 = 64 << 20;

/// Reads a regular file of at most `max` bytes.
///
/// # Errors
/// If the file is missing, a link, not a regular file, or too large.
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>> {
    read_opened(open(path)?, path, max)
}

/// Opens a regular file for reading, without following a link in its place or waiting for a FIFO.
///
/// # Errors
/// If the file is missing, a link, or not a regular file.
pub fn open(path: &Path) -> Result<File> {
    open_for_reading(path, OFlags::NOFOLLOW)
}

fn open_for_reading(path: &Path, flags: OFlags) -> Result<File> {
    let metadata = if flags.contains(OFlags::NOFOLLOW) { path.symlink_metadata() } else { path.metadata() };
    check(path, &metadata.at("read", path)?)?;
    // The file may have been replaced since, so check again.
    let file = open_without_waiting(File::options().read(true), flags, path).at("read", path)?;
    check(path, &file.metadata().at("read", path)?)?;
    Ok(file)
}

/// Opens a file that a run or a sweep writes in place, such as a lock, a log or rows, without following a
/// link in its place or waiting for a FIFO.
///
/// # Errors
/// If the path is a link or not a regular file, or cannot be opened.
pub fn open_own(options: &mut OpenOptions, path: &Path) -> Result<File> {
    let opened = open_without_waiting(options, OFlags::NOFOLLOW, path);
    let is_other = || path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file());
    match opened {
        Ok(file) if file.metadata().at("read", path)?.is_file() => Ok(file),
        Err(e) if !is_other() => Err(e).at("open", path),
        _ => Err(Error::usage(format!(
            "{} is a link or not a regular file, and xrun does not write through it; remove it and try again",
            path.display()
        ))),
    }
}

/// Reads a regular file of at most `max` bytes, or one that a link leads to.
///
/// # Errors
/// If the file is missing, not a regular file, or too large.
pub fn read_through_link(path: &Path, max: u64) -> Result<Vec<u8>> {
    read_opened(open_for_reading(path, OFlags::empty())?, path, max)
}

/// Reads a text file of at most [`MAX_TEXT`] bytes, or one that a link leads to.
///
/// # Errors
/// If the file cannot be read with [`read_through_link`], or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read_through_link(path, MAX_TEXT)?)
        .map_err(|e| Error::failed(format!("{}: {}", path.display(), e.utf8_error())))
}

/// Returns true if there is nothing at the path, not even a link that leads nowhere.
pub fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

/// Returns true if the path itself, and not what it links to, is a regular file.
pub fn is_file(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

fn read_opened(file: File, path: &Path, max: u64) -> Result<Vec<u8>> {
    let metadata = file.metadata().at("read", path)?;
    if metadata.len() > max {
        return Err(Error::failed(format!(
            "{} has {} bytes; xrun reads at most {max}",
            path.display(),
            metadata.len()
        )));
    }
    let mut bytes = Vec::new();
    bytes
        .try_reserve(metadata.len() as usize)
        .map_err(|e| std::io::Error::new(ErrorKind::OutOfMemory, e))
        .and_then(|()| file.take(max).read_to_end(&mut bytes))
        .at("read", path)?;
    Ok(bytes)
}

/// Opens a file with additional `flags`, without waiting for the other end of a FIFO.
fn open_without_waiting(options: &mut OpenOptions, flags: OFlags, path: &Path) -> std::io::Result<File> {
    options.custom_flags((flags | OFlags::NONBLOCK).bits().cast_signed()).open(path)
}

fn check(path: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let kind = match metadata {
        metadata if metadata.is_symlink() => "a link",
        metadata if metadata.is_dir() => "a folder",
        _ => "a FIFO, socket or device",
    };
    Err(Error::failed(format!("{} is {kind}, not a regular file; remove it", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_of_a_limited_size_are_read_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("zero")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(path("fifo")).status().unwrap();
        assert!(made.success());
        assert_eq!(
            (read(&path("file"), 4).unwrap(), read_text(&path("link")).unwrap()),
            (b"text".into(), "text".into())
        );
        let said = |result: Result<Vec<u8>>| result.unwrap_err().message().to_owned();
        assert!(said(read(&path("file"), 3)).contains("has 4 bytes; xrun reads at most 3"));
        assert!(said(read(&path("link"), 9)).contains("is a link"));
        assert!(said(read_through_link(&path("zero"), 9)).contains("is a FIFO, socket or device"));
        assert!(said(read(&path("fifo"), 9)).contains("is a FIFO, socket or device"));
        assert!(said(read(dir.path(), 9)).contains("is a folder"));
        assert!(said(read(&path("none"), 9)).contains("No such file"));
        assert!(is_file(&path("file")) && !is_file(&path("link")));
    }

    #[test]
    fn links_and_fifos_are_refused_and_what_they_lead_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (precious, link, fifo) =
            (dir.path().join("precious"), dir.path().join("link"), dir.path().join("fifo"));
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("dangling")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for path in [&link, &fifo, &dir.path().join("dangling"), &dir.path().to_owned()] {
            let mut ways = [File::options(), File::options()];
            ways[0].append(true).create(true);
            ways[1].read(true).write(true).create(true).truncate(true);
            for options in &mut ways {
                let error = open_own(options, path).unwrap_err();
                assert!(error.message().contains("is a link or not a regular file"), "{error}");
            }
        }
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
        assert!(!dir.path().join("nowhere").exists());
        assert!(open_own(File::options().append(true), &precious).is_ok());
        let none = open_own(File::options().read(true), &dir.path().join("none")).unwrap_err();
        assert!(none.message().contains("cannot open"), "{none}");
    }
}
