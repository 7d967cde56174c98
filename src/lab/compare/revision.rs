//! Builds the binary of another commit from its sources and lock file.

use crate::device::cuda::cache_folder;
use crate::error::{Error, IoContext, Result};
use crate::format::shortened;
use crate::regular;
use crate::results::progress::eprint_line;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The file that makes a folder a package or a workspace of cargo.
const MANIFEST: &str = "Cargo.toml";

/// The most characters that are shown of a commit's author and subject.
const MAX_SAID: usize = 120;

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
/// The sources are checked out into a new private folder in xrun's cache. Build outputs stay in
/// `target/compare`, so that the next commit compiles fast and the binary of the working tree is not
/// replaced.
///
/// # Errors
/// Exits 2 outside a git repository, if it has no such commit, or if a folder above the sources has a package
/// that cargo would take them for a part of; and 1 if git or cargo fails.
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
    let folder = private_folder()?;
    let sources = folder.path().join("sources");
    let checkout = sources.to_string_lossy().into_owned();
    git(&top, &["worktree", "add", "--detach", &checkout, &commit])?;
    // A program of the commit's author will run here.
    let said = git(&top, &["show", "--no-patch", "--format=%an <%ae> on %as: %s", &commit])?;
    let named = if rev == commit { commit.clone() } else { format!("{rev} ({commit})") };
    eprint_line(&format!("building {named} of {}, by {} …", top.display(), shortened(&said, MAX_SAID)));
    let built = cargo(&sources, &top.join("target/compare"));
    // The folder is deleted in any case. If this fails, git prunes its record of the worktree at its next
    // garbage collection.
    let _ = git(&top, &["worktree", "remove", "--force", &checkout]);
    Ok(Built { binary: built?, commit })
}

/// Creates a folder that only this user can read and write: in xrun's cache, else in the temporary folder.
///
/// # Errors
/// If it cannot be created, or lies below a `Cargo.toml`: cargo looks for a workspace in every folder above a
/// package, and on a shared machine another user may have put one into the temporary folder.
fn private_folder() -> Result<tempfile::TempDir> {
    let above = cache_folder().map_or_else(std::env::temp_dir, |cache| cache.join("builds"));
    std::fs::create_dir_all(&above).at("create", &above)?;
    let above = above.canonicalize().at("find", &above)?;
    if let Some(other) =
        above.ancestors().map(|folder| folder.join(MANIFEST)).find(|path| !regular::is_missing(path))
    {
        return Err(Error::usage(format!(
            "{} lies above the folder in which a commit is built, and cargo would read it; remove it, or set XRUN_CACHE \
             to another folder",
            other.display()
        )));
    }
    // Created with the permissions 0700.
    tempfile::Builder::new().prefix("xrun-compare-").tempdir_in(&above).at("create a folder in", &above)
}

fn cargo(sources: &Path, target: &Path) -> Result<PathBuf> {
    let mut command = Command::new("cargo");
    // Cargo reports progress on stderr; stdout is for data.
    command.args(["build", "--release", "--locked", "--bin", "xrun", "--target-dir"]).arg(target);
    command.arg("--manifest-path").arg(sources.join(MANIFEST));
    // Cargo takes `.cargo/config.toml`, and rustup `rust-toolchain.toml`, from every folder above the current
    // one, and both name programs that are run. Above the root there is none.
    command.current_dir("/");
    let own = sources.join(".cargo/config.toml");
    if regular::is_file(&own) {
        command.arg("--config").arg(own);
    }
    if let Some(home) = std::env::var_os("CARGO_HOME").filter(|home| !home.is_empty()) {
        command.env("CARGO_HOME", std::path::absolute(&home).at("find", Path::new(&home))?);
    }
    let status = command
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
