//! Reads the files of a run that must agree with each other.

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::recipe::{self, Recipe, StoredKeys};
use crate::results::find::names_of;
use crate::results::folder::parse_summary;
use crate::results::names::{ENVIRONMENT, METRICS, RECIPE, RESOLVED, SUMMARY, TIMING, environment_file};
use crate::results::provenance::Environment;
use crate::results::rows::{self, MetricsRow, Row, TimingRow};
use crate::results::stored;
use crate::results::summary::Summary;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// No run was resumed more often.
const MAX_PROCESSES: usize = 10_000;

/// The files of a run that must agree.
#[derive(Debug)]
pub struct RunFiles {
    /// The folder, for messages.
    pub(super) folder: PathBuf,
    /// The name of the folder's parent, which should be the recipe's.
    pub(super) recipe: String,
    pub(super) run: String,
    pub(super) summary: Summary,
    /// `summary.json`, with the numbers as they are printed.
    pub(super) printed: Value,
    pub(super) keys: StoredKeys,
    /// The resolved recipe as values; `None` if this version cannot load it.
    pub(super) loaded: Option<Recipe>,
    /// The copy of the recipe, if there is one.
    pub(super) recipe_copy: Option<String>,
    /// How many processes worked on the run.
    pub(super) processes: usize,
    /// The environment of the process that began the run.
    pub(super) environment: Environment,
    pub(super) metrics: Vec<MetricsRow>,
    pub(super) timing: Vec<TimingRow>,
}

impl RunFiles {
    /// Describes where the run begins if it is a fork: `of RUN at step N`. In versions that did not record
    /// the fork, the first row shows it.
    pub fn fork(&self) -> Option<String> {
        let before = self.metrics.first().map_or(0, |row| row.step.saturating_sub(1));
        match &self.summary.forked_from {
            Some(fork) => Some(format!("of {} at step {}", fork.run, fork.step)),
            None => (before > 0).then(|| format!("of a run not recorded at step {before}")),
        }
    }

    /// Returns the run's summary.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Returns the environment of the process that began the run.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Reads the files of a run's folder, kept or not.
    ///
    /// # Errors
    /// If a required file is missing, or a file cannot be read.
    pub fn read(run: &Path) -> Result<Self> {
        let [recipe, name] = names_of(run);
        Self::parse(run, recipe, name, &|file| {
            let path = run.join(file);
            if stored::is_file(&path) { stored::read(&path).map(Some) } else { Ok(None) }
        })
    }

    /// Parses the files of the run `recipe/run`. `read` returns a file by its name; messages name files in
    /// `folder`.
    ///
    /// # Errors
    /// If a required file is missing, or a file cannot be parsed.
    pub fn parse(
        folder: &Path,
        recipe: String,
        run: String,
        read: &dyn Fn(&str) -> Result<Option<Vec<u8>>>,
    ) -> Result<Self> {
        let needed = |file: &str| {
            read(file)?.ok_or_else(|| Error::failed(format!("{} has no {file}", folder.display())))
        };
        let wrong =
            |file: &str, why: String| Error::failed(format!("{}: {why}", folder.join(file).display()));
        let bytes = needed(SUMMARY)?;
        let printed = serde_json::from_slice(&bytes).map_err(|e| wrong(SUMMARY, e.to_string()))?;
        let resolved =
            String::from_utf8(needed(RESOLVED)?).map_err(|e| wrong(RESOLVED, e.utf8_error().to_string()))?;
        let environment = needed(ENVIRONMENT)?;
        Ok(Self {
            folder: folder.to_owned(),
            recipe,
            run,
            summary: parse_summary(&folder.join(SUMMARY), &bytes)?,
            printed,
            loaded: recipe::load_resolved(&folder.join(RESOLVED), &resolved, &[], &Machine::none()).ok(),
            recipe_copy: read(RECIPE)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            processes: processes(read)?,
            keys: StoredKeys::parse(&resolved).map_err(|why| wrong(RESOLVED, why))?,
            environment: serde_json::from_slice(&environment)
                .map_err(|e| wrong(ENVIRONMENT, e.to_string()))?,
            metrics: rows_of(folder, METRICS, read)?,
            timing: rows_of(folder, TIMING, read)?,
        })
    }
}

/// Returns the number of environments, which every process of a run adds one to.
fn processes(read: &dyn Fn(&str) -> Result<Option<Vec<u8>>>) -> Result<usize> {
    let mut count = 0;
    while count < MAX_PROCESSES && read(&environment_file(count + 1))?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// Returns the rows of a file, and none if the run ended before it wrote the file.
fn rows_of<R: Row>(
    folder: &Path,
    file: &str,
    read: &dyn Fn(&str) -> Result<Option<Vec<u8>>>,
) -> Result<Vec<R>> {
    read(file)?.map_or(Ok(Vec::new()), |bytes| rows::parse(&folder.join(file), &bytes))
}
