//! The value of a measure in a stored run.

use super::series::{self, SeriesValue};
use super::{Clock, Measure, MeasuredMetric};
use crate::error::{Error, Result};
use crate::metrics::{HeldOutColumn, ScoreColumn, source_column};
use crate::results::folder::{METRICS, read_summary};
use crate::results::held_out::MAIN_SET;
use crate::results::losses::SmoothedLoss;
use crate::results::{Status, Summary, stored};
use crate::statistics::mean;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The value of a measure in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasureValue {
    /// A finite value in the measure's unit.
    Value(f64),
    /// The target was not reached. Holds what training had taken when the run ended, which is a lower bound.
    NeverReached(f64),
    /// The run diverged: its loss or gradient became NaN or infinite. It would do so again with the same
    /// seed.
    Diverged,
    /// There is no value, for this reason.
    Missing(String),
}

impl MeasureValue {
    /// Returns the value, if there is one.
    pub fn value(&self) -> Option<f64> {
        match self {
            Self::Value(value) => Some(*value),
            _ => None,
        }
    }
}

/// A stored run to take measures from.
#[derive(Debug)]
pub struct MeasuredRun {
    folder: PathBuf,
    summary: Summary,
}

impl MeasuredRun {
    /// Reads the summary of a run.
    ///
    /// # Errors
    /// If the summary cannot be read.
    pub fn open(folder: &Path) -> Result<Self> {
        Ok(Self { folder: folder.to_owned(), summary: read_summary(folder)? })
    }

    /// Returns true if the run ended and its rows reach the last step in its summary.
    pub fn is_complete(&self) -> bool {
        let last = || series::column(&self.folder, "loss").ok()??.last().map(|last| last.step);
        match self.summary.status {
            // A run that diverged in its first step has no rows.
            Status::Ok | Status::Diverged => last().unwrap_or(0) == self.summary.steps,
            _ => false,
        }
    }

    /// Returns [`rows_hash`] of the run.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn metrics_hash(&self) -> Result<String> {
        rows_hash(&self.folder)
    }

    /// Returns the run's summary.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Returns the energy that the run's GPUs used, in joules; `None` if it was not measured.
    pub fn joules(&self) -> Option<f64> {
        series::joules(&self.folder).ok().flatten()
    }

    /// Returns the wall time of all training steps, in seconds; `None` if `timing.csv` cannot be read.
    pub fn training_seconds(&self) -> Option<f64> {
        series::training_seconds(&self.folder, self.summary.steps).ok()
    }

    /// Returns the value of a measure. If the run did not end well or a file cannot be read, the value is
    /// missing and carries the reason.
    pub fn measure(&self, measure: &Measure) -> MeasureValue {
        match self.summary.status {
            Status::Diverged => return MeasureValue::Diverged,
            Status::Ok => {}
            status => return MeasureValue::Missing(format!("the run is {}", status.as_str())),
        }
        let found = match measure {
            Measure::Final { metric: MeasuredMetric::TokS, .. } => self.speed(),
            Measure::Final { metric: MeasuredMetric::TrainLoss, set: Some(source), last } => {
                self.source_loss(source, *last)
            }
            Measure::Final { metric, set, last } => self.final_value(*metric, set.as_deref(), *last),
            Measure::Until { clock, metric, set, target } => {
                self.until(*clock, *metric, set.as_deref(), *target)
            }
            Measure::LossCurves => {
                Err(Error::failed("loss curves are compared between runs, not measured in one"))
            }
        };
        found.unwrap_or_else(|error| MeasureValue::Missing(error.message().to_owned()))
    }

    fn speed(&self) -> Result<MeasureValue> {
        let gpu = self.summary.gpu.as_ref();
        if let Some(gpu) = gpu.filter(|gpu| gpu.contended == Some(true)) {
            let because = gpu.contended_because.as_deref().unwrap_or("another process used the GPU");
            return Ok(MeasureValue::Missing(format!("times are not comparable: {because}")));
        }
        if self.summary.steady_state.as_ref().is_some_and(|steady| steady.settled == Some(false)) {
            return Ok(MeasureValue::Missing("its step time never settled".to_owned()));
        }
        let speed = self.summary.tok_s.filter(|speed| speed.is_finite() && *speed > 0.0);
        let why = "no steady state: the run is too short, or its step time never settled";
        Ok(speed.map_or_else(|| MeasureValue::Missing(why.to_owned()), MeasureValue::Value))
    }

    fn final_value(
        &self,
        metric: MeasuredMetric,
        set: Option<&str>,
        last: Option<usize>,
    ) -> Result<MeasureValue> {
        let mut losses = self.losses(metric, set)?;
        let factor = self.factor(metric, set)?;
        let count = match (metric, last) {
            // The same window as for the training loss in the summary.
            (MeasuredMetric::TrainLoss, None) => {
                losses = self.with_losses_before(losses);
                SmoothedLoss::window(losses.last().map_or(0, |loss| loss.step as usize))
            }
            (_, last) => last.unwrap_or(1),
        };
        let Some(from) = losses.len().checked_sub(count) else {
            let what = if metric == MeasuredMetric::TrainLoss { "steps" } else { "evaluations" };
            return Ok(MeasureValue::Missing(format!(
                "the run has {} {what}, and {count} are averaged",
                losses.len()
            )));
        };
        let averaged = &losses[from..];
        check_finite(averaged)?;
        let mean = averaged.iter().map(|loss| f64::from(loss.value)).sum::<f64>() / count as f64;
        Ok(MeasureValue::Value(mean * factor))
    }

    fn until(
        &self,
        clock: Clock,
        metric: MeasuredMetric,
        set: Option<&str>,
        target: f64,
    ) -> Result<MeasureValue> {
        let losses = self.losses(metric, set)?;
        let factor = self.factor(metric, set)?;
        let is_higher = metric.is_higher_better();
        let reaches = |value: f64| if is_higher { value >= target } else { value <= target };
        let reached = losses.iter().position(|loss| reaches(f64::from(loss.value) * factor));
        // Only values before the target count. A later one need not be finite.
        check_finite(&losses[..reached.unwrap_or(losses.len())])?;
        let at = match reached {
            Some(at) => losses[at],
            None => SeriesValue {
                step: self.summary.steps,
                tokens: self.summary.tokens_seen,
                value: f32::INFINITY,
            },
        };
        let taken = match clock {
            Clock::Steps => at.step as f64,
            Clock::Tokens => at.tokens as f64,
            Clock::Seconds => series::training_seconds(&self.folder, at.step)?,
        };
        Ok(if reached.is_some() { MeasureValue::Value(taken) } else { MeasureValue::NeverReached(taken) })
    }

    /// Returns the losses behind a metric, in nats per token. There is at least one.
    fn losses(&self, metric: MeasuredMetric, set: Option<&str>) -> Result<Vec<SeriesValue>> {
        let column = match (metric, set) {
            (MeasuredMetric::TrainLoss, _) => "loss".to_owned(),
            (MeasuredMetric::Score { score, is_average }, Some(task)) => {
                ScoreColumn { task, figure: score.figure.name, is_average }.to_string()
            }
            (metric, set) => {
                let figure = if let MeasuredMetric::Task(figure) = metric { figure.name } else { "val_loss" };
                let is_average = metric == MeasuredMetric::EmaValLoss;
                HeldOutColumn { figure, set: set.unwrap_or(MAIN_SET), is_average }.to_string()
            }
        };
        let values = series::column(&self.folder, &column)?
            .ok_or_else(|| Error::failed(format!("{METRICS} has no column {column}")))?;
        let complete = metric != MeasuredMetric::TrainLoss
            || values.last().is_some_and(|last| last.step == self.summary.steps);
        match values.is_empty() || !complete {
            true => Err(Error::failed(format!("{METRICS} lacks rows of {column}: rows were lost"))),
            false => Ok(values),
        }
    }

    /// Returns the mean training loss on a source over the `last` steps, or over those of the smoothed loss.
    /// Steps without a sequence of the source are left out.
    fn source_loss(&self, source: &str, last: Option<usize>) -> Result<MeasureValue> {
        let losses = self.losses(MeasuredMetric::TrainLoss, None)?;
        let column = source_column(source);
        let own = series::column(&self.folder, &column)?
            .ok_or_else(|| Error::failed(format!("{METRICS} has no column {column}")))?;
        check_finite(&own)?;
        let end = losses.last().map_or(0, |loss| loss.step);
        let count = last.unwrap_or_else(|| SmoothedLoss::window(usize::try_from(end).unwrap_or(usize::MAX)));
        let is_averaged = |step: u64| step <= end && end - step < count as u64;
        let before = self.summary.source_losses.get(source).filter(|_| last.is_none());
        let before = before.map_or(&[][..], |losses| &losses.losses_before);
        let first = losses.first().map_or(0, |loss| loss.step).saturating_sub(before.len() as u64);
        let before = (first..).zip(before).filter_map(|(step, loss)| Some((step, (*loss)?)));
        let all = before.chain(own.iter().map(|loss| (loss.step, loss.value)));
        let averaged: Vec<f64> =
            all.filter(|(step, _)| is_averaged(*step)).map(|(_, loss)| loss.into()).collect();
        Ok(match averaged.is_empty() {
            true => MeasureValue::Missing(format!("no sequence of {source} is in the last {count} steps")),
            false => MeasureValue::Value(mean(&averaged)),
        })
    }

    /// Adds the losses of the parent's last steps to those of a fork.
    fn with_losses_before(&self, own: Vec<SeriesValue>) -> Vec<SeriesValue> {
        let before = &self.summary.losses_before;
        let first = own.first().map_or(0, |loss| loss.step).saturating_sub(before.len() as u64);
        let value = |(step, loss): (u64, &Option<f32>)| SeriesValue {
            step,
            tokens: 0,
            value: loss.unwrap_or(f32::NAN),
        };
        (first..).zip(before).map(value).chain(own).collect()
    }

    /// Returns the factor that turns a loss in nats per token into the metric: 1, or the one for bits per
    /// byte on this held-out set.
    fn factor(&self, metric: MeasuredMetric, set: Option<&str>) -> Result<f64> {
        if metric != MeasuredMetric::BitsPerByte {
            return Ok(1.0);
        }
        let held_out = self.summary.held_out.get(set.unwrap_or(MAIN_SET));
        held_out.and_then(|held_out| held_out.in_bits_per_byte(1.0)).ok_or_else(|| {
            let of = set.map_or_else(|| "the held-out text".to_owned(), |set| format!("the set {set}"));
            Error::failed(format!("the bytes of {of} are not known, so there are no bits per byte"))
        })
    }
}

/// Returns the BLAKE3 of a run's `metrics.csv`, in hexadecimal. Equal hashes mean equal bits.
///
/// # Errors
/// If the file cannot be read.
pub fn rows_hash(run: &Path) -> Result<String> {
    Ok(blake3::hash(&stored::read(&run.join(METRICS))?).to_hex().to_string())
}

/// Checks that losses are finite, as they must be in a run that did not diverge.
///
/// # Errors
/// If a loss is NaN or infinite; the message names the first.
fn check_finite(losses: &[SeriesValue]) -> Result<()> {
    match losses.iter().find(|loss| !loss.value.is_finite()) {
        Some(loss) => {
            Err(Error::failed(format!("the loss of step {} in {METRICS} is {}", loss.step, loss.value)))
        }
        None => Ok(()),
    }
}
