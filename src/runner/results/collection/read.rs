//! Reads the runs of a results folder, through the index.

use super::annotations::{Annotation, read_annotations};
use super::entry::{Entry, Stamps};
use super::index::{self, IndexedRun, is_settled};
use crate::error::{Error, Result};
use crate::regular;
use crate::results::began::began;
use crate::results::folder::is_held;
use crate::results::labels::Labeled;
use crate::results::stored::MANIFEST;
use crate::results::{Status, find};
use jiff::Timestamp;
use rayon::prelude::*;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A run of a collection.
#[derive(Clone, Debug)]
pub struct Run {
    /// The run's folder.
    pub path: PathBuf,
    /// `RECIPE/RUN`.
    pub id: String,
    /// The shortest name that identifies the run.
    pub name: String,
    /// When the run began, if its name or its files say so.
    pub(super) began: Option<Timestamp>,
    /// The status in the summary, or [`Status::Killed`] if that is `running` and no process works on the run.
    pub status: Status,
    /// What the run's files say.
    pub entry: Entry,
    pub annotation: Annotation,
    /// The sweeps and comparisons that the run belongs to, if the caller has looked them up.
    pub part_of: Vec<PartOf>,
}

/// A sweep or a comparison that a run belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PartOf {
    /// The name that every command accepts: `sweeps/NAME` or `comparisons/NAME/ID`.
    pub name: String,
    /// The run's arm in a comparison.
    pub arm: Option<&'static str>,
}

impl fmt::Display for PartOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.arm {
            Some(arm) => write!(f, "{} ({arm})", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl Run {
    /// Returns what the run's label is made from.
    pub fn labeled(&self) -> Labeled<'_> {
        Labeled { recipe: self.recipe(), run: &self.name, settings: &self.entry.settings }
    }

    /// Returns the name of the recipe's folder.
    pub fn recipe(&self) -> &str {
        self.id.split_once('/').map_or(self.id.as_str(), |(recipe, _)| recipe)
    }

    /// Returns when the run began, to the minute: `2026-11-22 11:01`; `None` if that is unknown.
    pub fn started(&self) -> Option<String> {
        self.began.map(|began| began.strftime("%Y-%m-%d %H:%M").to_string())
    }

    /// Returns the name of the run's folder.
    pub fn run(&self) -> &str {
        self.id.split_once('/').map_or(self.id.as_str(), |(_, run)| run)
    }
}

/// The runs of a results folder.
#[derive(Clone, Debug, Default)]
pub struct Collection {
    /// The runs, newest first.
    pub runs: Vec<Run>,
    /// An error for each run or annotation that could not be read and is left out.
    pub unreadable: Vec<Error>,
}

impl Collection {
    /// Reads the runs of a results folder, and none if the folder is missing. Updates the index if the folder
    /// can be written.
    ///
    /// # Errors
    /// If the folder or the lock of a run cannot be read.
    pub fn read(results: &Path) -> Result<Self> {
        Self::read_at(results, SystemTime::now())
    }

    /// [`Collection::read`] at a given time by the file system's clock.
    fn read_at(results: &Path, now: SystemTime) -> Result<Self> {
        let paths = find::runs(results)?;
        let ids: Vec<String> = paths.iter().map(|path| find::folder_id(path)).collect();
        let mut indexed = index::read(results);
        let known: Vec<Option<IndexedRun>> = ids.iter().map(|id| indexed.remove(id)).collect();
        // Returns a run, whether the index has it, and whether the index may have it.
        let read = |(path, known): (&PathBuf, Option<IndexedRun>)| -> Result<(IndexedRun, bool, bool)> {
            let stamps = Stamps::read(path);
            if let Some(run) = known.filter(|run| run.stamps == stamps) {
                return Ok((run, true, true));
            }
            let entry = Entry::read(path)?;
            // A kept run shares some files with others, so the stamps in its folder do not tell whether it
            // has changed.
            let is_kept = regular::is_file(&path.join(MANIFEST));
            Ok((IndexedRun { stamps, entry }, false, !is_kept && is_settled(&stamps, now)))
        };
        let found: Vec<Result<(IndexedRun, bool, bool)>> = paths.par_iter().zip(known).map(read).collect();
        if !indexed.is_empty() || found.iter().any(|found| matches!(found, Ok((_, false, true)))) {
            let stored = ids.iter().zip(&found).filter_map(|(id, found)| match found {
                Ok((run, _, true)) => Some((id.as_str(), run)),
                _ => None,
            });
            // If the folder cannot be written, the next list takes as long as this one.
            let _ = index::write(results, &stored.collect());
        }
        let (mut annotations, faults) = read_annotations(results);
        let (mut runs, mut unreadable) = (Vec::with_capacity(found.len()), Vec::new());
        let names = find::short_names(&paths);
        for (((path, id), name), found) in paths.into_iter().zip(ids).zip(names).zip(found) {
            match found {
                Ok((IndexedRun { entry, .. }, ..)) => {
                    let is_held = match entry.status {
                        Status::Running => is_held(&path),
                        _ => Ok(false),
                    };
                    let is_held = is_held.unwrap_or_else(|error| {
                        unreadable.push(error);
                        false
                    });
                    let status = if is_held { Status::Running } else { entry.status.without_process() };
                    let annotation = annotations.remove(&id).unwrap_or_default();
                    let part_of = Vec::new();
                    runs.push(Run {
                        began: began(&path),
                        path,
                        id,
                        name,
                        status,
                        entry,
                        annotation,
                        part_of,
                    });
                }
                Err(error) => unreadable.push(error),
            }
        }
        unreadable.extend(faults);
        Ok(Self { runs, unreadable })
    }
}

/// Adds a held-out set with these figures, in stored units, to a run.
#[cfg(test)]
pub(super) fn add_set(run: &mut Run, name: &str, figures: &[(&str, f64)]) {
    let figures = figures.iter().map(|(metric, value)| ((*metric).to_owned(), *value)).collect();
    run.entry.sets.insert(name.to_owned(), super::entry::SetEntry { figures, ..Default::default() });
}

/// Sets keys of a run's stored recipe.
#[cfg(test)]
pub(super) fn add_settings(run: &mut Run, settings: &[(&str, Option<&str>)]) {
    let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)));
    run.entry.settings.extend(settings);
}

/// Returns runs of recipe `r` with these figures, in stored units: newest first, a day apart, with the same
/// hash.
#[cfg(test)]
pub(super) fn sample(figures: &[&[(&str, f64)]]) -> Collection {
    use std::collections::BTreeMap;
    let count = figures.len();
    let run = |(at, known): (usize, &&[(&str, f64)])| {
        let entry = Entry {
            status: Status::Ok,
            reason: None,
            steps: 1,
            steps_planned: 1,
            figures: known.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            sets: BTreeMap::new(),
            scores: BTreeMap::new(),
            corpus: None,
            val_part: None,
            forked_from: None,
            remarks: Vec::new(),
            changed: Vec::new(),
            device: None,
            commit: None,
            settings: Vec::new(),
        };
        let id = format!("r/202611{:02}T000000Z-0123abcd", count - at);
        let name = format!("0123abcd-{}", count - at);
        let (status, annotation) = (Status::Ok, Annotation::default());
        let path = PathBuf::from(&id);
        Run { began: began(&path), path, id, name, status, entry, annotation, part_of: Vec::new() }
    };
    Collection { runs: figures.iter().enumerate().map(run).collect(), ..Collection::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::folder::{RESOLVED, SUMMARY};
    use crate::results::{RunFolder, Summary};
    use std::time::Duration;

    fn create(results: &Path, time: &str) -> PathBuf {
        let folder = RunFolder::create(results, "r", "0123abcd", time.parse().unwrap()).unwrap();
        folder.write_resolved("[model]\ndim = 64\n").unwrap();
        write(folder.path(), 1);
        folder.path().to_owned()
    }

    fn write(run: &Path, steps: u64) {
        let mut summary = Summary::started("r", "x", "0123abcd", 9);
        (summary.status, summary.steps) = (Status::Ok, steps);
        std::fs::write(run.join(SUMMARY), serde_json::to_vec(&summary).unwrap()).unwrap();
    }

    fn steps(results: &Path, now: SystemTime) -> Vec<u64> {
        Collection::read_at(results, now).unwrap().runs.iter().map(|run| run.entry.steps).collect()
    }

    #[test]
    fn the_index_never_outlives_the_files_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let later = SystemTime::now() + Duration::from_secs(60);
        let indexed = || index::read(dir.path()).len();
        assert!(steps(&dir.path().join("none"), later).is_empty());
        let runs = ["2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"].map(|time| create(dir.path(), time));
        // A file that was written just now may be written again within one tick of the clock.
        assert_eq!((steps(dir.path(), SystemTime::now()), indexed()), (vec![1, 1], 0));
        assert_eq!((steps(dir.path(), later), indexed()), (vec![1, 1], 2));
        assert_eq!(steps(dir.path(), later), [1, 1]);
        // The size is unchanged and the write time is set back; only the change time differs.
        let written = std::fs::metadata(runs[0].join(SUMMARY)).unwrap().modified().unwrap();
        write(&runs[0], 2);
        std::fs::File::options()
            .append(true)
            .open(runs[0].join(SUMMARY))
            .unwrap()
            .set_modified(written)
            .unwrap();
        assert_eq!(steps(dir.path(), later), [1, 2]);
        // Another file of the run changes.
        std::fs::write(runs[1].join(RESOLVED), "[model]\ndim = 32\n").unwrap();
        let dims = |collection: &Collection| -> Vec<String> {
            let value = |run: &Run| run.entry.setting("model.dim").unwrap().to_owned();
            collection.runs.iter().map(value).collect()
        };
        assert_eq!(dims(&Collection::read_at(dir.path(), later).unwrap()), ["32", "64"]);
        // A run that is gone leaves the index.
        std::fs::remove_dir_all(&runs[1]).unwrap();
        assert_eq!((steps(dir.path(), later), indexed()), (vec![2], 1));
        // A damaged summary makes no entry, whatever the index holds.
        std::fs::write(runs[0].join(SUMMARY), "{").unwrap();
        let collection = Collection::read_at(dir.path(), later).unwrap();
        assert_eq!((collection.runs.len(), collection.unreadable.len()), (0, 1));
    }

    #[test]
    fn a_copied_run_began_when_the_run_did() {
        let dir = tempfile::tempdir().unwrap();
        let run = create(dir.path(), "2026-11-01T12:34:56Z");
        for (copy, recorded) in [("mycopy", "20261101T123456Z-0123abcd"), ("zzz", "x")] {
            let copy = dir.path().join("r").join(copy);
            std::fs::create_dir(&copy).unwrap();
            let summary = std::fs::read_to_string(run.join(SUMMARY)).unwrap();
            let summary = summary.replace("\"run\":\"x\"", &format!("\"run\":\"{recorded}\""));
            std::fs::write(copy.join(SUMMARY), summary).unwrap();
        }
        let collection = Collection::read_at(dir.path(), SystemTime::now()).unwrap();
        let started: Vec<_> = collection.runs.iter().map(|run| (run.run(), run.started())).collect();
        let began = Some("2026-11-01 12:34".to_owned());
        assert_eq!(started, [("20261101T123456Z-0123abcd", began.clone()), ("mycopy", began), ("zzz", None)]);
    }

    #[test]
    fn an_index_that_is_right_gives_what_the_files_give() {
        let dir = tempfile::tempdir().unwrap();
        let later = SystemTime::now() + Duration::from_secs(60);
        create(dir.path(), "2026-11-01T00:00:00Z");
        let read = || format!("{:?}", Collection::read_at(dir.path(), later).unwrap());
        let cold = read();
        assert_eq!(index::read(dir.path()).len(), 1);
        assert_eq!(read(), cold);
    }

    #[test]
    fn many_at_once_and_folders_that_cannot_be_written_do_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let later = SystemTime::now() + Duration::from_secs(60);
        create(dir.path(), "2026-11-01T00:00:00Z");
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| steps(dir.path(), later))).collect();
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), [1]));
        });
        assert_eq!(index::read(dir.path()).len(), 1);
        // With a file in place of the index's folder, nothing can be written there.
        std::fs::remove_dir_all(dir.path().join(".index")).unwrap();
        std::fs::write(dir.path().join(".index"), "").unwrap();
        assert_eq!(steps(dir.path(), later), [1]);
    }
}
