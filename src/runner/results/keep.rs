//! Keeps runs, comparisons and sweeps: copies their small files for reports, with a manifest of hashes and a
//! README.
//!
//! Content that several runs share (recipes, rows of equal runs, tables of algorithms) is stored once, in
//! `objects/`. Rows and shared recipes are compressed, and columns of `timing.csv` that can be recomputed
//! from others are left out. [`stored::read`](super::stored::read) restores the original bytes.

mod columns;
mod held;
mod prune;
mod readme;
mod snapshot;

use super::atomic::{self, json};
use super::experiment::Experiment;
use super::find::names_of;
use super::ledger::Attempt;
use super::names::{
    ALGORITHMS, COMPARISONS, EXPERIMENT, LEDGER, METRICS, RECIPE, SUMMARY, TIMING, environment_file,
};
use super::provenance::Environment;
use super::stored::{self, COMPRESSED, KeptFile, MANIFEST, Manifest, OBJECTS, RunManifest};
use super::verify::{self, RunFiles};
use crate::error::{Error, IoContext, Result};
use crate::regular;
pub use held::{Use, hold};
pub use prune::{Unused, folders, unused};
pub use readme::README;
use serde::de::DeserializeOwned;
pub use snapshot::Contents;
use snapshot::{plain_files, read_files, snapshot};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Files that all runs with the same content share.
const SHARED_FILES: [&str; 3] = [RECIPE, METRICS, ALGORITHMS];

/// Whether a file is stored compressed. Tables of algorithms are not, because a replay passes them to the
/// binary that recorded the run, which may be older than compression.
fn is_compressed(path: &str) -> bool {
    [RECIPE, METRICS, TIMING].contains(&path) || is_trial(path)
}

/// Whether a file of a comparison has the rows of its external command.
fn is_trial(path: &str) -> bool {
    path.starts_with("trial-") && path.ends_with(".jsonl")
}

/// The result of keeping a folder.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The kept folder.
    pub folder: PathBuf,
    pub manifest: Manifest,
    /// True if the same content was kept before.
    pub was_kept: bool,
}

/// Copies a run's recipe, environment, rows and summary, and its log if it is small, to `to/RECIPE/RUN`.
/// Plots are not copied; pages draw them from these files. The copy appears whole or not at all. Keeping the
/// same run again changes nothing. Nothing is written to the run's folder.
///
/// # Errors
/// If the run is being written or contradicts itself, if it was kept with other content, or if a kept file
/// was changed since.
pub fn keep(run: &Path, to: &Path) -> Result<Kept> {
    let [recipe, name] = names_of(run);
    // A run that is itself kept, such as one in a kept comparison, has its files as they were.
    let contents = match run.join(MANIFEST).is_file() {
        true => verified(run)?.1,
        false => snapshot(run)?,
    };
    let find = |file: &str| contents.iter().find(|(_, path)| path == file).map(|(bytes, _)| bytes.clone());
    verify::check(&RunFiles::parse(run, recipe.clone(), name.clone(), &|file| Ok(find(file)))?)?;
    store(contents, to, &to.join(&recipe), recipe, name)
}

/// Copies a comparison's file and the rows of its external command to `to/comparisons/NAME/ID`, as [`keep`]
/// does for a run. Keep its runs first: the manifest lists the hashes of their manifests.
///
/// # Errors
/// If it was kept with other content, or a kept file was changed since.
pub fn keep_comparison(comparison: &Path, to: &Path) -> Result<Kept> {
    let [name, id] = names_of(comparison);
    let contents = match comparison.join(MANIFEST).is_file() {
        true => verified(comparison)?.1,
        false => {
            let mut files: Vec<String> = plain_files(comparison)?.into_iter().map(|(file, _)| file).collect();
            files.retain(|file| file == EXPERIMENT || is_trial(file));
            files.sort();
            read_files(comparison, files)?
        }
    };
    store(contents, to, &to.join(COMPARISONS).join(&name), name, id)
}

/// Writes contents, each with its path, to `parent/name`, with a manifest and a README, as [`keep`] does for
/// a run. `kept` is the folder of everything that is kept.
///
/// # Errors
/// If it was kept with other content, or a kept file was changed since.
pub fn store(contents: Contents, kept: &Path, parent: &Path, recipe: String, name: String) -> Result<Kept> {
    let folder = parent.join(&name);
    let made = Assembled::from_contents(contents, kept, recipe, name)?;
    if folder.exists() {
        check_same(&folder, &made.manifest)?;
        return Ok(Kept { folder, manifest: made.manifest, was_kept: true });
    }
    std::fs::create_dir_all(parent).at("create", parent)?;
    let staging = made.stage(kept, parent)?;
    std::fs::rename(staging.path(), &folder).at("create", &folder)?;
    atomic::sync_folder(parent)?;
    Ok(Kept { folder, manifest: made.manifest, was_kept: false })
}

/// Compares every file of a kept folder with its manifest.
///
/// # Errors
/// If a file does not match the manifest; the message names the first.
pub fn verify(folder: &Path) -> Result<()> {
    verified(folder).map(drop)
}

/// Returns the manifest of a kept folder, and the verified original contents of its files except the README.
fn verified(folder: &Path) -> Result<(Manifest, Contents)> {
    let manifest = Manifest::read(folder)?;
    let mut contents = Vec::new();
    for file in &manifest.files {
        let bytes = file.read_verified(folder)?;
        if file.path != README {
            contents.push((bytes, file.path.clone()));
        }
    }
    Ok((manifest, contents))
}

/// A kept folder that has not been written yet.
struct Assembled {
    manifest: Manifest,
    /// Files of the folder, by path.
    files: Vec<(String, Vec<u8>)>,
    /// Shared files, by their names in [`OBJECTS`].
    objects: Vec<(String, Vec<u8>)>,
}

impl Assembled {
    /// Decides how each file is stored, and writes the README.
    fn from_contents(contents: Contents, kept: &Path, recipe: String, run: String) -> Result<Self> {
        let is_run = contents.iter().any(|(_, path)| path == SUMMARY);
        let mut made = Self {
            manifest: Manifest { recipe, run, files: Vec::new(), runs: Vec::new() },
            files: Vec::new(),
            objects: Vec::new(),
        };
        for (bytes, path) in &contents {
            let mut entry = KeptFile::from_bytes(path, bytes);
            let (mut stored, mut extension) = (bytes.clone(), "");
            if path == TIMING
                && let Some((rest, derived)) = columns::without_derived(bytes)
            {
                stored = rest;
                entry.derived = Some(derived);
            }
            if is_compressed(path) {
                stored = stored::compress(&stored).at("compress", Path::new(path))?;
                extension = COMPRESSED;
            }
            if is_run && SHARED_FILES.contains(&path.as_str()) {
                let shared = entry.shared_path();
                made.objects.push((format!("{}{extension}", entry.object_name()), stored));
                entry.shared = Some(shared);
            } else {
                made.files.push((format!("{path}{extension}"), stored));
            }
            made.manifest.files.push(entry);
        }
        let readme = made.readme(&contents, kept)?.into_bytes();
        made.manifest.files.push(KeptFile::from_bytes(README, &readme));
        made.manifest.files.sort_by(|a, b| a.path.cmp(&b.path));
        made.files.push((README.to_owned(), readme));
        Ok(made)
    }

    /// Returns the README. For a comparison, also lists the manifests of its runs.
    fn readme(&mut self, contents: &[(Vec<u8>, String)], kept: &Path) -> Result<String> {
        let find =
            |name: &str| contents.iter().find(|(_, path)| path == name).map(|(bytes, _)| bytes.as_slice());
        if let Some(bytes) = find(EXPERIMENT) {
            // A comparison written by another version is also kept, with a shorter README.
            let Some(experiment) = parse::<Experiment>(bytes) else { return Ok(self.title()) };
            let processes = self.list_runs(&experiment.run_names(), kept);
            return Ok(readme::for_comparison(&experiment, &processes));
        }
        if let Some(bytes) = find(LEDGER) {
            let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let attempts: Vec<Attempt> = lines.filter_map(parse).collect();
            return Ok(readme::for_sweep(&self.manifest.run, &attempts));
        }
        let stored = (1..).map_while(|process| find(&environment_file(process)));
        let processes: Vec<Environment> = stored.filter_map(parse).collect();
        let summary = find(SUMMARY).and_then(parse);
        Ok(readme::for_run(&self.manifest.recipe, &self.manifest.run, summary.as_ref(), &processes))
    }

    /// Lists the manifests of a comparison's kept runs, and returns the environment of each run's first
    /// process.
    fn list_runs(&mut self, runs: &[&str], kept: &Path) -> BTreeMap<String, Environment> {
        let mut processes = BTreeMap::new();
        for run in runs {
            let path = kept.join(run).join(MANIFEST);
            let Ok(manifest) = regular::read(&path, regular::MAX_TEXT) else { continue };
            let manifest = blake3::hash(&manifest).to_hex().to_string();
            self.manifest.runs.push(RunManifest { run: (*run).to_owned(), manifest });
            if let Some(environment) = Environment::read(&kept.join(run)) {
                processes.insert((*run).to_owned(), environment);
            }
        }
        processes
    }

    fn title(&self) -> String {
        format!("# {} {}\n", self.manifest.recipe, self.manifest.run)
    }

    /// Writes the shared files, and the folder under a temporary name in `parent`.
    fn stage(&self, kept: &Path, parent: &Path) -> Result<tempfile::TempDir> {
        for (name, bytes) in &self.objects {
            let path = kept.join(OBJECTS).join(name);
            if !regular::read(&path, bytes.len() as u64).is_ok_and(|there| there == *bytes) {
                std::fs::create_dir_all(kept.join(OBJECTS)).at("create", &kept.join(OBJECTS))?;
                if path.is_symlink() {
                    // The link's target does not belong to xrun, so it is not replaced.
                    std::fs::remove_file(&path).at("remove", &path)?;
                }
                atomic::write(&path, bytes)?;
            }
            // Readers prefer the file without the extension, which earlier versions wrote.
            if let Some(plain) = name.strip_suffix(COMPRESSED).map(|name| kept.join(OBJECTS).join(name))
                && plain.symlink_metadata().is_ok()
            {
                std::fs::remove_file(&plain).at("remove", &plain)?;
            }
        }
        let staging = tempfile::Builder::new()
            .prefix(prune::UNFINISHED)
            .tempdir_in(parent)
            .at("create a folder in", parent)?;
        for (path, bytes) in &self.files {
            write_durably(&staging.path().join(path), bytes)?;
        }
        write_durably(&staging.path().join(MANIFEST), &json(&self.manifest)?)?;
        #[cfg(unix)]
        std::fs::set_permissions(staging.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .at("open to others", staging.path())?;
        Ok(staging)
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
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

/// Checks that a kept folder contains exactly what keeping it now would write.
fn check_same(folder: &Path, manifest: &Manifest) -> Result<()> {
    let refuse = |why: String| {
        Error::failed(format!(
            "{} was kept before, but {why}; remove it to keep the run again, or choose another folder with --to",
            folder.display()
        ))
    };
    let kept = Manifest::read(folder).map_err(|e| refuse(format!("its {MANIFEST} cannot be used ({e})")))?;
    // The README is derived from the other files, and another version of xrun may write it differently.
    let only_in = |a: &Manifest, b: &Manifest| {
        let mut files = a.files.iter().filter(|file| file.path != README);
        files.find(|file| !b.files.iter().any(|other| other.is_same_content(file))).cloned()
    };
    if let Some(file) = only_in(manifest, &kept).or_else(|| only_in(&kept, manifest)) {
        return Err(refuse(format!("its {} is not what was kept", file.path)));
    }
    for file in &kept.files {
        if !file.read(folder).is_ok_and(|bytes| file.matches(&bytes)) {
            return Err(refuse(format!("its {} was changed or removed since", file.path)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::StoredKeys;
    use crate::results::RunFolder;
    use crate::results::stored;
    use crate::results::summary::Summary;

    /// Creates a run folder that has every kind of file. The log has `log_bytes` bytes.
    fn run(results: &Path, log_bytes: usize) -> PathBuf {
        const RECIPE: &str = "[training]\nsteps = 1\n";
        let hash = StoredKeys::parse(RECIPE).unwrap().hashes()[0].clone();
        let started = "2026-11-02T03:04:05Z".parse().unwrap();
        let folder = RunFolder::create(results, "r", &hash[..8], started).unwrap();
        folder.write_recipe(RECIPE).unwrap();
        folder.write_resolved(RECIPE).unwrap();
        folder.write_environment(&Environment::detect(1, started)).unwrap();
        folder.write_summary(&Summary::started("r", &folder.name(), &hash, 1)).unwrap();
        folder.log(&"x".repeat(log_bytes)).unwrap();
        std::fs::write(folder.checkpoints().unwrap().join("model.safetensors"), "large").unwrap();
        std::fs::create_dir(folder.path().join("plots")).unwrap();
        std::fs::write(folder.path().join("plots/loss-dark.svg"), "<svg/>").unwrap();
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
        assert_eq!(
            names(&kept),
            ["README.md", "env.json", "log", "recipe.toml", "resolved.toml", "summary.json"]
        );
        assert_eq!(kept.folder, to.join("r").join(run.file_name().unwrap()));
        assert!(!kept.was_kept);
        for file in kept.manifest.files.iter().filter(|file| file.path != README) {
            let original = std::fs::read(run.join(&file.path)).unwrap();
            assert_eq!(stored::read(&kept.folder.join(&file.path)).unwrap(), original);
        }
        let recipe = kept.manifest.file("recipe.toml").unwrap();
        assert!(recipe.shared.is_some() && !kept.folder.join("recipe.toml").exists());
        let compressed = recipe.stored_at(&kept.folder);
        assert!(compressed.extension().is_some_and(|extension| extension == "gz"), "{compressed:?}");
        // An edited file that an earlier version stored whole must not be preferred.
        std::fs::write(compressed.with_extension(""), "[edited]\n").unwrap();
        assert!(keep(&run, &to).is_err());
        std::fs::remove_dir_all(&kept.folder).unwrap();
        let kept = keep(&run, &to).unwrap();
        assert!(!compressed.with_extension("").exists());
        assert_eq!(keep(&kept.folder, &dir.path().join("again")).unwrap().manifest, kept.manifest);
        assert!(!kept.folder.join("checkpoint").exists() && !kept.folder.join("lock").exists());
        assert_eq!(std::fs::read_dir(to.join("r")).unwrap().count(), 1, "nothing is left of the staging");
        assert!(keep(&run, &to).unwrap().was_kept);
    }

    #[test]
    fn a_run_that_is_being_written_is_refused_and_a_folder_that_cannot_be_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (run, to) = (run(dir.path(), 10), dir.path().join("kept"));
        let writer = RunFolder::open(&run).unwrap();
        let error = keep(&run, &to).unwrap_err();
        assert!(error.message().contains("is in use by process "), "{error}");
        drop(writer);
        let entries = || -> Vec<_> {
            let entries = std::fs::read_dir(&run).unwrap().map(|entry| entry.unwrap());
            let mut entries: Vec<_> =
                entries.map(|entry| (entry.path(), entry.metadata().unwrap().modified().unwrap())).collect();
            entries.sort();
            entries
        };
        let before = entries();
        keep(&run, &to).unwrap();
        assert_eq!(entries(), before, "nothing was written");
        std::fs::remove_file(run.join("lock")).unwrap();
        assert!(keep(&run, &to).unwrap().was_kept);
    }

    #[test]
    fn large_logs_stay() {
        let dir = tempfile::tempdir().unwrap();
        let kept = keep(&run(dir.path(), 300 << 10), &dir.path().join("kept")).unwrap();
        assert_eq!(names(&kept), ["README.md", "env.json", "recipe.toml", "resolved.toml", "summary.json"]);
    }

    #[test]
    fn other_content_is_refused_whichever_copy_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (run, to) = (run(dir.path(), 10), dir.path().join("kept"));
        let kept = keep(&run, &to).unwrap();
        let log = std::fs::read(run.join("log")).unwrap();
        std::fs::write(run.join("log"), "new").unwrap();
        let error = keep(&run, &to).unwrap_err();
        assert!(error.message().contains("log is not what was kept"), "{error}");
        std::fs::write(run.join("log"), log).unwrap();
        let recipe = kept.manifest.file("recipe.toml").unwrap().stored_at(&kept.folder);
        std::fs::write(recipe, "[edited]\n").unwrap();
        let error = keep(&run, &to).unwrap_err();
        assert!(error.message().contains("its recipe.toml was changed"), "{error}");
        std::fs::remove_file(kept.folder.join(MANIFEST)).unwrap();
        assert!(keep(&run, &to).is_err());
    }
}
