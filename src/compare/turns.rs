//! A turn of one side: a fresh process, and what it left.

use super::child::{self, Over, Patience, Stderr};
use super::external;
use super::gate::Point;
use super::load::Load;
use super::measured::Columns;
use super::sides::{Program, hash_of};
use super::statistics::blocks;
use crate::error::{Error, IoContext, Kind, Result};
use crate::results::columns::Figures;
use crate::results::comparison::Turn;
use crate::results::folder::{ALGORITHMS, ENVIRONMENT, METRICS, TIMING, folder_name, read_summary};
use crate::results::provenance::Environment;
use crate::results::quantiles::median;
use crate::results::steady::steady_rows;
use crate::results::{MetricsRow, Status, TimingRow, atomic, rows};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of a failed process's complaint that are shown.
const SHOWN_LINES: usize = 12;

/// Columns of clocks that must not move between runs of one side.
const CLOCKS: [&str; 2] = ["sm_clock_mhz", "mem_clock_mhz"];

/// A turn that is over, and all that a comparison needs of it.
#[derive(Clone, Debug)]
pub struct Taken {
    /// What is stored.
    pub turn: Turn,
    /// The training losses.
    pub curve: Vec<Point>,
    /// What was measured.
    pub columns: Columns,
    /// Why its times are not comparable with others.
    pub contended: Vec<String>,
    /// Shares of the processor's time that others and the host took; `None` where nobody looked.
    pub others: Option<(f64, f64)>,
    /// Median clocks of the GPU's multiprocessors and memory over the steady state, in MHz.
    pub clocks: [Option<f64>; 2],
    /// What it was made with; `None` for an external command.
    pub environment: Option<Environment>,
    /// The run's folder, where it left algorithms of products to take over.
    pub algorithms: Option<PathBuf>,
    /// Why it failed.
    pub failed: Option<Error>,
    /// Whether it failed by what it learnt: a loss that is no number any more.
    pub diverged: bool,
}

/// What a turn needs to know of the comparison.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The results folder.
    pub results: &'a Path,
    /// The comparison's folder.
    pub folder: &'a Path,
    /// First steps that never count, for commands that do not say so themselves.
    pub warmup: usize,
    /// A run whose choices of matrix-product algorithms are taken over.
    pub algorithms_from: Option<&'a Path>,
    /// How long a turn may take.
    pub patience: Patience<'a>,
}

/// The order of `repeats` turns of each side, `true` for after: A B B A A B B A … As in plain alternation each pair has both
/// sides, and a drift that is a straight line falls on both sides alike, where plain alternation always has B later.
pub fn order(repeats: usize) -> Vec<bool> {
    (0..repeats).flat_map(|pair| [pair % 2 == 1, pair % 2 == 0]).collect()
}

impl Taken {
    /// Runs a side once, in a fresh process. A turn that fails is no error here; it says so in its status.
    ///
    /// # Errors
    /// When a process cannot be started, files cannot be written or read, or the binary is another than it was.
    pub fn run(
        program: &Program,
        binary: Option<&str>,
        number: usize,
        after: bool,
        set: Setting<'_>,
    ) -> Result<Self> {
        let before = Load::now();
        let mut taken = match program {
            Program::Xrun { binary: path, arguments } => {
                if binary.is_some_and(|known| hash_of(path).ok().as_deref() != Some(known)) {
                    return Err(Error::failed(format!(
                        "{} was replaced during the comparison; compare again, and build elsewhere meanwhile",
                        path.display()
                    )));
                }
                xrun(path, arguments, after, set)?
            }
            Program::Command(command) => external(command, number, after, set)?,
            Program::Stored(_) => return Err(Error::failed("a stored run is not run again")),
        };
        taken.others = Load::now().zip(before).and_then(|(now, before)| now.since(&before));
        Ok(taken)
    }

    /// Reads a run that is there already.
    ///
    /// # Errors
    /// When its files cannot be read.
    pub fn stored(run: &Path, after: bool) -> Result<Self> {
        let summary = read_summary(run)?;
        let name = |path: Option<&Path>| {
            path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
        };
        let absolute = std::path::absolute(run).at("find", run)?;
        let mut taken =
            Self::empty(after, Some(format!("{}/{}", name(absolute.parent()), name(Some(&absolute)))));
        let read_if =
            |file: &str| -> Result<Option<PathBuf>> { Ok(Some(run.join(file)).filter(|p| p.is_file())) };
        if let Some(path) = read_if(METRICS)? {
            let rows: Vec<MetricsRow> = rows::read(&path)?;
            taken.curve = rows.iter().map(Point::of).collect();
            taken.turn.metrics_hash = Some(hash_of(&path)?);
        }
        if let Some(path) = read_if(TIMING)? {
            let rows: Vec<TimingRow> = rows::read(&path)?;
            // Rows say themselves which of them are warm-up.
            taken.time(&rows, 0);
        }
        let environment = std::fs::read(run.join(ENVIRONMENT)).unwrap_or_default();
        // What another version wrote may not be readable, and nothing but the name of the device rests on it.
        taken.environment = serde_json::from_slice(&environment).ok();
        taken.algorithms = Some(run.to_owned()).filter(|run| run.join(ALGORITHMS).is_file());
        taken.columns = Figures::from_summary(&summary).for_comparison();
        if let Some(gpu) = summary.gpu.as_ref().filter(|gpu| gpu.contended == Some(true)) {
            taken.contended.push(gpu.contended_because.clone().unwrap_or_else(|| "contended".to_owned()));
        }
        taken.turn.final_loss = taken.curve.last().map(|point| point.loss);
        let reached = taken.curve.last().map_or(0, |point| point.step);
        if summary.status == Status::Ok {
            let (metrics, timing) = (run.join(METRICS), run.join(TIMING));
            if reached != summary.steps {
                let why = format!(
                    "{} ends at step {reached}, and the run trained {} steps: rows were lost",
                    metrics.display(),
                    summary.steps
                );
                taken.fail("failed", Error::failed(why));
            } else if !timing.is_file() {
                taken.fail("failed", Error::failed(format!("{} is not there", timing.display())));
            }
        } else {
            let reason = summary.reason.unwrap_or_else(|| "its process ended without saying why".to_owned());
            taken.diverged = summary.status == Status::Diverged;
            taken.fail(summary.status.as_str(), Error::failed(reason));
        }
        Ok(taken)
    }

    fn empty(after: bool, run: Option<String>) -> Self {
        let turn = Turn {
            after,
            run,
            status: Status::Ok.as_str().to_owned(),
            blocks: Vec::new(),
            metrics_hash: None,
            final_loss: None,
        };
        Self {
            turn,
            curve: Vec::new(),
            columns: Columns::new(),
            contended: Vec::new(),
            others: None,
            clocks: [None; 2],
            environment: None,
            algorithms: None,
            failed: None,
            diverged: false,
        }
    }

    fn fail(&mut self, status: &str, error: Error) {
        self.turn.status = format!("{status}: {}", error.message());
        self.failed = Some(error);
    }

    /// Takes over the speeds of the steady state.
    fn time(&mut self, timing: &[TimingRow], warmup: usize) {
        let (steady, settled) = steady_rows(timing, warmup);
        let speeds: Vec<f64> = steady.iter().filter_map(|row| row.tok_s).collect();
        match blocks(&speeds) {
            Some(blocks) => self.turn.blocks = blocks,
            None => self
                .contended
                .push(format!("only {} steps in the steady state, too few to compare", speeds.len())),
        }
        if settled == Some(false) {
            self.contended.push("its step time never settled".to_owned());
        }
        self.clocks = CLOCKS.map(|column| median(steady.iter().filter_map(|row| row.number(column))));
    }
}

/// A run of xrun, as a child.
fn xrun(binary: &Path, arguments: &[String], after: bool, set: Setting<'_>) -> Result<Taken> {
    let mut command = Command::new(binary);
    command.arg("--results").arg(set.results).arg("run").args(arguments).arg("--json");
    if let Some(run) = set.algorithms_from {
        command.arg("--algos-from").arg(std::path::absolute(run).at("find", run)?);
    }
    let over = child::run(&mut command, Stderr::Taken, set.patience)?;
    let run =
        over.stdout.lines().rev().find_map(finished).map(|(recipe, run)| -> Result<PathBuf> {
            Ok(set.results.join(folder_name(&recipe)?).join(run))
        });
    let mut taken = match run {
        Some(run) => Taken::stored(&run?, after)?,
        None => Taken::empty(after, None),
    };
    if !over.status.success() || taken.turn.run.is_none() {
        let error = why_it_failed(&over);
        if taken.failed.is_none() {
            taken.fail("failed", error.clone());
        }
        taken.failed = Some(error);
    }
    Ok(taken)
}

/// Why a run of xrun ended as it did not have to.
fn why_it_failed(over: &Over) -> Error {
    let kind = match over.status.code() {
        Some(2) => Kind::Usage,
        Some(4) => Kind::DoesNotFit,
        Some(75) => Kind::Interrupted,
        _ => Kind::Failed,
    };
    match &over.cut {
        Some(why) => why.clone(),
        None if over.status.success() => {
            Error::failed("it ended well and left no run; is it a binary of xrun?")
        }
        None => Error::new(kind, complaint(&over.stderr, &over.status.to_string())),
    }
}

/// Recipe and run of the line that ends `xrun run --json`.
fn finished(line: &str) -> Option<(String, String)> {
    let event: serde_json::Value = serde_json::from_str(line).ok()?;
    let text = |name: &str| event["summary"][name].as_str().map(str::to_owned);
    if event["event"] == "finish" { text("recipe").zip(text("run")) } else { None }
}

/// The end of what a process said before it failed.
fn complaint(stderr: &str, status: &str) -> String {
    let lines: Vec<&str> = stderr.trim().lines().collect();
    let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
    match shown.is_empty() {
        true => status.to_owned(),
        false => format!("{status}: {}", shown.join("\n").trim_start_matches("error: ")),
    }
}

/// A command for the shell. Its rows go to `turn-N.jsonl` beside the comparison.
fn external(command: &str, number: usize, after: bool, set: Setting<'_>) -> Result<Taken> {
    let over = child::run(Command::new("sh").args(["-c", command]), Stderr::Shown, set.patience)?;
    let mut taken = Taken::empty(after, None);
    if !over.status.success() {
        let error = over.cut.unwrap_or_else(|| Error::failed(over.status.to_string()));
        taken.fail("failed", error.context(format!("`{command}`")));
        return Ok(taken);
    }
    let printed = match external::read(&over.stdout) {
        Ok(printed) => printed,
        Err(error) => {
            taken.fail("failed", error);
            return Ok(taken);
        }
    };
    atomic::write(&set.folder.join(format!("turn-{number}.jsonl")), printed.lines.as_bytes())?;
    taken.time(&printed.timing, set.warmup);
    let (steady, _) = steady_rows(&printed.timing, set.warmup);
    for column in printed.columns() {
        let value = median(steady.iter().filter_map(|row| row.number(column)));
        taken.columns.extend(value.map(|value| (column.to_owned(), value)));
    }
    taken.turn.final_loss = printed.curve.last().map(|point| point.loss);
    if let Some(loss) = taken.turn.final_loss {
        taken.columns.insert("train_loss".to_owned(), loss);
        let mut hasher = blake3::Hasher::new();
        for point in &printed.curve {
            hasher.update(&point.step.to_le_bytes()).update(&point.loss.to_le_bytes());
        }
        taken.turn.metrics_hash = Some(hasher.finalize().to_hex().to_string());
    }
    taken.curve = printed.curve;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_alternate_and_a_straight_drift_falls_on_both_alike() {
        assert_eq!(order(3), [false, true, true, false, false, true]);
        let places = |after: bool| {
            order(4).iter().enumerate().filter(|(_, side)| **side == after).map(|(i, _)| i).sum::<usize>()
        };
        assert_eq!(places(true), places(false));
    }

    #[test]
    fn the_last_line_of_a_run_names_it() {
        let line = r#"{"event":"finish","summary":{"recipe":"a b","run":"2026-x"}}"#;
        assert_eq!(finished(line), Some(("a b".into(), "2026-x".into())));
        assert_eq!(finished(r#"{"event":"note","text":"x"}"#), None);
        assert_eq!(finished("no json"), None);
    }

    #[test]
    fn a_complaint_is_the_end_of_what_was_said() {
        assert_eq!(complaint("error: no\n", "exit status: 2"), "exit status: 2: no");
        assert_eq!(complaint("", "signal: 9"), "signal: 9");
    }
}
