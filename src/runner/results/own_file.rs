//! Opens files that a run or a sweep writes in place: locks, logs, rows. A folder may come from someone else,
//! and a link in it may lead to any of the user's files.

use super::regular::open_without_waiting;
use crate::error::{Error, IoContext, Result};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::path::Path;

/// Opens a file in a results folder without following a link in its place or waiting for a FIFO.
///
/// # Errors
/// If the path is a link or not a regular file, or cannot be opened.
pub fn open(options: &mut OpenOptions, path: &Path) -> Result<File> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
                let error = open(options, path).unwrap_err();
                assert!(error.message().contains("is a link or not a regular file"), "{error}");
            }
        }
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
        assert!(!dir.path().join("nowhere").exists());
        assert!(open(File::options().append(true), &precious).is_ok());
        let none = open(File::options().read(true), &dir.path().join("none")).unwrap_err();
        assert!(none.message().contains("cannot open"), "{none}");
    }
}
