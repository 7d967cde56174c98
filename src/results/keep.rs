//! Keeps a run: copies its small files to where reports read them, with a manifest of their hashes.

use super::atomic::{self, json};
use super::folder::RunFolder;
use super::names::{
    ALGORITHMS, COMPARISON, COMPARISONS, ENVIRONMENT, LOG, METRICS, RECIPE, RESOLVED, SUMMARY, TIMING,
};
use crate::error::{Error, IoContext, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The list of kept files with their hashes.
pub const MANIFEST: &str = "manifest.json";

/// Larger logs are not kept.
const MAX_LOG_BYTES: u64 = 256 << 10;

/// `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The recipe's name, or the comparison's.
    pub recipe: String,
    /// The run folder's name, the comparison's id, or the sweep's name.
    pub run: String,
    /// The kept files, by path.
    pub files: Vec<KeptFile>,
}

/// A kept file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFile {
    /// The path beneath the run folder, with `/`.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of the content, hexadecimal.
    pub blake3: String,
}

/// The result of [`keep`].
#[derive(Clone, Debug)]
pub struct Kept {
    /// The folder of the kept files.
    pub folder: PathBuf,
    /// Their manifest.
    pub manifest: Manifest,
    /// True if they had been kept before.
    pub already: bool,
}

/// Copies a run's recipe, environment, rows, summary, and its log if small, to `to/RECIPE/RUN`; plots are
/// drawn from these where a page shows them. The copy appears whole or not at all. Keeping the same run again
/// changes nothing.
///
/// # Errors
/// The run is in use; it was kept with other content, or a kept file was changed since.
pub fn keep(run: &Path, to: &Path) -> Result<Kept> {
    let run = std::path::absolute(run).at("find", run)?;
    let held = RunFolder::open(&run)?;
    let recipe = run.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    let (parent, name) = (to.join(&recipe), held.name());
    copy(&run, small_files(&run)?, &parent, recipe, name)
}

/// Copies a comparison's file, and the rows of its external command, to `to/comparisons/NAME/ID`, as [`keep`]
/// does a run's. The runs that it names are kept separately.
///
/// # Errors
/// If it was kept with other content, or a kept file was changed since.
pub fn keep_comparison(comparison: &Path, to: &Path) -> Result<Kept> {
    let comparison = std::path::absolute(comparison).at("find", comparison)?;
    let last = |path: Option<&Path>| {
        path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
    };
    let (name, id) = (last(comparison.parent()), last(Some(&comparison)));
    let is_kept = |file: &str| file == COMPARISON || (file.starts_with("turn-") && file.ends_with(".jsonl"));
    let mut files: Vec<String> = plain_files(&comparison)?.into_iter().map(|(file, _)| file).collect();
    files.retain(|file| is_kept(file));
    files.sort();
    let parent = to.join(COMPARISONS).join(&name);
    copy(&comparison, files, &parent, name, id)
}

/// Copies files of a folder to `parent/name` with a manifest.
fn copy(from: &Path, files: Vec<String>, parent: &Path, recipe: String, name: String) -> Result<Kept> {
    let contents = files
        .into_iter()
        .map(|path| Ok((std::fs::read(from.join(&path)).at("read", &from.join(&path))?, path)))
        .collect::<Result<Vec<_>>>()?;
    store(contents, parent, recipe, name)
}

/// Writes contents, each with its path, to `parent/name` with a manifest, as [`keep`] does a run's.
///
/// # Errors
/// If it was kept with other content, or a kept file was changed since.
pub fn store(contents: Vec<(Vec<u8>, String)>, parent: &Path, recipe: String, name: String) -> Result<Kept> {
    let folder = parent.join(&name);
    let files = contents.iter().map(|(bytes, path)| KeptFile::from_bytes(path, bytes)).collect();
    let manifest = Manifest { recipe, run: name, files };
    if folder.exists() {
        check_same(&folder, &manifest)?;
        return Ok(Kept { folder, manifest, already: true });
    }
    std::fs::create_dir_all(parent).at("create", parent)?;
    let staging =
        tempfile::Builder::new().prefix(".keeping-").tempdir_in(parent).at("create a folder in", parent)?;
    for (bytes, path) in &contents {
        write_durably(&staging.path().join(path), bytes)?;
    }
    write_durably(&staging.path().join(MANIFEST), &json(&manifest)?)?;
    #[cfg(unix)]
    std::fs::set_permissions(staging.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .at("open to others", staging.path())?;
    std::fs::rename(staging.path(), &folder).at("create", &folder)?;
    atomic::sync_folder(parent)?;
    Ok(Kept { folder, manifest, already: false })
}

impl KeptFile {
    /// The entry of a file with this content.
    pub fn from_bytes(path: &str, bytes: &[u8]) -> Self {
        Self {
            path: path.to_owned(),
            bytes: bytes.len() as u64,
            blake3: blake3::hash(bytes).to_hex().to_string(),
        }
    }
}

/// Returns the files to keep, in alphabetical order of their paths. Links are not followed.
fn small_files(run: &Path) -> Result<Vec<String>> {
    let is_kept = |name: &str| {
        [RECIPE, RESOLVED, ENVIRONMENT, METRICS, TIMING, SUMMARY, LOG, ALGORITHMS].contains(&name)
            || (name.starts_with("env-") && name.ends_with(".json"))
    };
    let mut paths: Vec<String> = plain_files(run)?
        .into_iter()
        .filter(|(name, bytes)| is_kept(name) && (name != LOG || *bytes <= MAX_LOG_BYTES))
        .map(|(name, _)| name)
        .collect();
    paths.sort();
    Ok(paths)
}

/// Returns names and sizes of the regular files in a folder.
fn plain_files(folder: &Path) -> Result<Vec<(String, u64)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).at("read", folder)? {
        let entry = entry.at("read", folder)?;
        let metadata = entry.metadata().at("read", &entry.path())?;
        if let (true, Ok(name)) = (metadata.is_file(), entry.file_name().into_string()) {
            files.push((name, metadata.len()));
        }
    }
    Ok(files)
}

fn write_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).at("create", folder)?;
    }
    File::create(path)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        })
        .at("write", path)
}

/// Checks that a kept folder holds exactly what would be kept now.
fn check_same(folder: &Path, manifest: &Manifest) -> Result<()> {
    let refuse = |why: String| {
        Error::failed(format!(
            "{} was kept before and {why}; remove it to keep the run anew, or name another place with --to",
            folder.display()
        ))
    };
    let path = folder.join(MANIFEST);
    let text = std::fs::read(&path).map_err(|e| refuse(format!("its {MANIFEST} cannot be read ({e})")))?;
    let kept: Manifest =
        serde_json::from_slice(&text).map_err(|e| refuse(format!("its {MANIFEST} is damaged ({e})")))?;
    let only_in = |a: &Manifest, b: &Manifest| a.files.iter().find(|file| !b.files.contains(file)).cloned();
    if let Some(file) = only_in(manifest, &kept).or_else(|| only_in(&kept, manifest)) {
        return Err(refuse(format!("its {} is not what was kept", file.path)));
    }
    for file in &kept.files {
        let bytes = std::fs::read(folder.join(&file.path)).unwrap_or_default();
        if KeptFile::from_bytes(&file.path, &bytes) != *file {
            return Err(refuse(format!("its {} was changed or removed since", file.path)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::summary::Summary;

    /// A run folder with a little of everything; the log has `log_bytes` bytes.
    fn run(results: &Path, log_bytes: usize) -> PathBuf {
        let folder =
            RunFolder::create(results, "r", "0123abcd", "2026-11-02T03:04:05Z".parse().unwrap()).unwrap();
        folder.write_recipe("[training]\n").unwrap();
        folder.write_summary(&Summary::started("r", &folder.name(), "0123abcd", 1)).unwrap();
        folder.log(&"x".repeat(log_bytes)).unwrap();
        std::fs::write(folder.checkpoints().unwrap().join("model.safetensors"), "large").unwrap();
        std::fs::create_dir(folder.path().join("plots")).unwrap();
        std::fs::write(folder.path().join("plots/loss-dark.svg"), "<svg/>").unwrap();
        std::fs::write(folder.path().join("env.json"), "{}").unwrap();
        folder.path().to_owned()
    }

    fn names(kept: &Kept) -> Vec<&str> {
        kept.manifest.files.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn small_files_are_kept_and_keeping_again_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (run, to) = (run(dir.path(), 10), dir.path().join("kept"));
        let kept = keep(&run, &to).unwrap();
        assert_eq!(names(&kept), ["env.json", "log", "recipe.toml", "summary.json"]);
        assert_eq!(kept.folder, to.join("r").join("20261102T030405Z-0123abcd"));
        assert!(!kept.already);
        for file in &kept.manifest.files {
            assert_eq!(
                std::fs::read(kept.folder.join(&file.path)).unwrap(),
                std::fs::read(run.join(&file.path)).unwrap()
            );
        }
        assert!(!kept.folder.join("checkpoint").exists() && !kept.folder.join("lock").exists());
        assert_eq!(std::fs::read_dir(to.join("r")).unwrap().count(), 1, "nothing is left of the staging");
        assert!(keep(&run, &to).unwrap().already);
    }

    #[test]
    fn large_logs_stay() {
        let dir = tempfile::tempdir().unwrap();
        let kept = keep(&run(dir.path(), 300 << 10), &dir.path().join("kept")).unwrap();
        assert_eq!(names(&kept), ["env.json", "recipe.toml", "summary.json"]);
    }

    #[test]
    fn other_content_is_refused_whichever_copy_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (run, to) = (run(dir.path(), 10), dir.path().join("kept"));
        let kept = keep(&run, &to).unwrap();
        std::fs::write(run.join("env.json"), "new").unwrap();
        let error = keep(&run, &to).unwrap_err();
        assert!(error.message().contains("env.json is not what was kept"), "{error}");
        std::fs::write(run.join("env.json"), "{}").unwrap();
        std::fs::write(kept.folder.join("recipe.toml"), "[edited]\n").unwrap();
        let error = keep(&run, &to).unwrap_err();
        assert!(error.message().contains("its recipe.toml was changed"), "{error}");
        std::fs::remove_file(kept.folder.join(MANIFEST)).unwrap();
        assert!(keep(&run, &to).is_err());
    }
}
