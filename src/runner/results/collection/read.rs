//! Reads the runs of a results folder, through the index.

use super::annotations::{Annotation, Annotations};
use super::entry::{Entry, ReadRun, Stamps};
use super::index::{self, Index, IndexedRun, is_settled};
use super::settings::Settings;
use super::status::RunStatus;
use crate::error::{Error, Result};
use crate::results::began::began;
use crate::results::find;
use jiff::Timestamp;
use rayon::prelude::*;
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
    pub status: RunStatus,
    /// What the run's files say.
    pub entry: Entry,
    pub annotation: Annotation,
    /// Numbers of the run's settings in the collection's [`Settings`].
    pub(super) settings: Vec<u32>,
}

impl Run {
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
    /// The settings in all their recipes.
    pub settings: Settings,
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
        let stamps: Vec<Stamps> = paths.par_iter().map(|path| Stamps::read(path)).collect();
        let Index { mut settings, runs: mut indexed } = Index::read(results);
        let current =
            |(id, stamps): (&String, &Stamps)| indexed.remove(id).filter(|run| run.stamps == *stamps);
        let mut found: Vec<Option<IndexedRun>> = ids.iter().zip(&stamps).map(current).collect();
        let mut is_stored: Vec<bool> = found.iter().map(Option::is_some).collect();
        let missing: Vec<usize> = (0..paths.len()).filter(|at| !is_stored[*at]).collect();
        let read: Vec<Result<ReadRun>> = missing.par_iter().map(|at| ReadRun::read(&paths[*at])).collect();
        let (mut unreadable, mut is_changed) = (Vec::new(), !indexed.is_empty());
        for (at, read) in missing.into_iter().zip(read) {
            match read {
                Ok(read) => {
                    is_stored[at] = read.is_whole && is_settled(&stamps[at], now);
                    is_changed |= is_stored[at];
                    let numbers = read.settings.into_iter().map(|setting| settings.number(setting)).collect();
                    found[at] = Some(IndexedRun { stamps: stamps[at], entry: read.entry, settings: numbers });
                }
                Err(error) => unreadable.push(error),
            }
        }
        if is_changed {
            let stored = ids.iter().zip(&found).zip(&is_stored).filter(|(_, is_stored)| **is_stored);
            let stored = stored.filter_map(|((id, run), _)| Some((id.as_str(), run.as_ref()?)));
            // If the folder cannot be written, the next list takes as long as this one.
            let _ = index::write(results, &settings, &stored.collect::<Vec<_>>());
        }
        let (mut annotations, faults) = Annotations::read(results);
        unreadable.extend(faults);
        let mut runs = Vec::with_capacity(found.len());
        let names = find::short_names(&paths);
        for (((path, id), name), found) in paths.into_iter().zip(ids).zip(names).zip(found) {
            let Some(IndexedRun { entry, settings, .. }) = found else { continue };
            let status = RunStatus::resolve(&path, entry.status)?;
            let annotation = annotations.take(&id);
            let began = began(&path);
            runs.push(Run { path, id, name, began, status, entry, annotation, settings });
        }
        Ok(Self { runs, settings, unreadable })
    }
}

/// Adds a held-out set with these figures, in stored units, to a run.
#[cfg(test)]
pub(super) fn add_set(run: &mut Run, name: &str, figures: &[(&str, f64)]) {
    let figures = figures.iter().map(|(metric, value)| ((*metric).to_owned(), *value)).collect();
    run.entry.sets.insert(name.to_owned(), super::entry::SetEntry { figures, ..Default::default() });
}

/// Returns runs of recipe `r` with these figures, in stored units: newest first, a day apart, with the same
/// hash.
#[cfg(test)]
pub(super) fn sample(figures: &[&[(&str, f64)]]) -> Collection {
    use crate::metrics;
    use crate::results::Status;
    use std::collections::BTreeMap;
    let count = figures.len();
    let run = |(at, known): (usize, &&[(&str, f64)])| {
        let of = |name: &str| known.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let entry = Entry {
            status: Status::Ok,
            reason: None,
            steps: 1,
            steps_planned: 1,
            figures: metrics::run_metrics().map(|metric| of(metric.name)).collect(),
            sets: BTreeMap::new(),
            corpus: None,
            val_part: None,
            forked_from: None,
            remarks: Vec::new(),
            changed: Vec::new(),
            device: None,
            commit: None,
        };
        let id = format!("r/202611{:02}T000000Z-0123abcd", count - at);
        let name = format!("0123abcd-{}", count - at);
        let (status, annotation) = (RunStatus::Ok, Annotation::default());
        let path = PathBuf::from(&id);
        Run { began: began(&path), path, id, name, status, entry, annotation, settings: Vec::new() }
    };
    Collection { runs: figures.iter().enumerate().map(run).collect(), ..Collection::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::folder::{RESOLVED, SUMMARY};
    use crate::results::{RunFolder, Status, Summary};
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
        let indexed = || Index::read(dir.path()).runs.len();
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
            let value = |run: &Run| collection.settings.find(&run.settings, "model.dim").unwrap().1.clone();
            collection.runs.iter().filter_map(value).collect()
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
        assert_eq!(Index::read(dir.path()).runs.len(), 1);
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
        assert_eq!(Index::read(dir.path()).runs.len(), 1);
        // With a file in place of the index's folder, nothing can be written there.
        std::fs::remove_dir_all(dir.path().join(".index")).unwrap();
        std::fs::write(dir.path().join(".index"), "").unwrap();
        assert_eq!(steps(dir.path(), later), [1]);
    }
}
