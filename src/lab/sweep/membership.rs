//! Finds the sweeps and comparisons that the runs of a results folder belong to.

use super::keep::cells;
use super::table::CELLS;
use crate::error::{Error, Result};
use crate::regular;
use crate::results::collection::{Collection, PartOf};
use crate::results::experiment::{ARM_NAMES, EXPERIMENT, Experiment};
use crate::results::find;
use crate::results::ledger::{self, Ledger};
use crate::results::names::{COMPARISONS, SWEEPS};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Names of comparisons (`NAME/ID`) or sweeps, each with its folder.
pub type Named = [(String, PathBuf)];

/// The sweeps and comparisons of every run that has some.
#[derive(Clone, Debug, Default)]
pub struct Memberships {
    /// By `RECIPE/RUN`.
    by_run: BTreeMap<String, Vec<PartOf>>,
    /// An error for each comparison or sweep that could not be read and is left out.
    pub unreadable: Vec<Error>,
}

impl Memberships {
    /// Reads every comparison and sweep of a results folder. What cannot be read is left out, because the
    /// runs can be listed without it.
    pub fn read(results: &Path) -> Self {
        let named = |found: Vec<PathBuf>, kind: &str| -> Vec<(String, PathBuf)> {
            let above = results.join(kind);
            let name = |path: &Path| Some(path.strip_prefix(&above).ok()?.to_str()?.to_owned());
            found.into_iter().filter_map(|path| Some((name(&path)?, path))).collect()
        };
        let mut unreadable = Vec::new();
        let mut listed = |found: Result<Vec<PathBuf>>| {
            found.unwrap_or_else(|error| {
                unreadable.push(error);
                Vec::new()
            })
        };
        let comparisons = listed(find::comparisons(results));
        let mut sweeps = listed(find::subfolders(&results.join(SWEEPS)));
        sweeps.retain(|sweep| regular::is_file(&sweep.join(CELLS)));
        sweeps.sort();
        let has_ledger = !sweeps.is_empty() && ledger::folder(results).is_dir();
        let ledger = has_ledger.then(|| Ledger::read(results)).transpose();
        let mut all = Self::new(&named(comparisons, COMPARISONS), &named(sweeps, SWEEPS), ledger);
        all.unreadable.append(&mut unreadable);
        all
    }

    /// Reads these comparisons and sweeps. Without a ledger, no run is known to belong to a sweep.
    pub fn new(comparisons: &Named, sweeps: &Named, ledger: Result<Option<Ledger>>) -> Self {
        let mut all = Self::default();
        let ledger = ledger.unwrap_or_else(|error| {
            all.unreadable.push(error);
            None
        });
        for (name, folder) in comparisons {
            let path = folder.join(EXPERIMENT);
            let experiment =
                regular::read(&path, regular::MAX_TEXT).and_then(|bytes| Experiment::parse(&bytes, &path));
            match experiment {
                Ok(experiment) => all.add_comparison(name, &experiment),
                Err(error) => all.unreadable.push(error),
            }
        }
        for (name, folder) in sweeps {
            match cells(folder) {
                Ok(cells) => {
                    let keys = cells.into_iter().map(|cell| cell.key);
                    keys.for_each(|key| all.add_cell(name, &key, ledger.as_ref()));
                }
                // A sweep from an earlier version lists no cells.
                Err(_) if !folder.join(CELLS).exists() => {}
                Err(error) => all.unreadable.push(error),
            }
        }
        all
    }

    fn add_comparison(&mut self, name: &str, experiment: &Experiment) {
        for run in &experiment.runs {
            let arm = ARM_NAMES.get(run.arm).copied();
            self.add(run.run.as_deref(), PartOf { name: format!("{COMPARISONS}/{name}"), arm });
        }
    }

    /// Adds the runs of a cell: every attempt of sweeps, and whichever run the table of the sweep shows.
    fn add_cell(&mut self, name: &str, key: &str, ledger: Option<&Ledger>) {
        let Some(ledger) = ledger else { return };
        let attempts = ledger.lines().iter().filter(|line| line.key == key && line.comparison.is_none());
        for attempt in attempts.chain(ledger.row(key)) {
            self.add(attempt.run.as_deref(), PartOf { name: format!("{SWEEPS}/{name}"), arm: None });
        }
    }

    fn add(&mut self, run: Option<&str>, part_of: PartOf) {
        let Some(run) = run else { return };
        let known = self.by_run.entry(run.to_owned()).or_default();
        if !known.contains(&part_of) {
            known.push(part_of);
        }
    }

    /// Sets what each run of a collection is part of.
    pub fn set_in(&self, collection: &mut Collection) {
        for run in &mut collection.runs {
            run.part_of = self.by_run.get(&run.id).cloned().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::experiment::ExperimentRun;

    /// A damaged record or ledger hides what it says, and nothing else.
    #[test]
    fn what_cannot_be_read_is_left_out_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert!(Memberships::read(dir.path()).unreadable.is_empty());
        write("comparisons/r/20261124T101112Z-0123abcd/experiment.json", "{");
        assert_eq!(Memberships::read(dir.path()).unreadable.len(), 1);
        write("sweeps/r-0123abcd/cells.json", "[");
        assert_eq!(Memberships::read(dir.path()).unreadable.len(), 2);
        write("sweeps/ledger/host-1-2.jsonl", "not a line\n{}\n");
        let found = Memberships::read(dir.path());
        assert_eq!(found.unreadable.len(), 3, "{:?}", found.unreadable);
        assert!(found.by_run.is_empty());
    }

    #[test]
    fn a_run_knows_its_comparisons_with_the_arm() {
        let run =
            |arm, run: &str| ExperimentRun { arm, run: Some(run.to_owned()), ..ExperimentRun::default() };
        let runs = vec![run(0, "r/a"), run(1, "r/b"), run(0, "r/a"), ExperimentRun::default()];
        let experiment = Experiment { runs, ..Experiment::default() };
        let mut all = Memberships::default();
        all.add_comparison("r/1", &experiment);
        all.add_comparison("r/2", &experiment);
        let of = |run: &str| all.by_run[run].iter().map(PartOf::to_string).collect::<Vec<_>>();
        assert_eq!(of("r/a"), ["comparisons/r/1 (baseline)", "comparisons/r/2 (baseline)"]);
        assert_eq!(of("r/b"), ["comparisons/r/1 (candidate)", "comparisons/r/2 (candidate)"]);
        assert_eq!(all.by_run.len(), 2);
    }
}
