//! The trait of optimizers, their entry in the registry, and the tensors of an update.

use super::ema;
use super::hyperparameters::{Hyperparameter, Values};
use crate::error::Result;
use crate::ir::{Builder, Destination, Mode, OptimizerSlot, Precision, TensorId};
use std::fmt::Debug;
use std::sync::Arc;

/// An optimizer as recipes choose it.
#[derive(Debug)]
pub struct Entry {
    /// Its name in recipes.
    pub name: &'static str,
    /// The keys of `[optimizer]` that it has beside the name and the learning rate.
    pub hyperparameters: &'static [Hyperparameter],
    /// Makes the optimizer from the values of all its hyperparameters.
    pub build: fn(&Values) -> Arc<dyn Optimizer>,
}

/// An update rule with its hyperparameters.
pub trait Optimizer: Debug + Send + Sync {
    /// Tensors that it keeps for every parameter. The order is that of the buffers of the state, of the
    /// update's outputs and of checkpoints.
    fn slots(&self, precision: Precision) -> Vec<OptimizerSlot>;

    /// Describes the slots in plain words, such as `two moments`; empty without slots.
    fn slots_in_words(&self) -> &'static str;

    /// Returns the number of columns of the schedule table.
    fn schedule_width(&self) -> usize;

    /// Returns the row of the schedule table for `step` (from 1) at the learning rate `lr`, computed in f64:
    /// [`Optimizer::schedule_width`] numbers.
    fn schedule_row(&self, lr: f64, step: u64) -> Vec<f64>;

    /// Records the update of all parameters at the end of a step.
    ///
    /// # Errors
    /// When an op refuses the shapes or formats.
    fn record(&self, b: &mut Builder, update: &Update) -> Result<()>;
}

/// The tensors of an update, all in the state.
#[derive(Clone, Debug)]
pub struct Update {
    /// Gradients of all parameters, `[n]` in the master format. They are not clipped yet.
    pub grads: TensorId,
    /// The schedule table, `[steps + 1, schedule_width]` in the master format; row 0 is not used.
    pub schedule: TensorId,
    /// The step, `[1]` u32, from 1: the row of the table.
    pub step: TensorId,
    /// The factor by which gradients are to be multiplied (clipping by the global norm), `[1]` in the master
    /// format.
    pub clip: TensorId,
    /// The flag of a step that was not finite, `[1]` u32: where it is not zero nothing may change.
    pub bad: TensorId,
    /// Masters of all parameters, `[n]`.
    pub params: TensorId,
    /// The optimizer's slots, `[n]` each, in the order of [`Optimizer::slots`].
    pub slots: Vec<TensorId>,
    /// The rounded copy of the masters that products read, `[n]`; `None` where products read the masters.
    pub compute_copy: Option<TensorId>,
}

impl Update {
    /// Looks up the tensors in the state of the program that is being recorded.
    ///
    /// # Errors
    /// When the state was not laid out for training.
    pub fn from_state(b: &mut Builder) -> Result<Self> {
        let state = Arc::clone(&b.program().state);
        let slots = state.optimizer_slots.iter().filter(|slot| slot.buffer != ema::BUFFER);
        let slots = slots.map(|slot| b.state(&format!("{}.flat", slot.buffer)));
        let slots = slots.collect::<Result<_>>()?;
        let compute_copy =
            if state.precision.has_compute_copy() { Some(b.state("compute_copy.flat")?) } else { None };
        Ok(Self {
            grads: b.state("grads.flat")?,
            schedule: b.state("control.schedule")?,
            step: b.state("control.step")?,
            clip: b.state("control.clip")?,
            bad: b.state("control.bad")?,
            params: b.state("params.flat")?,
            slots,
            compute_copy,
        })
    }

    /// Returns the inputs of an op that updates everything at once: grads, schedule, step, clip, bad.
    pub fn inputs(&self) -> [TensorId; 5] {
        [self.grads, self.schedule, self.step, self.clip, self.bad]
    }

    /// Returns the outputs of such an op, updated in place: masters, slots, and the compute copy where there
    /// is one.
    pub fn outputs(&self) -> Vec<Destination> {
        let tensors = std::iter::once(self.params).chain(self.slots.iter().copied()).chain(self.compute_copy);
        tensors.map(|tensor| Destination::Into(tensor, Mode::Add)).collect()
    }
}
