//! Reads files that someone else may have put there: only regular files of limited size, never a link, a FIFO
//! or a device.

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
    check(path, &std::fs::symlink_metadata(path).at("read", path)?)?;
    // The file may have been replaced since, so check again.
    let file = open_without_waiting(File::options().read(true), OFlags::NOFOLLOW, path).at("read", path)?;
    check(path, &file.metadata().at("read", path)?)?;
    Ok(file)
}

/// Reads a regular file of at most `max` bytes, or one that a link leads to.
///
/// # Errors
/// If the file is missing, not a regular file, or too large.
pub fn read_through_link(path: &Path, max: u64) -> Result<Vec<u8>> {
    check(path, &std::fs::metadata(path).at("read", path)?)?;
    let file = open_without_waiting(File::options().read(true), OFlags::empty(), path).at("read", path)?;
    check(path, &file.metadata().at("read", path)?)?;
    read_opened(file, path, max)
}

/// Reads a text file of at most [`MAX_TEXT`] bytes, or one that a link leads to.
///
/// # Errors
/// If the file cannot be read with [`read_through_link`], or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read_through_link(path, MAX_TEXT)?)
        .map_err(|e| Error::failed(format!("{}: {}", path.display(), e.utf8_error())))
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
pub(super) fn open_without_waiting(
    options: &mut OpenOptions,
    flags: OFlags,
    path: &Path,
) -> std::io::Result<File> {
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
}
