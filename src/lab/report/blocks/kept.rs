//! Reads kept folders and verifies them against their manifests.

use super::fixes::{remove, restore};
use super::text::plain;
use super::why::Why;
use crate::error::{Error, IoContext, Result};
use crate::regular;
use crate::results::folder::{METRICS, PLOTS, RESOLVED, environment_file, read_summary};
use crate::results::provenance::Environment;
use crate::results::stored::{MANIFEST, Manifest, RunManifest};
use crate::results::summary::Summary;
use crate::results::verify::{self, RunFiles};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A verified kept folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its path below the folder of kept data, with `/`.
    pub id: String,
    /// The folder itself.
    pub folder: PathBuf,
    /// Its name in its manifest, as `RECIPE/RUN`.
    pub named: String,
    /// BLAKE3 hash of its manifest.
    pub manifest: String,
    /// BLAKE3 hash of its `metrics.csv`, if it has one.
    pub metrics: Option<String>,
    /// The runs that its manifest covers.
    pub runs: Vec<RunManifest>,
    /// Files in its folder of figures that the manifest does not list.
    pub figures: Vec<PathBuf>,
    /// Differences from the manifest, and contradictions between files.
    pub faults: Vec<Why>,
}

/// A kept run.
#[derive(Clone, Debug)]
pub struct KeptRun {
    pub source: Source,
    pub summary: Summary,
    /// One per process of the run.
    pub environments: Vec<Environment>,
    /// Values of the resolved recipe by `section.key`; unset keys are absent.
    pub recipe_values: BTreeMap<String, String>,
    /// Where it starts, if it is a fork: `of RUN at step N`.
    pub fork: Option<String>,
}

impl Source {
    /// Verifies a kept folder whose files are to be parsed.
    ///
    /// # Errors
    /// If its manifest cannot be read, or a file differs from it. Changed files are not parsed, because they
    /// may hold anything.
    pub fn unchanged(kept: &Path, folder: &Path) -> Result<Self, Vec<Why>> {
        let source = Self::verify(kept, folder).map_err(|e| unreadable(folder, &e))?;
        if source.faults.is_empty() { Ok(source) } else { Err(source.faults) }
    }

    /// Reads the manifest of a kept folder and compares every file with it.
    ///
    /// # Errors
    /// If there is no readable manifest.
    fn verify(kept: &Path, folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let bytes = regular::read(&path, regular::MAX_TEXT)?;
        let manifest = Manifest::parse(&path, &bytes)?;
        let (files, mut faults) = files_below(folder)?;
        for file in &manifest.files {
            let path = file.stored_at(folder);
            let why = match file.read(folder) {
                Err(_) if !regular::is_file(&path) => {
                    format!("{} cannot be read as a regular file, but a manifest lists it", path.display())
                }
                Ok(bytes) if file.matches(&bytes) => continue,
                _ => file.change_message(folder),
            };
            faults.push(Why::fixed_by(why, restore(&[&path])));
        }
        let listed: BTreeSet<PathBuf> = manifest.files.iter().map(|file| file.stored_at(folder)).collect();
        let mut figures = Vec::new();
        for name in files.into_iter().filter(|name| name != MANIFEST) {
            let path = folder.join(&name);
            if listed.contains(&path) {
                continue;
            }
            // Figures are drawn beside their data when a block needs them, and verified byte by byte.
            if name.strip_prefix(PLOTS).is_some_and(|name| name.starts_with('/')) {
                figures.push(path);
            } else {
                faults.push(unlisted_file(&path));
            }
        }
        Ok(Self {
            id: id(kept, folder),
            folder: folder.to_owned(),
            named: format!("{}/{}", manifest.recipe, manifest.run),
            manifest: blake3::hash(&bytes).to_hex().to_string(),
            metrics: manifest.file(METRICS).map(|file| file.blake3.clone()),
            runs: manifest.runs,
            figures,
            faults,
        })
    }
}

impl KeptRun {
    /// Reads and verifies a kept run.
    ///
    /// # Errors
    /// If a file is missing or cannot be parsed; the message names it.
    pub fn read(kept: &Path, folder: &Path) -> Result<Self, Vec<Why>> {
        let source = Source::unchanged(kept, folder)?;
        if source.named != source.id {
            return Err(renamed(folder, &format!("the run {}", source.named)));
        }
        let files = RunFiles::read(folder).map_err(|e| unreadable(folder, &e))?;
        let differences = verify::differences(&files);
        if !differences.is_empty() {
            let why = format!("{} does not agree with itself: ", folder.display());
            let fix = format!("{}, or run it again", restore(&[folder]));
            return Err(differences
                .iter()
                .map(|d| Why::fixed_by(format!("{why}{d}"), fix.clone()))
                .collect());
        }
        let read = |e: Error| unreadable(folder, &e);
        Ok(Self {
            source,
            summary: read_summary(folder).map_err(read)?,
            environments: environments(folder).map_err(read)?,
            recipe_values: recipe_values(folder).map_err(read)?,
            fork: files.fork(),
        })
    }

    /// Returns the run's name, which begins with its start time.
    pub fn name(&self) -> &str {
        &self.summary.run
    }

    /// Returns true if the validation loss was taken over the first batches of the held-out text, as in
    /// earlier versions, rather than over batches spread across it.
    pub fn took_first_batches(&self) -> bool {
        self.summary.val_part.is_none() && self.validation_steps() != "0"
    }

    /// Returns what the validation loss was measured over, or `None` for all of the held-out text.
    pub fn validated_over(&self) -> Option<String> {
        match self.summary.val_part {
            Some(part) => Some(part.to_string()),
            None if self.took_first_batches() => Some(match self.validation_steps() {
                "1" => "over the first batch".to_owned(),
                steps => format!("over the first {} batches", plain(steps)),
            }),
            None => None,
        }
    }

    fn validation_steps(&self) -> &str {
        self.recipe_values.get("validation.steps").map_or("0", String::as_str)
    }

    /// Returns the name of the recipe's folder.
    pub fn recipe(&self) -> &str {
        self.source.id.split('/').next().unwrap_or_default()
    }
}

/// Returns a folder's path below the folder of kept data, with `/`.
pub fn id(kept: &Path, folder: &Path) -> String {
    let inside = folder.strip_prefix(kept).unwrap_or(folder);
    inside.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// Returns the fault of a folder that was given another name than `what` it holds.
pub fn renamed(folder: &Path, what: &str) -> Vec<Why> {
    vec![Why::fixed_by(format!("{} holds {what}", folder.display()), "give the folder its name back")]
}

/// Returns the fault of a file or folder that cannot be read.
pub fn unreadable(path: &Path, error: &Error) -> Vec<Why> {
    vec![Why::fixed_by(error.message(), restore(&[path]))]
}

fn environments(folder: &Path) -> Result<Vec<Environment>> {
    let mut found = Vec::new();
    loop {
        let path = folder.join(environment_file(found.len() + 1));
        if !found.is_empty() && !path.exists() {
            return Ok(found);
        }
        let text = regular::read(&path, regular::MAX_TEXT)?;
        found.push(serde_json::from_slice(&text).map_err(|e| {
            Error::failed(format!("{}:{}: not an environment: {e}", path.display(), e.line()))
        })?);
    }
}

/// Returns the values of `resolved.toml` by `section.key`, as text.
pub fn recipe_values(folder: &Path) -> Result<BTreeMap<String, String>> {
    let path = folder.join(RESOLVED);
    let text = regular::read_text_through_link(&path)?;
    let table: toml::Table = text
        .parse()
        .map_err(|e: toml::de::Error| Error::failed(format!("{}: {}", path.display(), e.message())))?;
    let mut values = BTreeMap::new();
    for (section, keys) in table {
        for (key, value) in keys.as_table().into_iter().flatten() {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            values.insert(format!("{section}.{key}"), text);
        }
    }
    Ok(values)
}

/// Returns the files below a folder as sorted paths with `/`. Links and other special files become faults,
/// because no kept folder has them.
fn files_below(folder: &Path) -> Result<(Vec<String>, Vec<Why>)> {
    let (mut files, mut faults, mut folders) = (Vec::new(), Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).at("read", &next)? {
            let entry = entry.at("read", &next)?;
            let (path, kind) = (entry.path(), entry.file_type().at("read", &entry.path())?);
            match kind {
                kind if kind.is_dir() => folders.push(path),
                kind if kind.is_file() => files.push(id(folder, &path)),
                _ => {
                    let why = format!("{} is not a regular file: it was put there later", path.display());
                    faults.push(Why::fixed_by(why, remove(&path)));
                }
            }
        }
    }
    files.sort();
    Ok((files, faults))
}

/// Returns the fault of a file that no manifest lists.
pub fn unlisted_file(path: &Path) -> Why {
    let why = format!("{} is not in the manifest: it was put there later", path.display());
    Why::fixed_by(why, remove(path))
}
