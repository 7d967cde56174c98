//! Predicts what a run leaves on disk.

use crate::device::DType;
use crate::ir::SlotGroup;
use crate::model::Programs;
use crate::plan::Plan;
use crate::policy::WeightsOnly;
use serde::Serialize;

/// Bytes per row of `metrics.csv` plus `timing.csv`, as measured on long runs.
const ROW_BYTES: u64 = 64 + 176;

/// Approximate bytes of TensorBoard events per step, without and with GPU measurements.
const EVENT_BYTES: (u64, u64) = (410, 800);

/// Bytes of a run's summary, environment, recipe, tokenizer and log, for a small tokenizer.
const TEXT_BYTES: u64 = 24 << 10;

/// Bytes of a run's plots: six in two themes, as SVG and PNG.
const PICTURE_BYTES: u64 = 560 << 10;

/// Disk space that a run needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// Size of a checkpoint, without its few KiB of manifest.
    pub checkpoint_bytes: u64,
    /// Number of checkpoints that stay.
    pub checkpoints: u64,
    /// Number of these without optimizer state.
    pub weights_only: u64,
    /// Size of a checkpoint without optimizer state.
    pub weights_bytes: u64,
    /// Rows, summary, log, recipe and TensorBoard events, approximately.
    pub text_bytes: u64,
    /// Plots, approximately.
    pub picture_bytes: u64,
    /// What remains when the run has ended.
    pub total_bytes: u64,
    /// The most that is needed at once, since an old checkpoint is removed only after the next is written.
    pub peak_bytes: u64,
}

impl Disk {
    /// Predicts what a run of this plan needs. `seconds` is its predicted time; if it is unknown, checkpoints
    /// by time count as written more often than they are kept. `plots` is true if the run draws plots.
    pub fn new(plan: &Plan, programs: &Programs, seconds: Option<f64>, plots: bool) -> Self {
        let (steps, intervals) = (plan.steps as u64, &plan.intervals);
        let keep = intervals.checkpoint.keep as u64;
        let written = intervals.checkpoints(steps, seconds.unwrap_or(f64::INFINITY));
        let checkpoint_bytes = checkpoint_bytes(programs) as u64;
        let staying = || intervals.staying(steps).filter(|_| keep > 0);
        let best = u64::from(keep > 0 && intervals.checkpoint.keep_best);
        let stays = staying().count() as u64 + best;
        let passing = written.saturating_sub(stays - best);
        let checkpoints = keep.min(passing) + stays;
        let weights_only = match intervals.checkpoint.weights_only {
            WeightsOnly::None => 0,
            WeightsOnly::Kept => {
                staying().filter(|&step| !intervals.saves_state_after(step, steps, false)).count() as u64
                    + best
            }
            WeightsOnly::All => checkpoints,
        };
        let weights_bytes = (weight_bytes(plan.ema.is_some()) * programs.state.trained_count()) as u64;
        let event_bytes = match (intervals.metrics.tensorboard, plan.execution.gpu) {
            (false, _) => 0,
            (true, None) => EVENT_BYTES.0,
            (true, Some(_)) => EVENT_BYTES.1,
        };
        let step_bytes = steps.saturating_mul(ROW_BYTES + event_bytes);
        let text_bytes = step_bytes.saturating_add(TEXT_BYTES);
        let picture_bytes = if plots { PICTURE_BYTES } else { 0 };
        let total_bytes = checkpoint_bytes
            .saturating_mul(checkpoints - weights_only)
            .saturating_add(weights_bytes.saturating_mul(weights_only))
            .saturating_add(text_bytes)
            .saturating_add(picture_bytes);
        let replaced = if keep > 0 && passing > keep { checkpoint_bytes } else { 0 };
        Self {
            checkpoint_bytes,
            checkpoints,
            weights_only,
            weights_bytes,
            text_bytes,
            picture_bytes,
            total_bytes,
            peak_bytes: total_bytes.saturating_add(replaced),
        }
    }
}

/// Returns the bytes per parameter in a checkpoint without optimizer state: the weight and, with `has_ema`,
/// its moving average, in fp32.
pub(super) fn weight_bytes(has_ema: bool) -> usize {
    DType::F32.size() * (1 + usize::from(has_ema))
}

/// Returns the bytes of a checkpoint without its few KiB of manifest: the weights and the optimizer's slots,
/// which are saved in fp32 whatever their format in memory.
pub(super) fn checkpoint_bytes(programs: &Programs) -> usize {
    let state = &programs.state;
    let elements = |&index: &usize| state.params[index].spec.logical_elements();
    let slots = |group: &SlotGroup| group.slots.len() * group.params.iter().map(elements).sum::<usize>();
    DType::F32.size() * (state.trained_count() + state.groups.iter().map(slots).sum::<usize>())
}
