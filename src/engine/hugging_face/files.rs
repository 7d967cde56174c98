//! Opens files of a folder: regular files, and links that do not lead out of it.

use crate::error::{Error, IoContext, Result};
use crate::liveness::report_progress;
use crate::regular;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes read at a time.
const CHUNK: u64 = 4 << 20;

/// An opened file of a folder.
#[derive(Debug)]
pub(super) struct OpenedFile {
    /// Path of the file, for messages.
    pub path: PathBuf,
    /// The file.
    pub file: File,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Opens the file `name` of a folder; `None` if it does not exist.
///
/// Links to files of the folder itself are followed. Folders of HuggingFace's cache
/// (`REPOSITORY/snapshots/REVISION`) consist of links to `REPOSITORY/blobs`, which are followed too.
///
/// # Errors
/// A usage error if it is not a regular file, or is a link out of the folder.
pub(super) fn open(folder: &Path, name: &str) -> Result<Option<OpenedFile>> {
    let path = folder.join(name);
    let wrong = |text: String| Error::usage(format!("{}: {text}", path.display()));
    let target = match path.canonicalize() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return match path.symlink_metadata() {
                Ok(_) => Err(wrong("a link to a missing file; download it again".to_owned())),
                Err(_) => Ok(None),
            };
        }
        target => target.at("find", &path)?,
    };
    if !lies_in(&target, &folder.canonicalize().at("find", folder)?) {
        return Err(wrong(format!(
            "a link out of the folder, to {}: copy the file into the folder",
            target.display()
        )));
    }
    // What the path leads to is known by now, so a link in its place is refused.
    let file = regular::open(&target).map_err(|e| Error::usage(e.message()))?;
    let bytes = file.metadata().at("read", &path)?.len();
    Ok(Some(OpenedFile { path, file, bytes }))
}

/// Returns true if a file is in a folder, or among the blobs of the cache that the folder belongs to.
fn lies_in(file: &Path, folder: &Path) -> bool {
    let parent = file.parent();
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|repository| repository.join("blobs"));
    parent == Some(folder) || (blobs.is_some() && parent == blobs.as_deref())
}

impl OpenedFile {
    /// Hands `bytes` bytes from offset `start` on to `sink`, a few MiB at a time.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(super) fn read_chunks(&self, start: u64, bytes: u64, mut sink: impl FnMut(&[u8])) -> Result<()> {
        let mut chunk = vec![0; bytes.min(CHUNK) as usize];
        for at in (0..bytes).step_by(CHUNK as usize) {
            let part = &mut chunk[..(bytes - at).min(CHUNK) as usize];
            self.file.read_exact_at(part, start + at).at("read", &self.path)?;
            sink(part);
            report_progress();
        }
        Ok(())
    }

    /// Reads the whole content.
    ///
    /// # Errors
    /// A usage error if it has more than `most` bytes, before anything is read.
    pub(super) fn read(&self, most: u64) -> Result<Vec<u8>> {
        if self.bytes > most {
            return Err(Error::usage(format!(
                "{}: {} bytes, but such a file has at most {most}: it is a different file, or damaged",
                self.path.display(),
                self.bytes
            )));
        }
        let mut bytes = Vec::with_capacity(self.bytes as usize);
        (&self.file).take(most).read_to_end(&mut bytes).at("read", &self.path)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_only_within_folder_or_cache() {
        let at = tempfile::tempdir().unwrap();
        let repository = at.path().join("models--a--b");
        let (folder, blobs) = (repository.join("snapshots/0a1b"), repository.join("blobs"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join("77"), "content").unwrap();
        std::fs::write(at.path().join("outside"), "secret").unwrap();
        symlink("../../blobs/77", folder.join("linked")).unwrap();
        symlink("../../../outside", folder.join("out")).unwrap();
        symlink("nowhere", folder.join("dangling")).unwrap();
        symlink("/dev/zero", folder.join("device")).unwrap();
        assert_eq!(open(&folder, "linked").unwrap().unwrap().read(7).unwrap(), b"content");
        assert!(open(&folder, "none").unwrap().is_none());
        for (name, says) in [
            ("out", "a link out of the folder"),
            ("dangling", "a link to a missing file"),
            ("device", "a link out of the folder"),
            ("../../../outside", "a link out of the folder"),
            (".", "a link out of the folder"),
        ] {
            let error = open(&folder, name).unwrap_err();
            assert!(error.message().contains(says), "{name}: {error}");
        }
        std::fs::create_dir(folder.join("config.json")).unwrap();
        assert!(open(&folder, "config.json").unwrap_err().message().contains("not a regular file"));
        let error = open(&folder, "linked").unwrap().unwrap().read(6).unwrap_err();
        assert!(error.message().contains("7 bytes, but such a file has at most 6"), "{error}");
    }
}
