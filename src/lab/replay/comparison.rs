//! A stored comparison, and what the replays of its runs add up to.

use super::conditions::Conditions;
use super::difference::Difference;
use super::outcome::{Outcome, Replay};
use super::recording::Recording;
use super::stored_run::StoredRun;
use crate::error::{IoContext, Result};
use crate::format::plural;
use crate::results::experiment::{COMPARISONS, Experiment, ExperimentRun, Finding};
use crate::results::names::KEPT;
use crate::statistics::Interval;
use std::collections::BTreeMap;
use std::path::Path;

/// A stored comparison and its runs, as far as they are stored here.
#[derive(Clone, Debug)]
pub struct StoredComparison {
    /// `comparisons/NAME/ID`.
    pub id: String,
    /// Its record.
    pub experiment: Experiment,
    /// Its runs, by `RECIPE/RUN`.
    pub runs: BTreeMap<String, StoredRun>,
}

impl StoredComparison {
    /// Reads a comparison and its runs, which are beside it, in the results folder or among the kept runs.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(folder: &Path, results: &Path) -> Result<Self> {
        let experiment = Experiment::read(folder)?;
        let absolute = std::path::absolute(folder).at("find", folder)?;
        // RESULTS/comparisons/NAME/ID
        let root = absolute.ancestors().nth(3).unwrap_or(&absolute);
        let mut runs = BTreeMap::new();
        for name in experiment.run_names() {
            let places = [root.join(name), results.join(name), results.join(KEPT).join(name)];
            if let Some(folder) = places.into_iter().find(|folder| folder.is_dir()) {
                runs.insert(name.to_owned(), StoredRun::read(&folder)?);
            }
        }
        let id = format!("{COMPARISONS}/{}", experiment.full_name());
        Ok(Self { id, experiment, runs })
    }

    /// Returns what is known about the comparison before it runs.
    pub fn recording(&self) -> Recording {
        let experiment = &self.experiment;
        let (count, parts, device) = if experiment.has_trials() {
            let trials = experiment.runs.len();
            (trials, format!("{trials} trial{}", plural(trials)), &experiment.candidate().device)
        } else {
            let (runs, pairs) = (experiment.run_names().len(), experiment.pairs().count());
            (runs, format!("{runs} runs of {pairs} pair{}", plural(pairs)), &experiment.provenance.device)
        };
        let device = device.as_deref().unwrap_or("an unrecorded device");
        Recording::new(&self.id, &parts, count, self.runs.values(), device)
    }

    /// Returns the first stored run of an arm, which has the recipe, build and device of the arm's runs.
    pub fn first_run(&self, arm: usize) -> Option<&StoredRun> {
        self.experiment.runs_in(arm).find_map(|run| self.run(run))
    }

    /// Returns the stored run that a run of the record names.
    pub fn run(&self, run: &ExperimentRun) -> Option<&StoredRun> {
        self.runs.get(run.run.as_ref()?)
    }
}

/// The replayed runs of a comparison.
#[derive(Clone, Debug, Default)]
pub struct ReplayedRuns {
    /// The outcome of each.
    pub outcomes: Vec<Outcome>,
    /// The first difference in any of them.
    pub difference: Option<Difference>,
    /// The first conditions that differ from the recording's.
    pub conditions: Conditions,
}

impl ReplayedRuns {
    /// Adds the replay of a run.
    pub fn add(&mut self, replay: &Replay) {
        self.outcomes.push(replay.outcome);
        self.difference = self.difference.take().or_else(|| replay.difference.clone());
        if self.conditions.are_same() {
            self.conditions = replay.conditions.clone();
        }
    }

    /// Returns the number of runs with this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.outcomes.iter().filter(|other| **other == outcome).count()
    }

    /// Makes the replay of the comparison.
    pub fn conclude(self, id: &str, outcome: Outcome, findings: Vec<String>) -> Replay {
        Replay { difference: self.difference, ..Replay::new(id, outcome, &self.conditions, findings) }
    }
}

/// The interval that a comparison recorded for a measure, and the interval of its replay.
#[derive(Clone, Copy, Debug)]
pub struct RepeatedInterval<'a> {
    /// The recorded finding.
    pub finding: &'a Finding,
    /// Its interval.
    pub recorded: Interval,
    /// The replay's.
    pub new: Interval,
}

impl<'a> RepeatedInterval<'a> {
    /// Returns the measures that have an interval in both comparisons.
    pub fn between(recorded: &'a Experiment, new: &Experiment) -> Vec<Self> {
        let repeated = |finding: &'a Finding| {
            let new = new.findings.iter().find(|new| new.measure == finding.measure)?;
            Some(Self { finding, recorded: finding.interval?, new: new.interval? })
        };
        recorded.findings.iter().filter_map(repeated).collect()
    }

    /// Returns true if the new estimate lies within the recorded interval.
    pub fn is_within(&self) -> bool {
        (self.recorded.low..=self.recorded.high).contains(&self.new.estimate)
    }

    /// Returns true if all new estimates lie within the recorded intervals; `None` if there are none.
    pub fn are_within(intervals: &[Self]) -> Option<bool> {
        (!intervals.is_empty()).then(|| intervals.iter().all(Self::is_within))
    }

    /// Returns where the new estimate lies, in words.
    pub fn place(&self) -> &'static str {
        if self.is_within() { "within the recorded interval" } else { "outside the recorded interval" }
    }
}
