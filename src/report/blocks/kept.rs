//! Kept folders: read, and verified against their manifests.

use super::text::plain;
use super::why::Why;
use crate::error::{Error, IoContext, Result};
use crate::results::folder::{ENVIRONMENT, PLOTS, RESOLVED, read_summary};
use crate::results::provenance::Environment;
use crate::results::stored::{MANIFEST, Manifest, RunManifest};
use crate::results::summary::Summary;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A kept folder, verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its path beneath the folder of kept things, with `/`.
    pub id: String,
    /// The folder.
    pub folder: PathBuf,
    /// Its name by its manifest, as `RECIPE/RUN`.
    pub named: String,
    /// BLAKE3 of its manifest.
    pub manifest: String,
    /// The runs that its manifest covers.
    pub runs: Vec<RunManifest>,
    /// Differences from the manifest.
    pub faults: Vec<Why>,
}

/// A kept run.
#[derive(Clone, Debug)]
pub struct KeptRun {
    pub source: Source,
    pub summary: Summary,
    /// One per process of the run.
    pub environments: Vec<Environment>,
    /// Values of the resolved recipe by `section.key`; unset ones are absent.
    pub recipe_values: BTreeMap<String, String>,
}

impl Source {
    /// Reads the manifest of a kept folder and compares every file with it.
    ///
    /// # Errors
    /// If there is no readable manifest.
    pub fn verify(kept: &Path, folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let bytes = std::fs::read(&path).at("read", &path)?;
        let manifest = Manifest::parse(&path, &bytes)?;
        let mut faults = Vec::new();
        for file in &manifest.files {
            let path = file.stored_at(folder);
            let why = match file.read(folder) {
                Err(_) if !path.is_file() => {
                    format!("{} cannot be read, but a manifest lists it", path.display())
                }
                Ok(bytes) if file.matches(&bytes) => continue,
                _ => format!(
                    "{} was changed since it was kept: its hash does not match the manifest",
                    path.display()
                ),
            };
            faults.push(Why::mended_by(why, restore(&path)));
        }
        let here = manifest.files.iter().filter(|file| file.shared.is_none());
        let listed: BTreeSet<&str> = here.map(|file| file.path.as_str()).collect();
        for name in files_below(folder)? {
            // Figures are drawn beside their data when a block needs them, and verified byte by byte.
            let is_figure = name.starts_with(PLOTS);
            if name != MANIFEST && !is_figure && !listed.contains(name.as_str()) {
                let path = folder.join(&name);
                let why = format!("{} is not in the manifest: it was put there later", path.display());
                faults.push(Why::mended_by(why, format!("rm {}", path.display())));
            }
        }
        Ok(Self {
            id: id(kept, folder),
            folder: folder.to_owned(),
            named: format!("{}/{}", manifest.recipe, manifest.run),
            manifest: blake3::hash(&bytes).to_hex().to_string(),
            runs: manifest.runs,
            faults,
        })
    }
}

impl KeptRun {
    /// Reads and verifies a kept run.
    ///
    /// # Errors
    /// When a file is missing or cannot be parsed; the message names it.
    pub fn read(kept: &Path, folder: &Path) -> Result<Self, Vec<Why>> {
        let source = Source::verify(kept, folder).map_err(|e| unreadable(folder, &e))?;
        let parts = (read_summary(folder), environments(folder), recipe_values(folder));
        match parts {
            (Ok(summary), Ok(environments), Ok(recipe_values)) => {
                let mut run = Self { source, summary, environments, recipe_values };
                run.compare_name();
                Ok(run)
            }
            // A file that cannot be parsed was usually changed, and then the change is the message.
            _ if !source.faults.is_empty() => Err(source.faults),
            (Err(e), ..) | (_, Err(e), _) | (.., Err(e)) => Err(unreadable(folder, &e)),
        }
    }

    /// Checks that the folder's name matches the run's.
    fn compare_name(&mut self) {
        let source = &self.source;
        if source.named != source.id || source.folder.file_name() != Some(self.summary.run.as_ref()) {
            let why = format!("{} holds the run {}", source.folder.display(), source.named);
            self.source.faults.push(Why::mended_by(why, "give the folder its name back"));
        }
    }

    /// Returns the run's name, which begins with its time.
    pub fn name(&self) -> &str {
        &self.summary.run
    }

    /// Returns the environment of the process that began the run.
    pub fn environment(&self) -> Option<&Environment> {
        self.environments.first()
    }

    /// Returns true if its validation loss is over the first batches of the held-out text, as earlier versions
    /// took them, and not over batches spread over it.
    pub fn took_first_batches(&self) -> bool {
        self.summary.val_part.is_none() && self.validation_steps() != "0"
    }

    /// Returns what its validation loss was measured over; `None` for all of the held-out text.
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

    /// Returns the recipe's name as the folder has it.
    pub fn recipe(&self) -> &str {
        self.source.id.split('/').next().unwrap_or_default()
    }
}

/// Returns a folder's path beneath the folder of kept things, with `/`.
pub fn id(kept: &Path, folder: &Path) -> String {
    let inside = folder.strip_prefix(kept).unwrap_or(folder);
    inside.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/")
}

fn unreadable(folder: &Path, error: &Error) -> Vec<Why> {
    vec![Why::mended_by(error.message(), restore(folder))]
}

/// Returns the command that restores kept files.
pub fn restore(path: &Path) -> String {
    format!("git checkout -- {}", path.display())
}

fn environments(folder: &Path) -> Result<Vec<Environment>> {
    let mut path = folder.join(ENVIRONMENT);
    let mut found = Vec::new();
    loop {
        let text = std::fs::read(&path).at("read", &path)?;
        found.push(serde_json::from_slice(&text).map_err(|e| {
            Error::failed(format!("{}:{}: not an environment: {e}", path.display(), e.line()))
        })?);
        path = folder.join(format!("env-{}.json", found.len() + 1));
        if !path.exists() {
            return Ok(found);
        }
    }
}

/// Returns the values of `resolved.toml` by `section.key`, as text.
pub fn recipe_values(folder: &Path) -> Result<BTreeMap<String, String>> {
    let path = folder.join(RESOLVED);
    let text = std::fs::read_to_string(&path).at("read", &path)?;
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

/// Returns the regular files below a folder, as paths with `/`, sorted.
fn files_below(folder: &Path) -> Result<Vec<String>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).at("read", &next)? {
            let path = entry.at("read", &next)?.path();
            if path.is_dir() { folders.push(path) } else { files.push(id(folder, &path)) }
        }
    }
    files.sort();
    Ok(files)
}
