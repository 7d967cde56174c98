//! Claims keep two processes from working on the same thing.
//!
//! A claim is the file `NAME.GENERATION`, created exclusively, which holds the name of its writer. It holds
//! as long as the writer lives. On the writer's machine, that is as long as its ledger file is locked, and
//! the lock ends with the process. On other machines, it is until that file has not changed for [`LEASE`] by
//! the waiting process's clock.
//!
//! On file systems without hard links, a claim is empty for a moment, and then it looks stale. Whoever takes
//! it for stale finds it changed when it looks again, or the writer finds the next generation.
//!
//! A process that finds only stale claims creates the next generation, which at most one process can do, and
//! then looks again. The claim is its own if all claims below it are stale and none is above it.

use super::writer::{LEASE, Liveness, SignOfLife, life};
use crate::error::{ErrorKind, IoContext, Result};
use crate::regular;
use crate::results::atomic;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The longest content of a claim, in bytes.
const MAX_NAME: u64 = 1 << 10;

/// The claims of a process.
#[derive(Debug)]
pub(super) struct Claims {
    folder: PathBuf,
    ledger: PathBuf,
    /// Generation of each claim that this process holds.
    held: BTreeMap<String, u64>,
    /// The last sign of life from each writer on another machine, and when it was first seen.
    seen: HashMap<String, (SignOfLife, Instant)>,
    /// Creates a file, unless there is one.
    create: fn(&Path, &[u8]) -> Result<()>,
}

/// Writers of a claim, by generation.
type Generations = BTreeMap<u64, String>;

impl Claims {
    pub fn new(folder: &Path, ledger: &Path) -> Self {
        let (folder, ledger) = (folder.to_owned(), ledger.to_owned());
        Self { folder, ledger, held: BTreeMap::new(), seen: HashMap::new(), create: atomic::write_new }
    }

    /// Claims a name. Returns false while another live writer has it.
    pub fn take(&mut self, name: &str, writer: &str) -> Result<bool> {
        if self.held.contains_key(name) {
            return Ok(true);
        }
        std::fs::create_dir_all(&self.folder).at("create", &self.folder)?;
        let mut expected = self.generations(name)?;
        if let Some((&own, _)) = expected.iter().find(|(_, owner)| *owner == writer) {
            // It could not be removed when it was released.
            self.held.insert(name.to_owned(), own);
            self.release(name, writer);
            expected = self.generations(name)?;
        }
        if expected.values().any(|owner| self.is_alive(owner)) {
            return Ok(false);
        }
        let generation = expected.keys().next_back().map_or(1, |last| last + 1);
        if let Err(e) = (self.create)(&self.path(name, generation), writer.as_bytes()) {
            // The file may be this writer's: a network file system repeats a request whose answer was lost,
            // and finds the file that it created, or it reports an error.
            if self.generations(name)?.get(&generation).is_none_or(|owner| owner != writer) {
                // Another writer was faster.
                return if e.kind() == ErrorKind::Usage { Ok(false) } else { Err(e) };
            }
        }
        expected.insert(generation, writer.to_owned());
        self.held.insert(name.to_owned(), generation);
        if self.generations(name)? != expected {
            self.release(name, writer);
            return Ok(false);
        }
        Ok(true)
    }

    /// Releases a claim.
    pub fn release(&mut self, name: &str, writer: &str) {
        let Some(own) = self.held.remove(name) else { return };
        // If the claims cannot be listed, the own one can still go: what is below it is then found stale.
        let generations = self.generations(name).unwrap_or_else(|_| [(own, writer.to_owned())].into());
        // The own claim goes last: without it, another process could take one of the stale claims below it.
        for (generation, owner) in generations {
            if generation < own && !self.is_alive(&owner) || generation == own && owner == writer {
                let _ = std::fs::remove_file(self.path(name, generation));
            }
        }
    }

    /// Returns the names that other live writers have claimed.
    pub fn held_by_others(&mut self, writer: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for (name, _, owner) in self.find(|_| true)? {
            if owner != writer && self.is_alive(&owner) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Releases all claims that are not in use.
    pub fn release_all(&mut self, writer: &str, is_used: impl Fn(&str) -> bool) {
        let names: Vec<String> = self.held.keys().filter(|name| !is_used(name)).cloned().collect();
        names.iter().for_each(|name| self.release(name, writer));
    }

    fn path(&self, name: &str, generation: u64) -> PathBuf {
        self.folder.join(format!("{name}.{generation}"))
    }

    fn generations(&self, name: &str) -> Result<Generations> {
        let found = self.find(|other| other == name)?;
        Ok(found.into_iter().map(|(_, generation, owner)| (generation, owner)).collect())
    }

    /// Returns the name, generation and writer of the claims with a wanted name. Skips claims that vanish
    /// meanwhile. Only a missing folder means that there are none: a cell whose claim cannot be read must not
    /// run twice.
    fn find(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, u64, String)>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.at("read", &self.folder)?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.at("read", &self.folder)?;
            let file = entry.file_name().to_string_lossy().into_owned();
            let Some((name, generation)) = file.rsplit_once('.') else { continue };
            if !is_wanted(name) {
                continue;
            }
            let Ok(generation) = generation.parse() else { continue };
            if let Ok(owner) = regular::read(&entry.path(), MAX_NAME) {
                all.push((name.to_owned(), generation, String::from_utf8_lossy(&owner).into_owned()));
            }
        }
        Ok(all)
    }

    fn is_alive(&mut self, owner: &str) -> bool {
        match life(&self.ledger.join(owner).with_extension("jsonl")) {
            Liveness::Alive => true,
            Liveness::Dead => false,
            Liveness::Elsewhere(beat) => {
                let now = (beat, Instant::now());
                let seen = self.seen.entry(owner.to_owned()).or_insert(now);
                if seen.0 != beat {
                    *seen = now;
                }
                seen.1.elapsed() < LEASE
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::fs::File;

    /// As on a network file system that repeats a request whose answer was lost.
    #[test]
    fn a_claim_that_was_created_without_an_answer_is_its_writers() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(".claims");
        let claims = || Claims::new(&folder, dir.path());
        let mut own = claims();
        own.create = |path, bytes| {
            atomic::write_new(path, bytes)?;
            atomic::write_new(path, bytes)
        };
        assert!(own.take("a", "own").unwrap());
        own.release("a", "own");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        own.create = |path, _| {
            atomic::write_new(path, b"other")?;
            atomic::write_new(path, b"own")
        };
        assert!(!own.take("a", "own").unwrap(), "another writer was faster");
        own.create = |path, bytes| {
            atomic::write_new(path, bytes)?;
            Err(Error::failed("input/output error"))
        };
        assert!(own.take("b", "own").unwrap(), "it was created");
        own.create = |_, _| Err(Error::failed("input/output error"));
        assert!(own.take("c", "own").is_err());
    }

    #[test]
    fn a_claim_that_could_not_be_removed_does_not_keep_its_writer_out() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(".claims");
        let mut own = Claims::new(&folder, dir.path());
        let ledger = File::create(dir.path().join("own.jsonl")).unwrap();
        ledger.lock().unwrap();
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("a.1"), "own").unwrap();
        assert!(own.take("a", "own").unwrap());
        assert!(!Claims::new(&folder, dir.path()).take("a", "other").unwrap());
    }

    #[test]
    fn only_a_missing_folder_has_no_claims() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(".claims");
        let mut claims = Claims::new(&folder, dir.path());
        assert_eq!(claims.held_by_others("own").unwrap(), [] as [String; 0]);
        std::fs::write(&folder, "not a folder").unwrap();
        let error = claims.held_by_others("own").unwrap_err();
        assert!(error.message().contains("cannot read") && error.message().contains(".claims"), "{error}");
        assert!(claims.take("a", "own").is_err());
    }
}
