//! The measures that comparisons of quality judge: their grammar, units and directions.
//!
//! ```text
//! METRIC[/SET][:lastK]                                   the last evaluation, or the mean of the last K
//! train_loss[/SOURCE][:lastK]                            the smoothed loss, or the mean of the last K steps
//! (steps|tokens|seconds)_until:METRIC[/SET]=TARGET       until the first evaluation that reaches TARGET
//! TASK[/FIGURE][:lastK]                                  a figure of a task; without one, that of a task of xrun's
//!                                                        that stands for it
//! METRIC = val_loss | ema_val_loss | bits_per_byte | train_loss | tok_s | a figure of an evaluation task
//! ```

mod series;
#[cfg(test)]
mod tests;
mod value;

pub use value::{MeasureValue, MeasuredRun, rows_hash};

use crate::metrics::{PERPLEXITY, ScoreColumn, ScoreFigure, TaskFigure, task_figure};
use crate::statistics::Direction;
use crate::suggest::nearest;
use crate::tasks;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The largest number of evaluations that a measure can average.
const MAX_AVERAGED: usize = 100_000;

/// What is measured in a run. Its text form names it in files and on the command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Measure {
    /// A metric at the end of a run.
    Final {
        /// The metric.
        metric: MeasuredMetric,
        /// The held-out set, or the source of a mixture for `train_loss`; `None` for the set that
        /// `data.validation` defines, and for all sources.
        set: Option<String>,
        /// How many of the last evaluations (or steps, for `train_loss`) to average; `None` to use the figure
        /// in the run's summary.
        last: Option<usize>,
    },
    /// How much training it takes until the first evaluation reaches a target. The value must be at or below
    /// the target, or at or above it for a figure where higher is better.
    Until {
        /// What to count.
        clock: Clock,
        /// The metric, which must be one of held-out text.
        metric: MeasuredMetric,
        /// The held-out set; `None` for the one that `data.validation` defines.
        set: Option<String>,
        /// The target, in the metric's unit.
        target: f64,
    },
    /// The largest difference between training losses at any step. Speed trials are judged by it too, because
    /// a faster run that learns something else is no improvement.
    LossCurves,
}

/// The text form of [`Measure::LossCurves`].
const LOSS_CURVES: &str = "loss_curves";

/// The metric that a measure reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MeasuredMetric {
    /// Loss on held-out text, in nats per token.
    ValLoss,
    /// Loss of the moving average of the weights on held-out text, in nats per token.
    EmaValLoss,
    /// Loss on held-out text, in bits per byte of the text.
    BitsPerByte,
    /// Smoothed training loss, in nats per token.
    TrainLoss,
    /// Median tokens per second in the steady state.
    TokS,
    /// Another figure that is measured on held-out text.
    Task(&'static TaskFigure),
    /// A figure of a standard task, which [`Measure::task`] names.
    Score {
        /// The figure.
        score: &'static ScoreFigure,
        /// True for the moving average of the weights.
        is_average: bool,
    },
}

words! {
    /// What is counted until a target is reached. Only training counts, not evaluations, saves or samples.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Clock {
        /// Optimizer steps.
        Steps = "steps",
        /// Tokens trained on.
        Tokens = "tokens",
        /// Wall time of training steps: the sum of `step_ms` over the phases `warmup` and `train`.
        Seconds = "seconds",
    }
}

/// How two values of a measure are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// By candidate - baseline, in the measure's unit.
    Difference,
    /// By the logarithm of candidate / baseline. Intervals and smallest effects are stated as candidate /
    /// baseline - 1.
    Ratio,
}

impl Scale {
    /// Converts a stored difference or smallest effect to the scale of statistics.
    pub fn to_differences(self, stored: f64) -> f64 {
        match self {
            Self::Difference => stored,
            Self::Ratio => stored.ln_1p(),
        }
    }

    /// Converts a figure from the scale of statistics to the form that is stored.
    pub fn to_stored(self, difference: f64) -> f64 {
        match self {
            Self::Difference => difference,
            Self::Ratio => difference.exp_m1(),
        }
    }
}

impl MeasuredMetric {
    const ALL: [Self; 5] = [Self::ValLoss, Self::EmaValLoss, Self::BitsPerByte, Self::TrainLoss, Self::TokS];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ValLoss => "val_loss",
            Self::EmaValLoss => "ema_val_loss",
            Self::BitsPerByte => "bits_per_byte",
            Self::TrainLoss => "train_loss",
            Self::TokS => "tok_s",
            Self::Task(figure) => figure.name,
            Self::Score { score, .. } => score.figure.name,
        }
    }

    /// Returns true for metrics that are measured at evaluations: of held-out text, and of tasks.
    pub fn has_evaluations(self) -> bool {
        self.is_held_out() || matches!(self, Self::Score { .. })
    }

    /// Returns the figure of an evaluation task or of a standard task.
    fn figure(self) -> Option<&'static TaskFigure> {
        match self {
            Self::Task(figure) => Some(figure),
            Self::Score { score, .. } => Some(&score.figure),
            _ => None,
        }
    }

    /// Returns true if higher values are better.
    pub fn is_higher_better(self) -> bool {
        self == Self::TokS || self.figure().is_some_and(|figure| figure.higher_is_better)
    }

    /// Returns true for metrics of held-out text, which have evaluations and sets.
    pub fn is_held_out(self) -> bool {
        matches!(self, Self::ValLoss | Self::EmaValLoss | Self::BitsPerByte | Self::Task(_))
    }
}

impl Measure {
    /// The steady-state speed.
    pub const SPEED: Self = Self::Final { metric: MeasuredMetric::TokS, set: None, last: None };

    /// Returns the metric.
    pub fn metric(&self) -> MeasuredMetric {
        match self {
            Self::Final { metric, .. } | Self::Until { metric, .. } => *metric,
            Self::LossCurves => MeasuredMetric::TrainLoss,
        }
    }

    /// Returns the held-out set; `None` for the one that `data.validation` defines, and for metrics of other
    /// text.
    pub fn set(&self) -> Option<&str> {
        self.part().filter(|_| self.metric().is_held_out())
    }

    /// Returns the standard task; `None` for metrics of text.
    pub fn task(&self) -> Option<&str> {
        self.part().filter(|_| matches!(self.metric(), MeasuredMetric::Score { .. }))
    }

    /// Returns the source of a mixture that a training loss is measured on; `None` for all of them, and for
    /// other metrics.
    pub fn source(&self) -> Option<&str> {
        self.part().filter(|_| self.metric() == MeasuredMetric::TrainLoss)
    }

    /// Returns the name after the slash.
    fn part(&self) -> Option<&str> {
        match self {
            Self::Final { set, .. } | Self::Until { set, .. } => set.as_deref(),
            Self::LossCurves => None,
        }
    }

    /// Returns the unit of the measure's values.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Until { clock, .. } => clock.as_str(),
            Self::LossCurves => "nats per token",
            Self::Final { metric, .. } => match metric {
                MeasuredMetric::ValLoss | MeasuredMetric::EmaValLoss | MeasuredMetric::TrainLoss => {
                    "nats per token"
                }
                MeasuredMetric::BitsPerByte => "bits per byte",
                MeasuredMetric::TokS => "tokens per second",
                MeasuredMetric::Task(figure) => figure.unit,
                MeasuredMetric::Score { score, .. } => score.figure.unit,
            },
        }
    }

    /// Returns which values are better.
    pub fn direction(&self) -> Direction {
        match self {
            Self::Final { metric, .. } if metric.is_higher_better() => Direction::HigherIsBetter,
            _ => Direction::LowerIsBetter,
        }
    }

    /// Returns how two values are compared: losses by their difference, speed, perplexity and the cost of
    /// training by their ratio.
    pub fn scale(&self) -> Scale {
        match self {
            Self::Final { metric, .. } if metric.figure().is_some_and(|figure| figure.unit == PERPLEXITY) => {
                Scale::Ratio
            }
            Self::Final { metric: MeasuredMetric::TokS, .. } | Self::Until { .. } => Scale::Ratio,
            Self::Final { .. } | Self::LossCurves => Scale::Difference,
        }
    }

    /// Returns the smallest difference that matters, unless the user sets another: 0.01 nats per token for a
    /// loss, 0.005 bits per byte, a hundredth for a speed. `None` for the cost of training, which is compared
    /// by ranks and so has no size.
    pub fn default_min_effect(&self) -> Option<f64> {
        match self {
            Self::Until { .. } | Self::LossCurves => None,
            Self::Final { metric: MeasuredMetric::BitsPerByte, .. } => Some(0.005),
            Self::Final { metric, .. } => Some(metric.figure().map_or(0.01, |figure| figure.min_effect)),
        }
    }

    /// Returns true if the measure depends on wall time and so on what else the machine does. Such runs take
    /// turns.
    pub fn is_timed(&self) -> bool {
        matches!(
            self,
            Self::Final { metric: MeasuredMetric::TokS, .. } | Self::Until { clock: Clock::Seconds, .. }
        )
    }

    /// Returns true if a value is the share of tokens or items that something is true of. Values of few are
    /// often equal.
    pub fn is_share(&self) -> bool {
        let has_no_unit = |metric: &MeasuredMetric| metric.figure().is_some_and(|one| one.unit.is_empty());
        matches!(self, Self::Final { metric, .. } if has_no_unit(metric))
    }

    /// Returns true if this is the steady-state speed.
    pub fn is_speed(&self) -> bool {
        self.metric() == MeasuredMetric::TokS
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LossCurves => return f.write_str(LOSS_CURVES),
            Self::Until { clock, .. } => write!(f, "{}_until:", clock.as_str())?,
            Self::Final { .. } => {}
        }
        match (self.metric(), self.part()) {
            (MeasuredMetric::Score { score, is_average }, Some(task)) => {
                write!(f, "{}", ScoreColumn { task, figure: score.figure.name, is_average })?;
            }
            (metric, Some(part)) => write!(f, "{}/{part}", metric.as_str())?,
            (metric, None) => f.write_str(metric.as_str())?,
        }
        match self {
            Self::Final { last: Some(count), .. } => write!(f, ":last{count}"),
            Self::Final { last: None, .. } | Self::LossCurves => Ok(()),
            Self::Until { target, .. } => write!(f, "={target}"),
        }
    }
}

impl From<Measure> for String {
    fn from(measure: Measure) -> Self {
        measure.to_string()
    }
}

impl TryFrom<String> for Measure {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Measure {
    /// The reason, and what may be written instead.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        match text.split_once("_until:") {
            Some((clock, rest)) => until(text, clock, rest),
            None if text == LOSS_CURVES => Ok(Self::LossCurves),
            None => final_value(text),
        }
    }
}

/// Parses a list such as `val_loss,bits_per_byte`, in which each measure may occur once.
///
/// # Errors
/// The reason why the first invalid measure is wrong.
pub fn parse_list(text: &str) -> Result<Vec<Measure>, String> {
    let mut measures: Vec<Measure> = Vec::new();
    for part in text.split(',') {
        let measure: Measure = part.parse()?;
        if measure == Measure::LossCurves {
            return Err(format!("{measure} is judged in every comparison of speed; leave it out"));
        }
        if measures.contains(&measure) {
            return Err(format!("{measure} is named twice"));
        }
        measures.push(measure);
    }
    Ok(measures)
}

/// Parses `METRIC[/SET][:lastK]`.
fn final_value(text: &str) -> Result<Measure, String> {
    let (named, last) = match text.split_once(':') {
        Some((named, last)) => (named, Some(averaged(text, last)?)),
        None => (text, None),
    };
    let (metric, set) = metric_and_set(text, named)?;
    if last.is_some() && metric == MeasuredMetric::TokS {
        return Err(format!(
            "`{text}`: tok_s is the median over the steady state, so it has no last values; write tok_s"
        ));
    }
    Ok(Measure::Final { metric, set, last })
}

/// Parses `lastK`.
fn averaged(text: &str, last: &str) -> Result<usize, String> {
    let count = last.strip_prefix("last").and_then(|count| count.parse::<usize>().ok());
    count.filter(|count| (1..=MAX_AVERAGED).contains(count)).ok_or_else(|| {
        format!("`{text}`: after the colon, write how many last values to average, such as val_loss:last5")
    })
}

/// Parses `METRIC[/SET]=TARGET` after a clock.
fn until(text: &str, clock: &str, rest: &str) -> Result<Measure, String> {
    let known = Clock::ALL.iter().copied().find(|known| known.as_str() == clock);
    let clock = known.ok_or_else(|| {
        let meant = nearest(clock, Clock::ALL.iter().map(|known| known.as_str()));
        let hint = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}_until?"));
        format!("`{text}`: `{clock}` is not a clock: use steps, tokens or seconds{hint}")
    })?;
    let Some((named, target)) = rest.split_once('=') else {
        return Err(format!("`{text}` has no target: write {}_until:val_loss=1.2", clock.as_str()));
    };
    let (metric, set) = metric_and_set(text, named)?;
    if !metric.has_evaluations() {
        return Err(format!(
            "`{text}`: a target needs a metric of held-out text or of a task, such as val_loss, ema_val_loss or bits_per_byte, not {}",
            metric.as_str()
        ));
    }
    let target = target.trim().parse::<f64>().ok().filter(|target| target.is_finite() && *target > 0.0);
    let target = target.ok_or_else(|| format!("`{text}`: a target is a number above 0, such as 1.2"))?;
    Ok(Measure::Until { clock, metric, set, target })
}

/// Parses `TASK/FIGURE`, or the name of a task that xrun brings, for the figure that stands for it. Returns
/// the metric and the task.
fn score(named: &str) -> Option<(MeasuredMetric, Option<String>)> {
    let headline = || Some(format!("{named}/{}", tasks::find(named).ok()?.scoring.metric.word()));
    let column = if named.contains('/') { named.to_owned() } else { headline()? };
    let parsed = ScoreColumn::parse(&column)?;
    let metric = MeasuredMetric::Score { score: parsed.score_figure()?, is_average: parsed.is_average };
    Some((metric, Some(parsed.task.to_owned())))
}

/// Parses `METRIC[/SET]`.
fn metric_and_set(text: &str, named: &str) -> Result<(MeasuredMetric, Option<String>), String> {
    let (name, set) = match named.split_once('/') {
        Some((name, set)) => (name, Some(set)),
        None => (named, None),
    };
    let known = MeasuredMetric::ALL.into_iter().find(|metric| metric.as_str() == name);
    let known = known.or_else(|| task_figure(name).map(MeasuredMetric::Task));
    if let (None, Some(score)) = (known, score(named)) {
        return Ok(score);
    }
    let metric = known.ok_or_else(|| {
        let names = MeasuredMetric::ALL.map(MeasuredMetric::as_str);
        let hint = nearest(name, names).map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
        format!(
            "`{name}` is not a measure: choose from {}, or name a task such as hellaswag, or TASK/FIGURE for one of your \
             own{hint}",
            names.join(", ")
        )
    })?;
    if set.is_some() && !metric.is_held_out() && metric != MeasuredMetric::TrainLoss {
        return Err(format!(
            "`{text}`: {} is not measured on held-out text, so it has no sets",
            metric.as_str()
        ));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if let Some(set) = set.filter(|set| set.is_empty() || !set.chars().all(plain)) {
        let (what, keys) = match metric.is_held_out() {
            true => ("held-out set", "validation.sets"),
            false => ("source", "data.sources"),
        };
        return Err(format!("`{text}`: `{set}` cannot name a {what}: use a key of [{keys}]"));
    }
    Ok((metric, set.map(str::to_owned)))
}
