//! Reads a run from its folder, kept or not: what a replay needs from it, and what prevents a replay.

use crate::checkpoint;
use crate::data::{is_there, tokenizer};
use crate::error::{Error, Result};
use crate::format::plural;
use crate::policy::CorpusSource;
use crate::recipe::source_path_key;
use crate::regular;
use crate::results::difference::RowCells;
use crate::results::find;
use crate::results::folder::{is_held, read_summary};
use crate::results::names::{CHECKPOINT, ENVIRONMENT, METRICS, RESOLVED, SUMMARY};
use crate::results::provenance::Environment;
use crate::results::stored::{self, MANIFEST, Manifest};
use crate::results::summary::{Status, Summary};
use crate::results::verify::{self, RunFiles};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A stored run.
#[derive(Clone, Debug)]
pub struct StoredRun {
    /// The run's folder.
    pub folder: PathBuf,
    /// `RECIPE/RUN`.
    pub id: String,
    /// The summary.
    pub summary: Summary,
    /// The summary as stored in the file, which shows what an earlier version did not store.
    pub printed: Value,
    /// The environment of the process that began the run.
    pub environment: Environment,
    /// The rows; `None` if the run wrote none.
    pub rows: Option<RowCells>,
    /// Remarks on files that are not what the run wrote.
    pub remarks: Vec<String>,
}

impl StoredRun {
    /// Reads a run. A kept file that has changed since is read as it is, with a remark; the replay then shows
    /// what in it the recipe does not produce.
    ///
    /// # Errors
    /// If a file is missing or cannot be parsed.
    pub fn read(folder: &Path) -> Result<Self> {
        let wrong =
            |file: &str, why: String| Error::failed(format!("{}: {why}", folder.join(file).display()));
        let mut remarks = Vec::new();
        let mut read = |file: &str| content(folder, file, &mut remarks);
        let needed = |file: &str, bytes: Option<Vec<u8>>| {
            bytes.ok_or_else(|| Error::failed(format!("{} has no {file}", folder.display())))
        };
        let printed = needed(SUMMARY, read(SUMMARY)?)?;
        let environment = needed(ENVIRONMENT, read(ENVIRONMENT)?)?;
        needed(RESOLVED, read(RESOLVED)?)?;
        let rows = read(METRICS)?;
        if remarks.is_empty() {
            match RunFiles::read(folder) {
                Ok(files) => remarks.extend(verify::differences(&files)),
                Err(error) => remarks.push(error.message().to_owned()),
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            id: find::folder_id(folder),
            summary: read_summary(folder)?,
            printed: serde_json::from_slice(&printed).map_err(|e| wrong(SUMMARY, e.to_string()))?,
            environment: serde_json::from_slice(&environment)
                .map_err(|e| wrong(ENVIRONMENT, e.to_string()))?,
            rows: rows.map(|bytes| RowCells::parse(&bytes).map_err(|why| wrong(METRICS, why))).transpose()?,
            remarks,
        })
    }

    /// Returns the recipe to replay, which has every value that the run used.
    pub fn recipe(&self) -> PathBuf {
        self.folder.join(RESOLVED)
    }

    /// Returns the folder of the run's checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.folder.join(CHECKPOINT)
    }

    /// Returns true if the run has a checkpoint; kept runs have none.
    pub fn has_checkpoint(&self) -> bool {
        checkpoint::steps(&self.checkpoints()).is_ok_and(|steps| !steps.is_empty())
    }

    /// Returns true if the recipe was trained to its end, or to the step at which it diverges. A replay then
    /// has the same number of rows.
    pub fn is_whole(&self) -> bool {
        self.summary.is_finished() || self.summary.status == Status::Diverged
    }

    /// Returns what prevents a replay here; `None` if nothing does.
    ///
    /// # Errors
    /// If the recipe cannot be read.
    pub fn obstacle(&self) -> Result<Option<String>> {
        if is_held(&self.folder)? {
            return Ok(Some("a process is still writing it; wait for it to end".to_owned()));
        }
        if let Some(fork) = &self.summary.forked_from {
            return Ok(Some(format!(
                "it is a fork of {} at step {}, and its recipe alone cannot reproduce the weights that it \
                 began with",
                fork.run, fork.step
            )));
        }
        let missing = missing_files(&regular::read_text(&self.recipe())?);
        Ok(missing.map(|(key, path)| format!("{key} is {path}, which does not exist here")))
    }

    /// Returns why a replay cannot be compared with the run's rows: there are none, or a finished run has
    /// other rows than its summary says. `None` if the rows are fine.
    pub fn rows_problem(&self) -> Option<String> {
        let (rows, steps) = (self.rows.as_ref().map(RowCells::len), self.summary.steps);
        let last = self.rows.as_ref().and_then(RowCells::last_step);
        let found = match (rows, last) {
            (None, _) => "is missing".to_owned(),
            (_, None) => "has no rows".to_owned(),
            // A killed run may have more or fewer rows than it could record.
            (Some(rows), Some(last))
                if self.summary.is_finished() && (rows as u64, last) != (steps, steps) =>
            {
                format!("has {rows} row{}, the last of step {last}", plural(rows))
            }
            _ => return None,
        };
        Some(format!(
            "{} {found}, but {SUMMARY} says {steps} step{}, so there is nothing to compare a replay with; \
             restore the file, or train {RESOLVED} as a new run",
            self.folder.join(METRICS).display(),
            plural(steps as usize)
        ))
    }
}

/// Returns the original content of a run's file; `None` if there is none. If a kept file does not match its
/// manifest, adds a remark.
fn content(folder: &Path, file: &str, remarks: &mut Vec<String>) -> Result<Option<Vec<u8>>> {
    let path = folder.join(file);
    if !stored::is_file(&path) {
        return Ok(None);
    }
    let manifest = folder.join(MANIFEST).is_file().then(|| Manifest::read(folder)).transpose()?;
    let Some(kept) = manifest.as_ref().and_then(|manifest| manifest.file(file)) else {
        return stored::read_plain(&path).map(Some);
    };
    let bytes = kept.read(folder)?;
    if !kept.matches(&bytes) {
        remarks.push(kept.change_message(folder));
    }
    Ok(Some(bytes))
}

/// Returns the first missing file or folder that a resolved recipe's data needs, with its key.
fn missing_files(resolved: &str) -> Option<(String, String)> {
    let table: toml::Table = resolved.parse().ok()?;
    let section = |name: &str| table.get(name).and_then(toml::Value::as_table);
    let data = section("data")?;
    let known: Vec<&str> = CorpusSource::NAMES.iter().chain(&tokenizer::BUILT_IN).copied().collect();
    let mut values: Vec<(String, &toml::Value)> = Vec::new();
    for key in ["corpus", "drop", "tokenizer", "validation"] {
        values.extend(data.get(key).map(|value| (format!("data.{key}"), value)));
    }
    for (name, source) in data.get("sources").and_then(toml::Value::as_table).into_iter().flatten() {
        values.extend(source.get("path").map(|value| (source_path_key(name), value)));
    }
    let sets = section("validation").and_then(|keys| keys.get("sets")).and_then(toml::Value::as_table);
    for (name, value) in sets.into_iter().flatten() {
        values.push((format!("validation.sets.{name}"), value));
    }
    let evaluation = section("evaluation");
    values
        .extend(evaluation.and_then(|keys| keys.get("data")).map(|value| ("evaluation.data".into(), value)));
    let paths = values.into_iter().flat_map(|(key, value)| {
        let all = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        all.iter().filter_map(toml::Value::as_str).map(move |path| (key.clone(), path))
    });
    let missing = paths.into_iter().find(|(_, path)| !known.contains(path) && !is_there(Path::new(path)));
    missing.map(|(key, path)| (key, path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_data_that_are_not_here_are_found() {
        let here = tempfile::NamedTempFile::new().unwrap();
        let here = here.path().display();
        let missing = |text: &str| missing_files(text).map(|(key, path)| format!("{key} {path}"));
        let recipe = |data: &str| format!("[data]\ncorpus = \"stories\"\ntokenizer = \"stories\"\n{data}");
        assert_eq!(missing(&recipe("validation = 0.05\n")), None);
        assert_eq!(missing(&recipe(&format!("validation = \"{here}\"\n"))), None);
        assert_eq!(missing(&recipe("validation = \"/no/x\"\n")).as_deref(), Some("data.validation /no/x"));
        let corpus = format!("[data]\ncorpus = \"/no/text\"\ntokenizer = \"{here}\"\n");
        assert_eq!(missing(&corpus).as_deref(), Some("data.corpus /no/text"));
        let sources =
            "[data]\ncorpus = \"mixture\"\nsources.web.path = \"/no/web\"\nsources.web.weight = 1.0\n";
        assert_eq!(missing(sources).as_deref(), Some("data.sources.web.path /no/web"));
        let list = format!("[data]\ncorpus = [\"{here}\", \"/no/more\"]\n");
        assert_eq!(missing(&list).as_deref(), Some("data.corpus /no/more"));
        let sets = recipe("[validation]\nsets = { news = \"/no/news\" }\n");
        assert_eq!(missing(&sets).as_deref(), Some("validation.sets.news /no/news"));
    }
}
