//! The exponential moving average of the weights: its slot, the weight of each step, and its ops.

use crate::error::Result;
use crate::ir::{
    Builder, ControlSlot, Destination, FlatBuffer, GroupRequest, Mode, OptimizerSlot, Precision, SlotName,
    State,
};
use crate::ops::ema::Ema;
use crate::ops::segments::Segments;
use crate::ops::swap_ema::SwapEma;
use std::sync::Arc;

/// The state buffer that holds the average of all parameters.
const BUFFER: &str = "ema";
const AVERAGE: FlatBuffer = FlatBuffer::Optimizer { slot: BUFFER, group: String::new() };

/// Prefix of the average's tensors in checkpoints.
pub const CHECKPOINT_PREFIX: &str = "ema.";

/// An exponential moving average of the weights, which training does not read.
///
/// After step t it is the weighted mean of the weights θ_1 to θ_t after each step, where θ_i has the weight
/// `decay^(t − i)`. Dividing by the sum of these weights keeps the initial weights out of the mean, like the
/// bias correction of Adam's moments (Kingma and Ba, 2015, section 3). In recursive form: `ema_t = ema_(t−1)
/// + w_t·(θ_t − ema_(t−1))` with `w_t = (1 − decay) / (1 − decay^t)`, which falls from 1 at the first step
/// toward `1 − decay`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightEma {
    /// Fraction of the previous average that a step keeps in the long run; between 0 and 1.
    pub decay: f64,
    /// If true, evaluations also evaluate the average.
    pub evaluates: bool,
}

impl WeightEma {
    /// Returns the slot of the average.
    pub fn slot(self, precision: Precision) -> OptimizerSlot {
        OptimizerSlot {
            buffer: BUFFER,
            checkpoint_prefix: CHECKPOINT_PREFIX,
            dtype: precision.master,
            // Irrelevant: the first step has weight 1.
            initial: 0.0,
        }
    }

    /// Returns the group of all of a model's parameters, with the average as its only slot.
    pub fn request(self, precision: Precision, params: usize) -> GroupRequest {
        GroupRequest {
            params: (0..params).collect(),
            slots: vec![self.slot(precision)],
            ..GroupRequest::default()
        }
    }

    /// Returns each step's weight in the average, for steps up to `steps`, computed in f64. The first of the
    /// `steps + 1` numbers is not used.
    pub fn weights(self, steps: usize) -> Vec<f64> {
        // `sum` is 1 + decay + decay² + …, the reciprocal of (1 − decay) / (1 − decay^t). It is built from
        // operations that round the same on every platform.
        let mut sum = 0.0;
        let step_weight = |_| {
            sum = 1.0 + self.decay * sum;
            1.0 / sum
        };
        std::iter::once(0.0).chain((1..=steps).map(step_weight)).collect()
    }

    /// Records the update of the average, to follow the update of the weights.
    ///
    /// # Errors
    /// If the state has no average.
    pub fn record(self, b: &mut Builder) -> Result<()> {
        let state = Arc::clone(&b.program.state);
        let op = Ema { segments: all_segments(&state), precision: state.precision };
        let control = [ControlSlot::EmaWeights, ControlSlot::Step, ControlSlot::Bad].map(SlotName::Control);
        let inputs = std::iter::once(FlatBuffer::Params.into()).chain(control).map(|name| b.state(name));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let average = b.state(AVERAGE)?;
        b.emit_into("ema", Arc::new(op), &inputs, &[Destination::Into(average, Mode::Add)])?;
        Ok(())
    }

    /// Records a swap of the weights with their average.
    ///
    /// # Errors
    /// If the state has no average.
    pub fn record_swap(self, b: &mut Builder) -> Result<()> {
        let state = Arc::clone(&b.program.state);
        let op = SwapEma { segments: all_segments(&state), precision: state.precision };
        let mut outputs = vec![b.state(FlatBuffer::Params)?, b.state(AVERAGE)?];
        if state.precision.has_compute_copy() {
            outputs.push(b.state(FlatBuffer::ComputeCopy)?);
        }
        let into: Vec<_> = outputs.into_iter().map(|tensor| Destination::Into(tensor, Mode::Add)).collect();
        b.emit_into("swap", Arc::new(op), &[], &into)?;
        Ok(())
    }
}

/// Returns the ranges of the flat buffers that each rank averages or rounds: all, or only those it owns.
pub fn all_segments(state: &State) -> Segments {
    let all = [(0..state.flat_len, false)];
    match &state.shards {
        Some(shards) => Segments::new(&all, shards, state.master_shards(), state.flat_len),
        None => Segments::whole(&all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_match_a_corrected_average() {
        for decay in [1e-3, 0.5, 0.9, 0.999, 0.99999] {
            let weights = WeightEma { decay, evaluates: false }.weights(5000);
            assert_eq!((weights.len(), weights[1]), (5001, 1.0));
            for (t, weight) in weights.iter().enumerate().skip(1) {
                let corrected = (1.0 - decay) / -(decay.ln() * t as f64).exp_m1();
                assert!((weight / corrected - 1.0).abs() < 1e-9, "{decay}, step {t}: {weight}, {corrected}");
            }
        }
    }

    #[test]
    fn the_average_is_a_weighted_mean_of_all_steps() {
        let (decay, values) = (0.75_f64, [3.0, -1.0, 4.0, 1.0, 5.0]);
        let weights = WeightEma { decay, evaluates: false }.weights(values.len());
        let steps = values.iter().zip(&weights[1..]);
        let average = steps.fold(1e6, |average, (value, weight)| average + weight * (value - average));
        let shares: Vec<f64> = (0..values.len()).rev().map(|age| decay.powi(age as i32)).collect();
        let mean: f64 = values.iter().zip(&shares).map(|(value, share)| value * share).sum::<f64>()
            / shares.iter().sum::<f64>();
        assert!((average - mean).abs() < 1e-9, "{average}, {mean}");
    }
}
