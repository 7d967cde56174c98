//! Before and after as an experiment: turns of both sides in fresh processes, a ratio with its interval, a verdict, and
//! whether the changed side still learns the same.
//!
//! ```text
//! Asked ─▶ Sides ─▶ turns A B B A … ─▶ blocks ─▶ ratio ─▶ verdict ─▶ comparison.json
//!                       └─▶ curves ─▶ gate          └─▶ prediction
//! ```

mod child;
mod external;
mod gate;
mod load;
mod measured;
mod prediction;
mod revision;
mod sides;
pub mod statistics;
mod text;
mod turns;

pub use sides::{Asked, Sides};
pub use text::{describe, report};

use crate::error::{Error, Kind, Result};
use crate::ranks::Stop;
use crate::recipe::Prediction;
use crate::results::comparison::{COMPARISONS, Comparison, Side, Verdict};
use crate::results::folder::{create_timed, folder_name};
use crate::results::progress::tell;
use crate::results::provenance::Build;
use child::Patience;
use gate::Expected;
use jiff::Timestamp;
use sides::{Planned, Program};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use turns::{Setting, Taken, order};

/// Clocks of one side's turns that are farther apart than this share make its speeds incomparable.
const CLOCKS_MOVED: f64 = 0.03;

/// A share of the processor's time that others took, from which on it is worth a remark.
const OTHERS_BUSY: f64 = 0.10;

/// The same for time that the host of a virtual machine took.
const STOLEN: f64 = 0.02;

/// What is compared, and how it is judged.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Both sides.
    pub sides: Sides,
    /// The results folder.
    pub results: &'a Path,
    /// What the comparison is called; unset means as the recipe.
    pub name: Option<String>,
    /// Runs of each side; unset means what the recipe says.
    pub repeats: Option<usize>,
    /// The smallest difference that counts; unset means what the recipe says.
    pub min_effect: Option<f64>,
    /// The largest difference in training loss that is allowed; unset means what the change promises.
    pub tolerance: Option<f64>,
    /// Why the change should matter; unset means what the recipe says.
    pub hypothesis: Option<String>,
    /// What is expected; unset means what the recipe says.
    pub predicts: Option<Prediction>,
    /// How long a turn may take.
    pub timeout: Option<Duration>,
}

/// A comparison that is over.
#[derive(Debug)]
pub struct Compared {
    /// Its folder.
    pub folder: PathBuf,
    /// What it found, as it stands in the folder.
    pub comparison: Comparison,
    /// Why it ended before its last turn.
    pub failed: Option<Error>,
}

/// Compares: writes down what is expected, lets both sides take turns, and judges.
///
/// # Errors
/// When processes cannot be started or files not be written. A turn that fails ends the comparison, with its error in
/// [`Compared::failed`].
pub fn run(request: Request<'_>) -> Result<Compared> {
    let stop = Stop::on_signals()?;
    let mut experiment = Experiment::begin(request)?;
    let failed = match experiment.stored() {
        true => experiment.read_stored(),
        false => experiment.take_turns(&stop),
    };
    let failed = failed.err();
    experiment.conclude(failed.is_none());
    experiment.comparison.write(&experiment.folder)?;
    Ok(Compared { folder: experiment.folder, comparison: experiment.comparison, failed })
}

/// A comparison under way.
struct Experiment<'a> {
    sides: Sides,
    results: &'a Path,
    folder: PathBuf,
    repeats: usize,
    warmup: usize,
    expected: Expected,
    predicts: Option<Prediction>,
    timeout: Option<Duration>,
    comparison: Comparison,
    taken: Vec<Taken>,
}

impl<'a> Experiment<'a> {
    /// Makes the comparison's folder, and writes down what is asked and expected before anything runs.
    fn begin(request: Request<'a>) -> Result<Self> {
        let Request { sides, results, name, repeats, min_effect, tolerance, hypothesis, predicts, timeout } =
            request;
        let recipe = sides.recipe().ok_or_else(|| Error::usage("neither side has a recipe"))?;
        let asked = recipe.recipe.compare.clone();
        let warmup = recipe.recipe.metrics.warmup;
        let name = folder_name(&name.unwrap_or_else(|| recipe.name.clone()))?;
        let hypothesis = hypothesis.or(Some(asked.hypothesis)).filter(|text| !text.is_empty());
        let predicts = predicts.or(asked.predicts);
        let min_effect = min_effect.unwrap_or(asked.min_effect);
        let expected = Expected::of(tolerance, &sides.changes, sides.same_program(), sides.external());
        let (before, after) = (side(&sides.before), side(&sides.after));
        let identity = serde_json::to_vec(&(&before, &after)).unwrap_or_default();
        let hash8 = blake3::hash(&identity).to_hex()[..8].to_owned();
        let folder = create_timed(&results.join(COMPARISONS).join(&name), &hash8, Timestamp::now())?;
        let change =
            |change: &crate::recipe::Change| format!("{}: {} → {}", change.key, change.old, change.new);
        let comparison = Comparison {
            name,
            id: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            hypothesis,
            predicts: predicts.as_ref().map(|p| p.as_str().to_owned()),
            prediction_held: None,
            before,
            after,
            changes: sides.changes.iter().map(change).collect(),
            finished: false,
            turns: Vec::new(),
            ratio: None,
            min_effect,
            verdict: Verdict::Inconclusive,
            gate: expected.unjudged(),
            contended: Vec::new(),
            notes: Vec::new(),
            rule: statistics::rule(min_effect),
        };
        comparison.write(&folder)?;
        let repeats = repeats.unwrap_or(asked.repeats).max(1);
        Ok(Self {
            sides,
            results,
            folder,
            repeats,
            warmup,
            expected,
            predicts,
            timeout,
            comparison,
            taken: Vec::new(),
        })
    }

    /// Whether this is about runs that are there already.
    fn stored(&self) -> bool {
        matches!(self.sides.before.program, Program::Stored(_))
    }

    fn read_stored(&mut self) -> Result<()> {
        self.comparison.notes.push("of stored runs: turns were not interleaved, so what changed on the machine between them counts as a difference of the sides".to_owned());
        for after in [false, true] {
            let side = if after { &self.sides.after } else { &self.sides.before };
            let Program::Stored(runs) = side.program.clone() else { continue };
            for run in runs {
                let taken = Taken::stored(&run, after)?;
                self.add(taken)?;
            }
        }
        Ok(())
    }

    /// Lets both sides take turns. Every turn is written down when it is over.
    fn take_turns(&mut self, stop: &Stop) -> Result<()> {
        let order = order(self.repeats);
        let count = order.len();
        for (index, after) in order.into_iter().enumerate() {
            let side = if after { &self.sides.after } else { &self.sides.before };
            tell(&format!("turn {} of {count}, {}: {}", index + 1, word(after), side.label));
            let algorithms = self.taken.iter().find_map(|taken| taken.algorithms.clone());
            let setting = Setting {
                results: self.results,
                folder: &self.folder,
                warmup: self.warmup,
                algorithms_from: algorithms.as_deref(),
                patience: Patience { timeout: self.timeout, stop },
            };
            let taken = Taken::run(&side.program, side.binary.as_deref(), index + 1, after, setting)?;
            if taken.failed.is_none() {
                tell(&format!("  {}", text::turn(&taken.turn, &taken.columns)));
            }
            self.add(taken)?;
            if stop.asked() && index + 1 < count {
                return Err(Error::new(
                    Kind::Interrupted,
                    format!(
                        "stopped by a signal after turn {} of {count}; a comparison begins anew",
                        index + 1
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Writes a turn down; one that failed ends the comparison.
    fn add(&mut self, taken: Taken) -> Result<()> {
        let failed = taken.failed.clone();
        self.comparison.turns.push(taken.turn.clone());
        let number = self.comparison.turns.len();
        let side = if taken.turn.after { &mut self.comparison.after } else { &mut self.comparison.before };
        if let Some(environment) = &taken.environment {
            side.device = environment.device_class();
            side.commit.clone_from(&environment.build.commit);
        }
        let of_turn = |reason: &String| format!("turn {number} ({}): {reason}", word(taken.turn.after));
        self.comparison.contended.extend(taken.contended.iter().map(of_turn));
        self.taken.push(taken);
        self.comparison.write(&self.folder)?;
        match failed {
            Some(error) => {
                Err(error.context(format!("turn {number}, {}", word(self.taken[number - 1].turn.after))))
            }
            None => Ok(()),
        }
    }

    /// Judges what was measured.
    fn conclude(&mut self, finished: bool) {
        self.comparison.finished = finished;
        let of = |after: bool| self.taken.iter().filter(move |taken| taken.turn.after == after);
        let columns = |after| measured::medians(&of(after).map(|t| t.columns.clone()).collect::<Vec<_>>());
        (self.comparison.before.measured, self.comparison.after.measured) = (columns(false), columns(true));
        // An external command runs where the other side does.
        let known = |side: &Side| Some(side.device.clone()).filter(|device| !device.is_empty());
        let (before, after) = (known(&self.comparison.before), known(&self.comparison.after));
        self.comparison.before.device = before.clone().or(after.clone()).unwrap_or_default();
        self.comparison.after.device = after.or(before).unwrap_or_default();
        let more = self.reasons();
        self.comparison.contended.extend(more);
        let notes = self.remarks();
        self.comparison.notes.extend(notes);

        let of = |after: bool| self.taken.iter().filter(move |taken| taken.turn.after == after);
        let curves = |after| of(after).map(|taken| taken.curve.clone()).collect::<Vec<_>>();
        let diverged = of(true).any(|taken| taken.diverged) && !of(false).any(|taken| taken.diverged);
        if diverged {
            self.comparison.gate.holds = Some(false);
            self.comparison.gate.found = "the side after diverged".to_owned();
        } else if finished {
            self.comparison.gate = self.expected.judge(&curves(false), &curves(true));
        } else {
            self.comparison.gate.found = "not judged: a turn failed".to_owned();
        }
        let blocks = |after| of(after).map(|taken| taken.turn.blocks.clone()).collect::<Vec<_>>();
        self.comparison.ratio =
            if finished { statistics::ratio(&blocks(false), &blocks(true)) } else { None };
        self.comparison.verdict = match &self.comparison.ratio {
            Some(ratio) if self.comparison.contended.is_empty() => {
                statistics::verdict(ratio, self.comparison.min_effect)
            }
            _ => Verdict::Inconclusive,
        };
        self.comparison.prediction_held =
            self.predicts.as_ref().and_then(|prediction| prediction::held(prediction, &self.comparison));
    }

    /// Why times of whole sides are not comparable.
    fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        for (place, what) in [(0, "the clock of the multiprocessors"), (1, "the clock of the memory")] {
            for after in [false, true] {
                let side = self.taken.iter().filter(|taken| taken.turn.after == after);
                let clocks: Vec<f64> = side.filter_map(|taken| taken.clocks[place]).collect();
                let low = clocks.iter().copied().fold(f64::INFINITY, f64::min);
                let high = clocks.iter().copied().fold(0.0, f64::max);
                if high > (1.0 + CLOCKS_MOVED) * low {
                    reasons.push(format!(
                        "{what} moved from {low:.0} to {high:.0} MHz among the turns {}",
                        word(after)
                    ));
                }
            }
        }
        let Comparison { before, after, .. } = &self.comparison;
        let meant = self.sides.changes.iter().any(|change| change.key.starts_with("engine.device"));
        if before.device != after.device && !meant {
            reasons
                .push(format!("the sides ran on different devices: {} and {}", before.device, after.device));
        }
        reasons
    }

    /// What a reader should know besides.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let busiest = |part: fn(&(f64, f64)) -> f64| {
            self.taken.iter().filter_map(|taken| taken.others.as_ref().map(part)).fold(0.0, f64::max)
        };
        let (others, stolen) = (busiest(|load| load.0), busiest(|load| load.1));
        if others > OTHERS_BUSY {
            remarks.push(format!("others used up to {:.0} % of the processor during a turn", 100.0 * others));
        }
        if stolen > STOLEN {
            remarks
                .push(format!("the host took up to {:.0} % of the processor during a turn", 100.0 * stolen));
        }
        for after in [false, true] {
            if self.taken.iter().filter(|taken| taken.turn.after == after).count() == 1 {
                remarks.push(format!(
                    "one run {}: how runs of this side differ from each other is not in the interval",
                    word(after)
                ));
            }
        }
        remarks
    }
}

/// What is known of a side before it runs.
fn side(planned: &Planned) -> Side {
    let own =
        matches!(&planned.program, Program::Xrun { .. }).then(|| Build::of_this_binary().commit).flatten();
    Side {
        label: planned.label.clone(),
        command: planned.command.clone(),
        recipe_hash: planned.resolved.as_ref().map(crate::recipe::Resolved::hash),
        commit: own,
        binary: planned.binary.clone(),
        device: String::new(),
        measured: BTreeMap::new(),
    }
}

fn word(after: bool) -> &'static str {
    if after { "after" } else { "before" }
}

#[cfg(test)]
mod tests;
