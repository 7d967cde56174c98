//! Runs without processes, for tests of schedulers. Each takes one step per pause, prints and stores what a
//! real run does, and ends as the test demands.

use super::{Capacity, Executor, Output, Polled, RunEnd, RunId, RunSpec, StopSignal, Task};
use crate::error::{Error, Result};
use crate::results::folder::{CHECKPOINT, METRICS, SUMMARY, read_summary};
use crate::results::losses::{LossAt, Losses};
use crate::results::{Status, Summary};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

/// The recipe name that all simulated runs carry.
const RECIPE: &str = "simulated";

/// How a simulated run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// Trains all steps, to this validation loss.
    Completes(f64),
    /// Ends with an error before its first step.
    Fails,
    /// Does nothing after its first step, whatever it is asked to do.
    Hangs,
    /// Is killed from outside after this step.
    Killed(u64),
    /// Cannot be started.
    NotStarted,
}

/// Executes simulated runs. It may outlive one scheduler and serve the next, as real processes do.
pub struct Simulation<'a> {
    capacity: Capacity,
    /// Number of steps of every training.
    steps: u64,
    fate: Box<dyn Fn(&RunSpec) -> Fate + 'a>,
    /// Called at every pause with the number of earlier pauses.
    pub at_pause: Box<dyn FnMut(u64) + 'a>,
    /// The pause from which every poll fails, as if the scheduler died.
    pub dies_at: Option<u64>,
    /// Everything that was started, in order.
    pub started: Vec<RunSpec>,
    /// The largest number of runs at once.
    pub most: usize,
    runs: BTreeMap<RunId, SimulatedRun>,
    pauses: u64,
}

struct SimulatedRun {
    name: String,
    fate: Fate,
    folder: PathBuf,
    summary: Summary,
    until: Option<u64>,
    saved_steps: Vec<u64>,
    /// The whole stdout, and how much of it was returned already.
    stdout: Vec<u8>,
    handed_on: usize,
    end: Option<RunEnd>,
}

impl<'a> Simulation<'a> {
    /// Creates a simulation in which every training takes `steps` steps.
    pub fn new(capacity: Capacity, steps: u64, fate: impl Fn(&RunSpec) -> Fate + 'a) -> Self {
        Self {
            capacity,
            steps,
            fate: Box::new(fate),
            at_pause: Box::new(|_| ()),
            dies_at: None,
            started: Vec::new(),
            most: 0,
            runs: BTreeMap::new(),
            pauses: 0,
        }
    }
}

impl Executor for Simulation<'_> {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn start(&mut self, spec: &RunSpec) -> Result<RunId> {
        let fate = (self.fate)(spec);
        self.started.push(spec.clone());
        if fate == Fate::NotStarted {
            return Err(Error::failed("no run today"));
        }
        let id = RunId(self.started.len() as u64);
        self.runs.insert(id, SimulatedRun::new(spec, fate, self.steps, id));
        self.most = self.most.max(self.runs.values().filter(|run| run.end.is_none()).count());
        Ok(id)
    }

    fn reattach(&mut self, name: &str) -> Result<Option<RunId>> {
        let Some((id, run)) = self.runs.iter_mut().find(|(_, run)| run.name == name) else { return Ok(None) };
        run.handed_on = 0;
        Ok(Some(*id))
    }

    fn poll(&mut self, run: RunId) -> Result<Polled> {
        if self.dies_at.is_some_and(|at| self.pauses >= at) {
            return Err(Error::failed("the scheduler dies"));
        }
        let run = self.runs.get_mut(&run).expect("it is known");
        let stdout = run.stdout[run.handed_on..].to_vec();
        run.handed_on = run.stdout.len();
        Ok(Polled { stdout, end: run.end.clone() })
    }

    fn stop(&mut self, run: RunId, signal: StopSignal) {
        let run = self.runs.get_mut(&run).expect("it is known");
        match (signal, run.fate, &run.end) {
            (_, _, Some(_)) | (StopSignal::Save, Fate::Hangs, _) => {}
            (StopSignal::Save, ..) => run.save_and_end(Status::Interrupted),
            (StopSignal::Kill, ..) => run.end_by(9),
        }
    }

    fn forget(&mut self, run: RunId) {
        self.runs.remove(&run);
    }

    fn pause(&mut self) {
        (self.at_pause)(self.pauses);
        self.pauses += 1;
        self.runs.values_mut().filter(|run| run.end.is_none()).for_each(SimulatedRun::step);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

impl SimulatedRun {
    fn new(spec: &RunSpec, fate: Fate, steps: u64, id: RunId) -> Self {
        let Output::Kept { name, header } = &spec.output else { panic!("a scheduler keeps outputs") };
        let values: Value = serde_json::from_str(header).expect("a line of JSON");
        let new = format!("20261127T{:06}Z-{name}", id.0);
        let folder = match &spec.task {
            Task::Resume(run) => spec.results.join(run),
            _ => spec.results.join(RECIPE).join(&new),
        };
        let mut summary = match &spec.task {
            Task::Resume(_) => read_summary(&folder).expect("a stopped run"),
            _ => Summary::started(RECIPE, &new, values["recipe_hash"].as_str().unwrap_or("h"), steps),
        };
        if let Task::Fork { run, step } = &spec.task {
            let saved = spec.results.join(run).join(CHECKPOINT).join(format!("step-{step:06}"));
            assert!(saved.is_dir(), "{} is not there to begin with", saved.display());
            summary.steps = *step;
        }
        // A run cannot be trained to a step that it has passed.
        let is_past = spec.until.is_some_and(|until| until <= summary.steps);
        let fate = if is_past { Fate::Fails } else { fate };
        let list =
            spec.arguments.iter().rev().find_map(|argument| argument.strip_prefix("checkpoint.steps="));
        let mut run = Self {
            name: name.clone(),
            fate,
            summary,
            until: spec.until,
            saved_steps: list.map_or(Vec::new(), |list| serde_json::from_str(list).expect("a list")),
            stdout: format!("{header}\n").into_bytes(),
            handed_on: 0,
            end: None,
            folder,
        };
        std::fs::create_dir_all(&run.folder).expect("a folder");
        run.write_summary();
        run.print(&json!({"event": "begin", "run": run.folder, "pid": id.0}));
        run
    }

    fn print(&mut self, line: &Value) {
        self.stdout.extend(format!("{line}\n").bytes());
    }

    fn step(&mut self) {
        match self.fate {
            Fate::Fails => {
                self.print(&json!({"event": "error", "kind": "failed", "message": "it broke"}));
                return self.end_with(ExitStatus::from_raw(1 << 8));
            }
            Fate::Killed(at) if self.summary.steps >= at => return self.end_by(9),
            Fate::Hangs if self.summary.steps >= 1 => return,
            _ => {}
        }
        self.summary.steps += 1;
        let (step, total) = (self.summary.steps, self.summary.steps_planned);
        self.print(&json!({"event": "step", "step": step, "total_steps": total, "loss": 1.0}));
        let rows = "row\n".repeat(step as usize);
        std::fs::write(self.folder.join(METRICS), rows).expect("rows");
        if self.saved_steps.contains(&step) {
            self.save();
        }
        if step == total {
            self.save_and_end(Status::Ok);
        } else if self.until == Some(step) {
            self.save_and_end(Status::Interrupted);
        }
    }

    fn save(&self) {
        let step = self.summary.steps;
        std::fs::create_dir_all(self.folder.join(CHECKPOINT).join(format!("step-{step:06}")))
            .expect("a folder");
    }

    fn save_and_end(&mut self, status: Status) {
        self.save();
        if let Fate::Completes(loss) = self.fate {
            let at = LossAt { step: self.summary.steps, loss: loss as f32 };
            self.summary.val_loss = Losses::from_series([at]);
        }
        self.summary.status = status;
        self.write_summary();
        self.end_with(ExitStatus::from_raw(if status == Status::Ok { 0 } else { 75 << 8 }));
    }

    fn end_by(&mut self, signal: i32) {
        self.end_with(ExitStatus::from_raw(signal));
    }

    fn end_with(&mut self, exit: ExitStatus) {
        self.end = Some(RunEnd { exit: Some(exit), ..RunEnd::default() });
    }

    fn write_summary(&self) {
        let json = serde_json::to_vec(&self.summary).expect("a summary");
        std::fs::write(self.folder.join(SUMMARY), json).expect("a summary");
    }
}
