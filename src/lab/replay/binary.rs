//! Chooses the binary that replays a stored recipe: this one, or one built from the recorded commit.

use crate::compare::{own_binary, revision};
use crate::error::{Error, IoContext, Result};
use crate::results::provenance;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The binaries of a replay. Each commit is built once.
#[derive(Debug)]
pub struct Binaries {
    /// True if recorded commits are built, in the git repository of the current folder.
    pub(super) builds: bool,
    own: PathBuf,
    /// Copies of built binaries, because the next build replaces the original.
    folder: tempfile::TempDir,
    built: BTreeMap<String, PathBuf>,
}

/// A binary that runs a stored recipe.
#[derive(Clone, Debug)]
pub(super) struct RunBinary {
    /// Path of the binary.
    pub path: PathBuf,
    /// True for this binary, which knows every current recipe key.
    pub is_own: bool,
}

impl Binaries {
    /// Prepares the binaries of a replay: this one, or, if `builds`, those of the recorded commits. Nothing
    /// is built yet.
    ///
    /// # Errors
    /// If this binary cannot be found, or a temporary folder cannot be created.
    pub fn new(builds: bool) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("xrun-replay-").tempdir();
        let folder = folder.map_err(|e| Error::failed(format!("cannot make a temporary folder: {e}")))?;
        Ok(Self { builds, own: own_binary()?, folder, built: BTreeMap::new() })
    }

    /// Returns the binary for a run with this recorded build.
    ///
    /// # Errors
    /// If the commit is unknown or cannot be built.
    pub(super) fn binary_for(&mut self, recorded: &provenance::Build) -> Result<RunBinary> {
        let here = provenance::Build::current();
        let is_same = || {
            (&here.commit, here.dirty, &here.profile) == (&recorded.commit, Some(false), &recorded.profile)
        };
        if !self.builds || is_same() {
            return Ok(RunBinary { path: self.own.clone(), is_own: true });
        }
        // Accept only a hash, so that text in a file cannot name some other revision.
        let commit =
            recorded.commit.as_deref().filter(|commit| commit.chars().all(|c| c.is_ascii_hexdigit()));
        let commit =
            commit.ok_or_else(|| Error::usage("no commit is recorded, so there is none to build"))?;
        if let Some(path) = self.built.get(commit) {
            return Ok(RunBinary { path: path.clone(), is_own: false });
        }
        let built = revision::build(commit)?;
        let path = self.folder.path().join(format!("xrun-{commit}"));
        std::fs::copy(&built.binary, &path).at("copy", &built.binary)?;
        self.built.insert(commit.to_owned(), path.clone());
        Ok(RunBinary { path, is_own: false })
    }
}
