//! Builds the binary of another commit from its sources and lock file.

use crate::error::{Error, IoContext, Result};
use crate::results::progress::eprint_line;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A binary and its commit.
#[derive(Clone, Debug)]
pub struct Built {
    /// Path of the binary.
    pub binary: PathBuf,
    /// The full hash of the commit.
    pub commit: String,
}

/// Builds xrun at `rev` in the git repository of the current folder, with `cargo build --release --locked`.
///
/// The sources are checked out into a temporary folder. Build outputs stay in `target/compare`, so that the
/// next commit compiles fast and the binary of the working tree is not replaced.
///
/// # Errors
/// Exits 2 outside a git repository or if it has no such commit, and 1 if git or cargo fails.
pub fn build(rev: &str) -> Result<Built> {
    let top = git(Path::new("."), &["rev-parse", "--show-toplevel"]).map_err(|e| {
        Error::usage(format!(
            "building a commit needs the git repository of xrun as the current folder: {}",
            e.message()
        ))
    })?;
    let top = PathBuf::from(top);
    let commit = git(&top, &["rev-parse", "--verify", "--end-of-options", &format!("{rev}^{{commit}}")])
        .map_err(|e| Error::usage(format!("there is no commit `{rev}`: {}", e.message())))?;
    let folder = tempfile::Builder::new().prefix("xrun-compare-").tempdir();
    let folder = folder.map_err(|e| Error::failed(format!("cannot make a temporary folder: {e}")))?;
    let sources = folder.path().join("sources");
    let checkout = sources.to_string_lossy().into_owned();
    git(&top, &["worktree", "add", "--detach", &checkout, &commit])?;
    match rev == commit {
        true => eprint_line(&format!("building {commit} …")),
        false => eprint_line(&format!("building {rev} ({commit}) …")),
    }
    let built = cargo(&sources, &top.join("target/compare"));
    // The folder is deleted in any case. If this fails, git prunes its record of the worktree at its next
    // garbage collection.
    let _ = git(&top, &["worktree", "remove", "--force", &checkout]);
    Ok(Built { binary: built?, commit })
}

fn cargo(sources: &Path, target: &Path) -> Result<PathBuf> {
    // Cargo reports progress on stderr; stdout is for data.
    let status = Command::new("cargo")
        .args(["build", "--release", "--locked", "--bin", "xrun", "--target-dir"])
        .arg(target)
        .current_dir(sources)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|e| Error::failed(format!("cannot start cargo: {e}")))?;
    if !status.success() {
        return Err(Error::failed(format!("cargo build of the commit failed: {status}")));
    }
    let binary = target.join("release").join(format!("xrun{}", std::env::consts::EXE_SUFFIX));
    binary.canonicalize().at("find", &binary)
}

/// Runs git and returns its stdout without the trailing newline.
fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::failed(format!("cannot start git: {e}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::failed(format!("git {}: {}", arguments.join(" "), said.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
