//! The rows of `metrics.csv` and `timing.csv`. Their types are the files' schema, and their columns are
//! entries in the table of metrics.

use super::fp8::FP8_COLUMNS;
use super::held_out::HeldOutColumn;
use super::metric::{Metric, SetPath, Source};
use super::preference::PAIR_COLUMNS;
use super::scores::ScoreColumn;
use super::sources::source_of_column;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Declares a row of a CSV file. A column is `name: type { … }`: its doc comment is its meaning, and the
/// braces hold the non-blank fields of its [`Metric`]. Fields after `and` are not fixed columns.
macro_rules! csv_row {
    (
        $(#[$attribute:meta])*
        pub struct $row:ident {
            $($(#[doc = $line:literal])+ $column:ident: $type:ty { $($field:ident: $value:expr),* $(,)? })*
        }
        $(and { $($(#[$other_attribute:meta])* $other:ident: $other_type:ty),* })?
    ) => {
        $(#[$attribute])*
        pub struct $row {
            $($(#[doc = $line])+ pub $column: $type,)*
            $($($(#[$other_attribute])* pub $other: $other_type,)*)?
        }

        impl $row {
            /// The names of the columns, in file order.
            pub const COLUMNS: &'static [&'static str] = &[$(stringify!($column)),*];

            /// The columns as entries in the table of metrics.
            pub const METRICS: &'static [Metric] = &[$(Metric {
                meaning: concat!($($line),+),
                $($field: $value,)*
                ..Metric::named(stringify!($column))
            }),*];

            /// Returns the number in a column; `None` if it is blank or not a number.
            pub fn number(&self, column: &str) -> Option<f64> {
                match column {
                    $(stringify!($column) => self.$column.number(),)*
                    _ => None,
                }
            }
        }
    };
}

/// A value in a row that may be a number.
trait Number {
    fn number(&self) -> Option<f64> {
        None
    }
}

impl Number for f64 {
    fn number(&self) -> Option<f64> {
        Some(*self)
    }
}

impl Number for f32 {
    fn number(&self) -> Option<f64> {
        Some(f64::from(*self))
    }
}

impl Number for u64 {
    fn number(&self) -> Option<f64> {
        Some(*self as f64)
    }
}

impl Number for Phase {}

impl Number for String {}

impl<T: Number> Number for Option<T> {
    fn number(&self) -> Option<f64> {
        self.as_ref().and_then(Number::number)
    }
}

csv_row! {
    /// A row of `metrics.csv`: what the training computed. Two runs of one recipe write the same bytes.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    pub struct MetricsRow {
        /// optimizer steps done, this one included
        step: u64 {}
        /// tokens trained on so far, over all ranks
        tokens_seen: u64 { unit: "tokens", heading: "tokens", source: Source::Summary("tokens_seen") }
        /// mean cross-entropy of the step's tokens
        loss: f32 {
            unit: "nats/token",
            heading: "loss of the last batch (nats/token)",
            decimals: 4,
            source: Source::Summary("train_loss/final/loss"),
            ledger: Some((2, "loss")),
        }
        /// mean cross-entropy on the held-out text after this step; blank where it was not evaluated
        val_loss: Option<f32> {
            unit: "nats/token",
            heading: "val. loss (nats/token)",
            decimals: 4,
            source: Source::Summary("val_loss/final/loss"),
            compared_as: "val_loss",
            set_path: SetPath::HeldOut("final/loss"),
            ledger: Some((3, "val_loss")),
        }
        /// learning rate of this step
        lr: f64 {}
        /// global L2 norm of the gradient before clipping
        grad_norm: f32 {}
        /// mean over the step's tokens of the z-loss, with its factor; blank without `training.z_loss`
        z_loss: Option<f32> { unit: "nats/token" }
        /// mean over the step's tokens of what label smoothing adds to the cross-entropy; blank without
        /// `training.label_smoothing`
        smoothing_loss: Option<f32> { unit: "nats/token" }
        /// mean cross-entropy of the moving average of the weights on the held-out text; blank without
        /// `ema.evaluate`, and where it was not evaluated
        ema_val_loss: Option<f32> {
            unit: "nats/token",
            heading: "val. loss of the EMA (nats/token)",
            decimals: 4,
            source: Source::Summary("ema_val_loss/final/loss"),
            compared_as: "ema_val_loss",
            set_path: SetPath::HeldOut("ema/final/loss"),
        }
    }
    and {
        /// Figures that only some runs have, by column: of held-out sets ([`HeldOutColumn`]), of the sources
        /// of a mixture ([`source_of_column`]), of tasks ([`ScoreColumn`]), of pairs ([`PAIR_COLUMNS`]), and
        /// of 8-bit floats ([`FP8_COLUMNS`]).
        #[serde(skip)]
        further: BTreeMap<String, f32>
    }
}

impl MetricsRow {
    /// Returns true for a column that some runs' files have after [`MetricsRow::COLUMNS`].
    pub fn is_further_column(column: &str) -> bool {
        let is_known = HeldOutColumn::parse(column).is_some()
            || source_of_column(column).is_some()
            || ScoreColumn::parse(column).is_some()
            || PAIR_COLUMNS.contains(&column)
            || FP8_COLUMNS.contains(&column);
        is_known && !Self::COLUMNS.contains(&column)
    }

    /// Returns the number in any column; `None` if it is blank.
    pub fn value(&self, column: &str) -> Option<f64> {
        self.number(column).or_else(|| self.further.get(column).map(|&value| value.into()))
    }

    /// Returns a figure of a held-out set; `None` if it is blank.
    pub fn figure(&self, column: HeldOutColumn<'_>) -> Option<f32> {
        match (column.figure, column.set, column.is_average) {
            ("val_loss", "", false) => self.val_loss,
            ("val_loss", "", true) => self.ema_val_loss,
            _ => self.further.get(&column.to_string()).copied(),
        }
    }

    /// Sets a figure of a held-out set.
    pub fn set_figure(&mut self, column: HeldOutColumn<'_>, value: f32) {
        match (column.figure, column.set, column.is_average) {
            ("val_loss", "", false) => self.val_loss = Some(value),
            ("val_loss", "", true) => self.ema_val_loss = Some(value),
            _ => _ = self.further.insert(column.to_string(), value),
        }
    }

    /// Returns the losses on further held-out sets, by set name.
    pub fn set_losses(&self) -> BTreeMap<&str, f32> {
        let losses = self.columns().filter(|(column, ..)| column.figure == "val_loss" && !column.is_average);
        losses.map(|(column, _, loss)| (column.set, loss)).collect()
    }

    /// Returns the figures other than losses, by column.
    pub fn other_figures(&self) -> BTreeMap<&str, f32> {
        let others = self.columns().filter(|(column, ..)| column.figure != "val_loss");
        others.map(|(_, name, value)| (name, value)).collect()
    }

    /// Returns the figures of tasks, by column.
    pub fn scores(&self) -> BTreeMap<&str, f32> {
        let columns = self.further.iter().filter(|(column, _)| ScoreColumn::parse(column).is_some());
        columns.map(|(column, &value)| (column.as_str(), value)).collect()
    }

    fn columns(&self) -> impl Iterator<Item = (HeldOutColumn<'_>, &str, f32)> {
        let columns = self.further.iter();
        columns.filter_map(|(name, &value)| Some((HeldOutColumn::parse(name)?, name.as_str(), value)))
    }
}

/// The phase of a run that a row of `timing.csv` measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// A training step among the first `metrics.warmup` steps of this process.
    Warmup,
    /// Any other training step.
    #[default]
    Train,
    /// An evaluation on the held-out text.
    Eval,
    /// Comparing the parameters of all ranks.
    Check,
    /// Writing a checkpoint while training waits.
    Save,
    /// Copying the state for a checkpoint that is then written while training continues.
    Snapshot,
    /// Generating text.
    Sample,
    /// Scoring the model on tasks.
    Tasks,
}

impl Phase {
    /// Returns true for a training step, warm-up or not.
    pub fn is_step(self) -> bool {
        matches!(self, Self::Warmup | Self::Train)
    }
}

csv_row! {
    /// A row of `timing.csv`: what was measured. A missing measurement is blank, never zero.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    pub struct TimingRow {
        /// step that ran, or after which the other phases ran
        step: u64 {}
        /// `warmup` and `train` (training steps), `eval`, `check` (ranks compare their parameters), `save`
        /// (training waits for a checkpoint), `snapshot` (training waits for a copy of the state, which is
        /// then written in the background), `sample`, `tasks` (the model is scored on tasks)
        phase: Phase {}
        /// wall time of the run at the end of the phase; a resumed run continues from its last kept row
        wall_s: f64 {
            unit: "s",
            heading: "wall time (s)",
            decimals: 1,
            source: Source::Summary("wall_s"),
            compared_as: "wall_s",
        }
        /// wall time of the phase, waiting for data included
        step_ms: f64 {
            unit: "ms",
            heading: "ms/step",
            decimals: 2,
            source: Source::SteadyQuantiles,
            compared_as: "step_ms",
            ledger: Some((5, "step_ms")),
        }
        /// part of `step_ms` spent waiting for data
        data_wait_ms: Option<f64> {
            unit: "ms",
            heading: "data wait (ms/step)",
            decimals: 3,
            source: Source::SteadyMedian,
            compared_as: "data_wait_ms",
        }
        /// training throughput over all ranks
        tok_s: Option<f64> {
            unit: "tokens/s",
            heading: "tokens/s",
            source: Source::SteadyQuantiles,
            compared_as: "tok_s",
            ledger: Some((4, "tok_s")),
        }
        /// training throughput per device
        tok_s_per_device: Option<f64> { unit: "tokens/s" }
        /// model arithmetic per second and device
        tflops_per_device: Option<f64> { unit: "TFLOP/s" }
        /// model FLOPs utilization, of the device's peak; blank where the peak is unknown
        mfu_pct: Option<f64> {
            unit: "%",
            heading: "MFU (%)",
            decimals: 1,
            source: Source::SteadyMedian,
            compared_as: "mfu_pct",
            ledger: Some((6, "mfu_pct")),
        }
        /// memory according to the plan
        plan_mem_mib: Option<f64> { unit: "MiB" }
        /// resident memory at the end of the phase
        rss_mib: Option<f64> { unit: "MiB" }
        /// peak resident memory of the process so far
        peak_mem_mib: Option<f64> { unit: "MiB" }
        /// memory requests to the GPU's driver since the previous row
        driver_allocations: Option<u64> {
            heading: "driver allocations per step",
            source: Source::SteadyMedian,
            compared_as: "driver_allocations",
        }
        /// device memory of tensors: the state, and the arena or the most transient tensors alive at once
        gpu_allocated_mib: Option<f64> { unit: "MiB" }
        /// device memory that the process holds from the driver at the end of the phase
        gpu_reserved_mib: Option<f64> { unit: "MiB" }
        /// percentage of the time in which a kernel ran
        gpu_util_pct: Option<f64> {
            unit: "%",
            heading: "GPU busy (%)",
            source: Source::SteadyMedian,
            compared_as: "gpu_util_pct",
        }
        /// mean clock of the SMs
        sm_clock_mhz: Option<f64> { unit: "MHz" }
        /// mean clock of the memory
        mem_clock_mhz: Option<f64> { unit: "MHz" }
        /// mean power of the board
        power_w: Option<f64> { unit: "W" }
        /// highest temperature
        temperature_c: Option<f64> { unit: "°C" }
        /// reasons why clocks were lower than they could be, joined by `+`; blank for none
        throttle: Option<String> {}
        /// hardware FLOPs utilization: like `mfu_pct`, but of the products really run, including
        /// recomputation
        hfu_pct: Option<f64> {
            unit: "%",
            heading: "HFU (%)",
            decimals: 1,
            source: Source::SteadyMedian,
            compared_as: "hfu_pct",
        }
        /// time of the step's collectives on rank 0, waiting for other ranks inside them included
        communication_ms: Option<f64> {
            unit: "ms",
            heading: "collectives (ms/step)",
            decimals: 2,
            source: Source::SteadyMedian,
            compared_as: "communication_ms",
        }
        /// part of `communication_ms` in which the device did nothing else
        exposed_communication_ms: Option<f64> {
            unit: "ms",
            heading: "collectives, exposed (ms/step)",
            decimals: 2,
            source: Source::SteadyMedian,
            compared_as: "exposed_communication_ms",
        }
        /// rank that waited least for others; blank for one rank
        slowest_rank: Option<u64> {}
        /// step of the checkpoint that was being written during this step; blank if none was
        written_step: Option<u64> {}
        /// energy of the GPUs of this host's ranks since the previous row with a value; blank on the CPU,
        /// without a counter, and in the half second after such a row
        energy_j: Option<f64> {
            unit: "J",
            heading: "energy (J)",
            source: Source::Summary("energy_j"),
            compared_as: "energy_j",
        }
        /// `energy_j` per training step, if all rows since the previous value are training steps; otherwise
        /// blank
        j_per_step: Option<f64> {
            unit: "J",
            heading: "J/step",
            decimals: 3,
            source: Source::SteadyMedian,
            compared_as: "j_per_step",
        }
        /// `energy_j` per token that this host's ranks trained on, under the same condition
        j_per_token: Option<f64> {
            unit: "J/token",
            heading: "J/token",
            decimals: 6,
            source: Source::SteadyMedian,
            compared_as: "j_per_token",
        }
    }
}

impl TimingRow {
    /// Creates a row with the values that every phase has; everything else is blank. `wall_s` is in seconds
    /// since the run began, `step_ms` in milliseconds.
    pub fn timed(step: u64, phase: Phase, wall_s: f64, step_ms: f64) -> Self {
        Self { step, phase, wall_s, step_ms, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names under which serde writes a row's fields.
    fn fields(row: &impl Serialize) -> Vec<String> {
        serde_json::to_value(row).unwrap().as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn columns_are_the_field_names_in_order() {
        let further = BTreeMap::from([("val_loss/news".to_owned(), 2.0)]);
        assert_eq!(fields(&MetricsRow { further, ..MetricsRow::default() }), MetricsRow::COLUMNS);
        assert_eq!(fields(&TimingRow::default()), TimingRow::COLUMNS);
    }

    #[test]
    fn numbers_are_read_by_column_and_blanks_are_none() {
        let row = TimingRow {
            driver_allocations: Some(3),
            throttle: Some("thermal".to_owned()),
            ..TimingRow::timed(7, Phase::Train, 0.5, 12.25)
        };
        assert_eq!((row.number("step"), row.number("step_ms")), (Some(7.0), Some(12.25)));
        assert_eq!(row.number("driver_allocations"), Some(3.0));
        for column in ["phase", "throttle", "tok_s", "no such column"] {
            assert_eq!(row.number(column), None, "{column}");
        }
    }
}
