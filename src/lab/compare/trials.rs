//! Runs a trial of one arm in a fresh process, and reads its results.

use super::arms::{PlannedArm, Program, hash_file};
use super::cpu_load::CpuLoad;
use super::external;
use super::judge::curves::LossPoint;
use super::judge::trials::blocks;
use super::measured::{Columns, RATES, TRAIN_LOSS};
use super::setting::Setting;
use crate::error::{Error, ErrorKind, IoContext, Result};
use crate::executor::{FinishedRun, Output, RunSpec, Task, run_to_end};
use crate::ranks::Stop;
use crate::results::columns::Figures;
use crate::results::experiment::{BASELINE, CANDIDATE, ExperimentRun};
use crate::results::find;
use crate::results::folder::{ALGORITHMS, METRICS, TIMING, folder_name, read_summary};
use crate::results::losses::{HeldOutPart, SmoothedLoss};
use crate::results::provenance::Environment;
use crate::results::quantiles::median;
use crate::results::steady::steady_rows;
use crate::results::{MetricsRow, Status, Summary, TimingRow, atomic, rows, stored};
use std::path::{Path, PathBuf};

/// Number of last stderr lines to show for a failed process.
const SHOWN_LINES: usize = 12;

/// Clock columns that must not change between trials of one arm: the SMs' and the memory's.
const CLOCKS: [&str; 2] = ["sm_clock_mhz", "mem_clock_mhz"];

/// A trial that has ended, with everything that a comparison needs from it.
#[derive(Clone, Debug, Default)]
pub struct FinishedTrial {
    /// The stored record.
    pub record: ExperimentRun,
    /// The training losses.
    pub curve: Vec<LossPoint>,
    /// The measured figures.
    pub columns: Columns,
    /// Why its times cannot be compared with others.
    pub contended: Vec<String>,
    /// Median clocks of the GPU's SMs and memory in the steady state, in MHz.
    pub clocks: [Option<f64>; 2],
    /// The part of the held-out text that the validation loss was measured on, from the run's summary.
    pub val_part: Option<HeldOutPart>,
    /// Build and device; `None` for an external command.
    pub environment: Option<Environment>,
    /// The run's folder, if it contains matrix-product algorithms that later trials can use.
    pub algorithms: Option<PathBuf>,
    /// The error, if the trial failed.
    pub failed: Option<Error>,
}

/// The settings that a comparison gives a trial.
#[derive(Clone, Copy, Debug)]
pub struct TrialSetting<'a> {
    /// The settings of the comparison.
    pub comparison: &'a Setting<'a>,
    /// The comparison's folder.
    pub folder: &'a Path,
    /// Number of first steps that never count, for commands that do not mark them.
    pub warmup: usize,
    /// A run whose matrix-product algorithms the trial uses.
    pub algorithms_from: Option<&'a Path>,
    /// Signals to this process; they stop the trial.
    pub stop: &'a Stop,
}

impl TrialSetting<'_> {
    /// Runs a trial to its end in a fresh process, with nothing else beside it.
    fn execute(
        &self,
        task: Task,
        binary: Option<&Path>,
        arguments: Vec<String>,
        captures_stderr: bool,
    ) -> Result<FinishedRun> {
        let Setting { results, timeout, .. } = self.comparison;
        let spec = RunSpec {
            task,
            results: results.to_path_buf(),
            binary: binary.map(Path::to_owned),
            arguments,
            until: None,
            output: Output::Captured { stderr: captures_stderr },
        };
        run_to_end(&spec, *timeout, self.stop)
    }
}

/// Returns the arms of a pair of runs that take turns, in order: A B, B A, A B, B A, …. Like plain
/// alternation, every pair has both arms. Under a linear drift of d per run, an even number of pairs affects
/// both arms alike, and an odd number moves their difference by d / pairs. Plain alternation, with B always
/// later, moves it by d.
pub fn turns(pair: usize) -> [usize; 2] {
    if pair.is_multiple_of(2) { [BASELINE, CANDIDATE] } else { [CANDIDATE, BASELINE] }
}

impl FinishedTrial {
    /// Runs an arm once in a fresh process. A trial that fails is not an error here; its status reports it.
    ///
    /// # Errors
    /// If a process cannot be started, a file cannot be written or read, or the binary has changed.
    pub fn run(planned: &PlannedArm, number: usize, arm: usize, set: TrialSetting<'_>) -> Result<Self> {
        let before = CpuLoad::sample();
        let mut trial = match &planned.program {
            Program::Xrun { binary, recipe, settings } => {
                if planned.binary.is_some() && planned.binary != hash_file(binary).ok() {
                    return Err(Error::failed(format!(
                        "{} was replaced during the comparison; compare again, and build elsewhere in the meantime",
                        binary.display()
                    )));
                }
                run_xrun(binary, recipe, settings, arm, set)?
            }
            Program::Command(command) => run_command(command, number, arm, set)?,
            Program::Stored(_) => return Err(Error::failed("a stored run is not run again")),
        };
        trial.record.other_load = CpuLoad::sample().zip(before).and_then(|(now, before)| now.since(&before));
        Ok(trial)
    }

    /// Reads a stored run as a trial.
    ///
    /// # Errors
    /// If the run's files cannot be read.
    pub fn from_stored_run(run: &Path, arm: usize) -> Result<Self> {
        let summary = read_summary(run)?;
        let mut trial = Self::empty(arm, Some(find::folder_id(run)));
        trial.columns = Figures::from_summary(&summary).for_comparison();
        let existing = |file: &str| Some(run.join(file)).filter(|path| stored::is_file(path));
        if let Some(path) = existing(METRICS) {
            let rows: Vec<MetricsRow> = rows::read(&path)?;
            trial.curve = rows.iter().map(LossPoint::from_row).collect();
            trial.record.metrics_hash = Some(blake3::hash(&stored::read(&path)?).to_hex().to_string());
        }
        if let Some(path) = existing(TIMING) {
            let rows: Vec<TimingRow> = rows::read(&path)?;
            // The rows mark warm-up themselves.
            trial.set_times(&rows, 0);
        }
        trial.environment = Environment::read(run);
        trial.algorithms = Some(run.to_owned()).filter(|run| stored::is_file(&run.join(ALGORITHMS)));
        if let Some(gpu) = summary.gpu.as_ref().filter(|gpu| gpu.contended == Some(true)) {
            trial.contended.push(gpu.contended_because.clone().unwrap_or_else(|| "contended".to_owned()));
        }
        trial.val_part = summary.val_part;
        trial.check_complete(run, summary);
        Ok(trial)
    }

    /// Fails the trial if its run did not end as `ok` or lost rows.
    fn check_complete(&mut self, run: &Path, summary: Summary) {
        if summary.status != Status::Ok {
            let reason = summary.reason.unwrap_or_else(|| "its process ended without a reason".to_owned());
            self.fail(summary.status.as_str(), Error::failed(reason));
            return;
        }
        let (metrics, timing) = (run.join(METRICS), run.join(TIMING));
        let reached = self.curve.last().map_or(0, |point| point.step);
        if reached != summary.steps {
            let why = format!(
                "{} ends at step {reached}, but the run trained {} steps: rows were lost",
                metrics.display(),
                summary.steps
            );
            self.fail("failed", Error::failed(why));
        } else if !stored::is_file(&timing) {
            self.fail("failed", Error::failed(format!("{} does not exist", timing.display())));
        }
    }

    fn empty(arm: usize, run: Option<String>) -> Self {
        let status = Some(Status::Ok.as_str().to_owned());
        Self { record: ExperimentRun { arm, run, status, ..ExperimentRun::default() }, ..Self::default() }
    }

    fn fail(&mut self, status: &str, error: Error) {
        self.record.status = Some(status.to_owned());
        self.record.reason = Some(error.message().to_owned());
        self.failed = Some(error);
    }

    /// Sets blocks and clocks from the rows of the steady state. Known speeds and step times become the
    /// medians of the blocks, since the ratio is computed from these.
    fn set_times(&mut self, timing: &[TimingRow], warmup: usize) {
        let (steady, state) = steady_rows(timing, warmup);
        let speeds: Vec<f64> = steady.iter().filter_map(|row| row.tok_s).collect();
        match blocks(&speeds) {
            Some(blocks) => self.record.blocks = blocks,
            None => self
                .contended
                .push(format!("only {} steps in the steady state, too few to compare", speeds.len())),
        }
        let times: Vec<f64> =
            steady.iter().filter(|row| row.tok_s.is_some()).map(|row| row.step_ms).collect();
        for (column, values) in RATES.iter().zip([speeds, times]) {
            let block_median = blocks(&values).and_then(median);
            if let (Some(known), Some(value)) = (self.columns.get_mut(*column), block_median) {
                *known = value;
            }
        }
        if state.settled == Some(false) {
            self.contended.push("its step time never settled".to_owned());
        }
        self.clocks = CLOCKS.map(|column| median(steady.iter().filter_map(|row| row.number(column))));
    }
}

/// Runs xrun as a child process.
fn run_xrun(
    binary: &Path,
    recipe: &Path,
    settings: &[String],
    arm: usize,
    set: TrialSetting<'_>,
) -> Result<FinishedTrial> {
    let mut arguments = [settings, &["--json".to_owned()]].concat();
    if let Some(run) = set.algorithms_from {
        let run = std::path::absolute(run).at("find", run)?;
        arguments.extend(["--algos-from".to_owned(), run.to_string_lossy().into_owned()]);
    }
    let process = set.execute(Task::Train(recipe.into()), Some(binary), arguments, true)?;
    let run = process.stdout.lines().rev().find_map(finished_run).map(|(recipe, run)| -> Result<PathBuf> {
        Ok(set.comparison.results.join(folder_name(&recipe)?).join(run))
    });
    let mut trial = match run {
        Some(run) => FinishedTrial::from_stored_run(&run?, arm)?,
        None => FinishedTrial::empty(arm, None),
    };
    if !process.status.success() || trial.record.run.is_none() {
        let error = failure(&process);
        if trial.failed.is_none() {
            trial.fail("failed", error.clone());
        }
        trial.failed = Some(error);
    }
    Ok(trial)
}

/// Makes the error of a failed run of xrun.
fn failure(process: &FinishedRun) -> Error {
    let kind = match process.status.code() {
        Some(2) => ErrorKind::Usage,
        Some(4) => ErrorKind::DoesNotFit,
        Some(74) => ErrorKind::Unsaved,
        Some(75) => ErrorKind::Interrupted,
        _ => ErrorKind::Failed,
    };
    match &process.stopped_because {
        Some(why) => why.clone(),
        None if process.status.success() => {
            Error::failed("it exited with success but left no run; is it a binary of xrun?")
        }
        None => Error::new(kind, last_lines(&process.stderr, &process.status.to_string())),
    }
}

/// Returns recipe and run from the last line of `xrun run --json`; `None` for other lines.
fn finished_run(line: &str) -> Option<(String, String)> {
    let event: serde_json::Value = serde_json::from_str(line).ok()?;
    let text = |name: &str| event["summary"][name].as_str().map(str::to_owned);
    if event["event"] == "finish" { text("recipe").zip(text("run")) } else { None }
}

/// Returns the exit status of a failed process and the last lines of its stderr.
fn last_lines(stderr: &str, status: &str) -> String {
    let lines: Vec<&str> = stderr.trim().lines().collect();
    let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
    match shown.is_empty() {
        true => status.to_owned(),
        false => format!("{status}: {}", shown.join("\n").trim_start_matches("error: ")),
    }
}

/// Runs a shell command and stores its rows in `trial-N.jsonl` in the comparison's folder.
fn run_command(command: &str, number: usize, arm: usize, set: TrialSetting<'_>) -> Result<FinishedTrial> {
    let process = set.execute(Task::Shell(command.to_owned()), None, Vec::new(), false)?;
    let mut trial = FinishedTrial::empty(arm, None);
    let printed = if process.status.success() {
        external::read(&process.stdout)
    } else {
        let error = process.stopped_because.unwrap_or_else(|| Error::failed(process.status.to_string()));
        Err(error.context(format!("`{command}`")))
    };
    let printed = match printed {
        Ok(printed) => printed,
        Err(error) => {
            trial.fail("failed", error);
            return Ok(trial);
        }
    };
    atomic::write(&set.folder.join(format!("trial-{number}.jsonl")), printed.lines.as_bytes())?;
    let (steady, _) = steady_rows(&printed.timing, set.warmup);
    for column in printed.columns() {
        let value = median(steady.iter().filter_map(|row| row.number(column)));
        trial.columns.extend(value.map(|value| (column.to_owned(), value)));
    }
    trial.set_times(&printed.timing, set.warmup);
    let losses: Vec<f64> = printed.curve.iter().map(|point| point.loss).collect();
    if let Some(smoothed) = SmoothedLoss::from_losses(&losses) {
        trial.columns.insert(TRAIN_LOSS.to_owned(), smoothed.loss);
    }
    if !printed.curve.is_empty() {
        let mut hasher = blake3::Hasher::new();
        for point in &printed.curve {
            hasher.update(&point.step.to_le_bytes()).update(&point.loss.to_le_bytes());
        }
        trial.record.metrics_hash = Some(hasher.finalize().to_hex().to_string());
    }
    trial.curve = printed.curve;
    Ok(trial)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_alternate_and_a_linear_drift_affects_both_arms_alike() {
        assert_eq!([0, 1, 2].map(turns), [[0, 1], [1, 0], [0, 1]]);
        let places = |repeats: usize, arm: usize| -> usize {
            let order = (0..repeats).flat_map(turns).enumerate();
            order.filter(|(_, other)| *other == arm).map(|(place, _)| place).sum()
        };
        for repeats in 1..10 {
            let difference = places(repeats, CANDIDATE) - places(repeats, BASELINE);
            assert_eq!(difference, repeats % 2, "{repeats} repeats");
        }
    }

    #[test]
    fn the_last_line_of_a_run_names_it() {
        let line = r#"{"event":"finish","summary":{"recipe":"a b","run":"2026-x"}}"#;
        assert_eq!(finished_run(line), Some(("a b".into(), "2026-x".into())));
        assert_eq!(finished_run(r#"{"event":"note","text":"x"}"#), None);
        assert_eq!(finished_run("no json"), None);
    }

    #[test]
    fn an_error_ends_with_the_last_lines_of_stderr() {
        assert_eq!(last_lines("error: no\n", "exit status: 2"), "exit status: 2: no");
        assert_eq!(last_lines("", "signal: 9"), "signal: 9");
    }
}
