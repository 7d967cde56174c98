//! Files that are replaced atomically: readers see the old version or the new one, never a mixture.

use crate::error::{Error, IoContext, Result};
use crate::interrupts::{self, Repeated};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{BufWriter, ErrorKind, IntoInnerError, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::NamedTempFile;

/// Prefix of the names of files that are still being written.
const TEMPORARY: &str = ".writing-";

/// Bytes read at a time.
const PART: u64 = 4 << 20;

/// Replaces a file that belongs to the user, such as a page of a report. If `path` is a link, this replaces
/// its target and keeps the link, unlike [`write`].
pub fn write_through(path: &Path, bytes: &[u8]) -> Result<()> {
    write(&std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()), bytes)
}

/// Creates `path` with `bytes`, and never overwrites a file. A reader sees the whole file or none, except on
/// file systems without hard links.
///
/// # Errors
/// A usage error if `path` exists already. Fails if the file cannot be written.
pub fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = temporary(path, |out| out.write_all(bytes))?;
    let created = file.persist_noclobber(path).map(drop).map_err(|e| e.error);
    match created.or_else(|e| if lacks_links(&e) { create(path, bytes) } else { Err(e) }) {
        Ok(()) => sync_folder(parent(path)),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            Err(Error::usage(format!("{} already exists and is not overwritten", path.display())))
        }
        Err(e) => Err(e).at("create", path),
    }
}

/// Returns true for the errors of file systems without hard links, such as CIFS and exFAT, which cannot give
/// a complete file its name unless there is none.
fn lacks_links(error: &std::io::Error) -> bool {
    let codes = [Errno::PERM, Errno::NOTSUP, Errno::NOSYS, Errno::INVAL, Errno::MLINK];
    error.raw_os_error().is_some_and(|code| codes.iter().any(|known| known.raw_os_error() == code))
}

/// Creates `path` with `bytes`, durably. A reader may see an incomplete file. After an error there is none.
fn create(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let file = File::options().write(true).create_new(true).open(path)?;
    let written = Repeated(&file).write_all(bytes).and_then(|()| interrupts::sync_all(&file));
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
}

/// Replaces `path` with `bytes`: writes a temporary file beside it, syncs it, renames it, and syncs the
/// folder. A reader sees the old content or the new one, and so does the next process after a crash at any
/// moment. If `path` is a link, the link itself is replaced and its target stays. An existing file keeps its
/// permissions.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with(path, |out| out.write_all(bytes))
}

/// Replaces `path`, as [`write`] does, with the bytes that `fill` writes.
///
/// # Errors
/// If `fill` fails or the file cannot be replaced.
pub fn write_with(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let file = temporary(path, fill)?;
    file.persist(path).map_err(|e| e.error).at("replace", path)?;
    sync_folder(parent(path))
}

/// Replaces a file of a cache and creates its folder if needed. Readers see the old content or the new one.
/// Nothing is synced, so a power cut may lose both.
///
/// # Errors
/// If the file cannot be written.
pub fn write_cached(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = parent(path);
    std::fs::create_dir_all(folder).at("create", folder)?;
    let mut file = NamedTempFile::new_in(folder).at("create a temporary file in", folder)?;
    file.write_all(bytes).at("write", path)?;
    file.persist(path).map(drop).map_err(|e| e.error).at("replace", path)
}

/// A file that is written piece by piece, and replaces another one when it is whole.
#[derive(Debug)]
pub struct Draft {
    out: BufWriter<Repeated<NamedTempFile>>,
    path: PathBuf,
}

impl Draft {
    /// Begins the file that will be at `path`.
    ///
    /// # Errors
    /// If no file can be created beside it.
    pub fn begin(path: &Path) -> Result<Self> {
        Ok(Self { out: BufWriter::new(Repeated(create_temporary(path)?)), path: path.to_owned() })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).at("write", &self.path)
    }

    /// Hands what was appended to `sink`, a few MiB at a time, as the file system returns it.
    ///
    /// # Errors
    /// If it cannot be written or read.
    pub fn read_back(&mut self, mut sink: impl FnMut(&[u8])) -> Result<()> {
        self.out.flush().at("write", &self.path)?;
        let file = self.out.get_ref().0.as_file();
        let bytes = file.metadata().at("read", &self.path)?.len();
        let mut part = vec![0; bytes.min(PART) as usize];
        for at in (0..bytes).step_by(PART as usize) {
            let part = &mut part[..(bytes - at).min(PART) as usize];
            interrupts::read_exact_at(file, part, at).at("read", &self.path)?;
            sink(part);
        }
        Ok(())
    }

    /// Replaces the first bytes by `head`, and then the file at the path, as [`write`] does.
    ///
    /// # Errors
    /// If the file cannot be written or replaced.
    pub fn finish(self, head: &[u8]) -> Result<()> {
        let Self { out, path } = self;
        let Repeated(mut file) = out.into_inner().map_err(IntoInnerError::into_error).at("write", &path)?;
        file.seek(SeekFrom::Start(0)).and_then(|_| Repeated(&file).write_all(head)).at("write", &path)?;
        sync(&file, &path)?;
        file.persist(&path).map_err(|e| e.error).at("replace", &path)?;
        sync_folder(parent(&path))
    }
}

/// Creates a temporary file beside `path`.
fn create_temporary(path: &Path) -> Result<NamedTempFile> {
    let folder = parent(path);
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY).suffix(".tmp");
    // Temporary files are private by default, which is wrong for results that people share.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
    builder.tempfile_in(folder).at("create a temporary file in", folder)
}

/// Writes a temporary file beside `path` and syncs it.
fn temporary(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<NamedTempFile> {
    let file = create_temporary(path)?;
    let mut out = BufWriter::new(Repeated(&file));
    fill(&mut out).and_then(|()| out.flush()).at("write", path)?;
    drop(out);
    sync(&file, path)?;
    Ok(file)
}

/// Gives a temporary file the permissions of the file that it will replace, and syncs it.
fn sync(file: &NamedTempFile, path: &Path) -> Result<()> {
    if let Some(there) = std::fs::symlink_metadata(path).ok().filter(Metadata::is_file) {
        file.as_file().set_permissions(there.permissions()).at("write", path)?;
    }
    interrupts::sync_all(file.as_file()).at("write", path)
}

/// Removes temporary files that killed processes left in a folder, if they are at least `age` old. A caller
/// that holds the folder's lock may pass zero; others must leave young files to the processes that may still
/// write them. Returns a sentence about each file that stays: nothing depends on its removal.
pub fn clear_leftovers(folder: &Path, age: Duration) -> Vec<String> {
    let entries = match std::fs::read_dir(folder).at("read", folder) {
        Ok(entries) => entries,
        Err(e) => return vec![e.to_string()],
    };
    let mut stay = Vec::new();
    // The clock of the file system, because this machine's may be ahead of it.
    let now = create_temporary(&folder.join("now"))
        .ok()
        .and_then(|now| now.as_file().metadata().ok()?.modified().ok());
    for entry in entries.flatten() {
        let modified = entry.metadata().and_then(|file| file.modified()).ok();
        let since = |at| now.and_then(|now| now.duration_since(at).ok());
        let is_old = || modified.is_none_or(|at| since(at).is_some_and(|since| since >= age));
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY) && (age.is_zero() || is_old()) {
            let removed = std::fs::remove_file(entry.path()).at("remove", &entry.path());
            stay.extend(removed.err().map(|e| e.to_string()));
        }
    }
    stay
}

/// Makes sure that the next listing of a folder has everything in it now. A client of a network file system
/// lists a folder as it was up to a minute ago, unless it has itself changed it.
///
/// # Errors
/// If no file can be created in the folder.
pub fn expire_listing(folder: &Path) -> Result<()> {
    create_temporary(&folder.join("listing")).map(drop)
}

/// Makes the entries of a folder durable, so that a file renamed into it survives a power cut.
pub fn sync_folder(folder: &Path) -> Result<()> {
    // Only Unix opens folders as files; elsewhere the rename itself is as durable as it gets.
    if cfg!(unix) {
        interrupts::sync_folder(folder).at("sync", folder)?;
    }
    Ok(())
}

/// Returns the folder of `path`, which is `.` for a bare file name.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_link_of_the_user_stays_a_link_and_permissions_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real.md"), dir.path().join("link.md"));
        std::fs::write(&real, "old").unwrap();
        std::fs::set_permissions(&real, PermissionsExt::from_mode(0o600)).unwrap();
        symlink("real.md", &link).unwrap();
        write_through(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&real).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
        write(&link, b"newer").unwrap();
        assert!(!link.is_symlink());
        assert_eq!(
            (std::fs::read(&real).unwrap(), std::fs::read(&link).unwrap()),
            (b"new".to_vec(), b"newer".to_vec())
        );
    }

    #[test]
    fn replaces_whole_files_and_leaves_nothing_beside_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write(&path, b"first").unwrap();
        write(&path, b"2").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_draft_reads_back_what_was_appended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        let bytes: Vec<u8> = (0..PART as u32 / 2 + 3).flat_map(u32::to_le_bytes).collect();
        let mut draft = Draft::begin(&path).unwrap();
        bytes.chunks(999_983).for_each(|part| draft.append(part).unwrap());
        let mut read = Vec::new();
        draft.read_back(|part| read.extend_from_slice(part)).unwrap();
        assert!(read == bytes && !path.exists());
        draft.append(b"end").unwrap();
        draft.finish(&[]).unwrap();
        assert!(std::fs::read(&path).unwrap() == [&bytes[..], b"end"].concat());
    }

    #[test]
    fn an_entry_of_a_cache_makes_its_folder_and_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kernels/a.cubin");
        for content in ["first", "second"] {
            write_cached(&path, content.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_new_file_replaces_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.html");
        write_new(&path, b"first").unwrap();
        let error = write_new(&path, b"second").unwrap_err();
        assert!(error.message().contains("already exists"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_system_without_links_creates_files_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.html");
        create(&path, b"first").unwrap();
        assert_eq!(create(&path, b"second").unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        let lacks: Vec<i32> =
            (1..=133).filter(|&code| lacks_links(&std::io::Error::from_raw_os_error(code))).collect();
        let known = [Errno::PERM, Errno::INVAL, Errno::MLINK, Errno::NOSYS, Errno::NOTSUP];
        assert_eq!(lacks, known.map(Errno::raw_os_error));
    }

    #[test]
    fn a_missing_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = write(&dir.path().join("no/a.json"), b"x").unwrap_err();
        assert!(error.message().contains("no"), "{error}");
    }
}
