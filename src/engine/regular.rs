//! The one way in which files are opened for reading: only regular files, and only of a limited size.
//!
//! A folder may come from someone else. A link in it may lead to any of the user's files, a FIFO or a device
//! may never end, and a sparse file of a few blocks may claim a terabyte. So a file in a folder that xrun
//! made is not followed through a link. Only a file that the user names, such as a recipe, a page or a
//! corpus, may be a link. `tests/library/layers` has the list of the few places that open files otherwise.

use crate::error::{Error, IoContext, Result};
use rustix::fs::OFlags;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The largest manifest, summary, page or other text that is read whole, in bytes.
pub const MAX_TEXT: u64 = 64 << 20;

/// The largest file of rows that is read whole, in bytes: some 25 million steps.
pub const MAX_ROWS: u64 = 4 << 30;

/// How often a read begins again because the file was replaced.
const STALE_READS: u32 = 5;

/// A file of rows has a line end in every part of this many bytes.
const ROWS_PART: usize = 1 << 20;

/// Whether a link in place of a file is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    Refused,
    Followed,
}

/// Reads a regular file of at most `max` bytes.
///
/// # Errors
/// If the file is missing, a link, not a regular file, or too large.
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>> {
    again_if_stale(|| read_opened(open(path)?, path, max))
}

/// Repeats a read that finds its file replaced: on a network file system, a file that another machine
/// replaces is gone for those that have it open.
fn again_if_stale<T>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..STALE_READS {
        match read() {
            Err(e) if e.is_stale() => {}
            read => return read,
        }
    }
    read()
}

/// Reads a regular file of at most `max` bytes, or one that a link leads to.
///
/// # Errors
/// If the file is missing, not a regular file, or too large.
pub fn read_through_link(path: &Path, max: u64) -> Result<Vec<u8>> {
    again_if_stale(|| read_opened(open_through_link(path)?, path, max))
}

/// Reads a text file of at most [`MAX_TEXT`] bytes.
///
/// # Errors
/// If the file cannot be read with [`read`], or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    into_text(read(path, MAX_TEXT)?, path)
}

/// Reads a text file of at most [`MAX_TEXT`] bytes, or one that a link leads to.
///
/// # Errors
/// If the file cannot be read with [`read_through_link`], or is not UTF-8.
pub fn read_text_through_link(path: &Path) -> Result<String> {
    into_text(read_through_link(path, MAX_TEXT)?, path)
}

/// Reads a file of rows, such as `metrics.csv` or a ledger, of at most [`MAX_ROWS`] bytes. Stops at the first
/// MiB without a line end, because a sparse file holds gigabytes of zeros in a few blocks.
///
/// # Errors
/// If the file is missing, a link, not a regular file, too large, or has no lines.
pub fn read_rows(path: &Path) -> Result<Vec<u8>> {
    again_if_stale(|| read_rows_of(&open(path)?, path))
}

/// Reads the rest of an opened file of rows, as [`read_rows`] does. `path` is for messages.
///
/// # Errors
/// If the file cannot be read, is too large, or has no lines.
pub fn read_rows_of(file: &File, path: &Path) -> Result<Vec<u8>> {
    check_size(file, path, MAX_ROWS)?;
    let mut bytes = Vec::new();
    while bytes.len() as u64 <= MAX_ROWS {
        let begin = bytes.len();
        let mut part = file.take(ROWS_PART as u64);
        let read = part.read_to_end(&mut bytes).at("read", path)?;
        if read < ROWS_PART {
            return Ok(bytes);
        }
        if !bytes[begin..].contains(&b'\n') {
            return Err(Error::failed(format!(
                "{} has no line end in {ROWS_PART} bytes from byte {begin} on, so xrun did not write it; restore it",
                path.display()
            )));
        }
    }
    Err(too_large(path, bytes.len() as u64, MAX_ROWS))
}

/// Opens a regular file for reading, without following a link in its place or waiting for a FIFO.
///
/// # Errors
/// If the file is missing, a link, or not a regular file.
pub fn open(path: &Path) -> Result<File> {
    open_for_reading(path, Links::Refused)
}

/// Opens a regular file for reading, or one that a link leads to, without waiting for a FIFO.
///
/// # Errors
/// If the file is missing or not a regular file.
pub fn open_through_link(path: &Path) -> Result<File> {
    open_for_reading(path, Links::Followed)
}

/// Creates a folder below one that may come from someone else, with those above it, unless it is there.
///
/// # Errors
/// If it cannot be created, or is a link, through which files would be written elsewhere.
pub fn create_folder(path: &Path) -> Result<()> {
    if path.is_symlink() {
        return Err(Error::usage(format!(
            "{} is a link, and xrun does not write through it; put the folder itself in its place",
            path.display()
        )));
    }
    std::fs::create_dir_all(path).at("create", path)
}

/// Opens a folder, or one that a link leads to, to lock or sync it.
///
/// # Errors
/// If it is not a folder or cannot be opened.
pub fn open_folder(path: &Path) -> Result<File> {
    open_without_waiting(File::options().read(true), OFlags::DIRECTORY, path).at("open", path)
}

fn open_for_reading(path: &Path, links: Links) -> Result<File> {
    let (metadata, flags) = match links {
        Links::Refused => (path.symlink_metadata(), OFlags::NOFOLLOW),
        Links::Followed => (path.metadata(), OFlags::empty()),
    };
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

/// Returns true if there is nothing at the path, not even a link that leads nowhere.
pub fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

/// Returns true if the path itself, and not what it links to, is a regular file.
pub fn is_file(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Returns true if the path itself, and not what it links to, is a folder.
pub fn is_folder(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

fn read_opened(file: File, path: &Path, max: u64) -> Result<Vec<u8>> {
    let length = check_size(&file, path, max)?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve(length as usize)
        .map_err(|e| std::io::Error::new(ErrorKind::OutOfMemory, e))
        .and_then(|()| file.take(max).read_to_end(&mut bytes))
        .at("read", path)?;
    Ok(bytes)
}

/// Returns the size of an opened file in bytes.
fn check_size(file: &File, path: &Path, max: u64) -> Result<u64> {
    let length = file.metadata().at("read", path)?.len();
    if length <= max { Ok(length) } else { Err(too_large(path, length, max)) }
}

fn too_large(path: &Path, length: u64, max: u64) -> Error {
    Error::failed(format!("{} has {length} bytes; xrun reads at most {max}", path.display()))
}

fn into_text(bytes: Vec<u8>, path: &Path) -> Result<String> {
    String::from_utf8(bytes).map_err(|e| Error::failed(format!("{}: {}", path.display(), e.utf8_error())))
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
            (read(&path("file"), 4).unwrap(), read_text_through_link(&path("link")).unwrap()),
            (b"text".into(), "text".into())
        );
        let said = |result: Result<Vec<u8>>| result.unwrap_err().message().to_owned();
        assert!(said(read(&path("file"), 3)).contains("has 4 bytes; xrun reads at most 3"));
        assert!(said(read(&path("link"), 9)).contains("is a link"));
        assert!(said(read_through_link(&path("zero"), 9)).contains("is a FIFO, socket or device"));
        assert!(said(read(&path("fifo"), 9)).contains("is a FIFO, socket or device"));
        assert!(said(read(dir.path(), 9)).contains("is a folder"));
        assert!(said(read(&path("none"), 9)).contains("No such file"));
        assert!(said(read_text(&path("link")).map(String::into_bytes)).contains("is a link"));
        assert!(is_file(&path("file")) && !is_file(&path("link")));
        assert!(is_folder(dir.path()) && !is_folder(&path("file")));
    }

    #[test]
    fn rows_are_read_as_far_as_they_have_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.csv");
        let rows = "step,loss\n".repeat(3 * ROWS_PART / 10);
        std::fs::write(&path, &rows).unwrap();
        assert_eq!(read_rows(&path).unwrap(), rows.as_bytes());
        // Zeros that a power cut left behind are not many.
        File::options().append(true).open(&path).unwrap().set_len(rows.len() as u64 + 4096).unwrap();
        assert_eq!(read_rows(&path).unwrap().len(), rows.len() + 4096);
        for (bytes, says) in
            [(MAX_ROWS, "no line end"), (MAX_ROWS + 1, "reads at most"), (1 << 40, "reads at most")]
        {
            File::create(&path).unwrap().set_len(bytes).unwrap();
            let error = read_rows(&path).unwrap_err();
            assert!(error.message().contains(says), "{bytes}: {error}");
        }
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
        for path in [&link, &dir.path().join("dangling")] {
            let error = create_folder(path).unwrap_err();
            assert!(error.message().contains("is a link"), "{error}");
        }
        create_folder(&dir.path().join("a/b")).and_then(|()| create_folder(&dir.path().join("a/b"))).unwrap();
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
