//! Optimizers that treat every element alike: an [`Optimizer`] for any [`Rule`], and the op of its update.

mod cases;
mod rule;
mod update;

pub use rule::{Rule, Scalars, Slot};
pub use update::ElementwiseUpdate;

use super::optimizer::{Optimizer, Rates, Update};
use crate::error::Result;
use crate::ir::{Builder, OptimizerSlot, Precision};
use std::sync::Arc;

/// The optimizer for a rule with its hyperparameters.
#[derive(Clone, Debug)]
pub struct Elementwise<R, const N: usize>(pub R);

impl<R: Rule<N>, const N: usize> Optimizer for Elementwise<R, N> {
    fn slots(&self, precision: Precision) -> Vec<OptimizerSlot> {
        let slot = |Slot { buffer, checkpoint_prefix }| OptimizerSlot {
            buffer,
            checkpoint_prefix,
            dtype: precision.master,
            initial: 0.0,
        };
        R::SLOTS.map(slot).to_vec()
    }

    fn slots_in_words(&self) -> &'static str {
        R::SLOTS_DESCRIPTION
    }

    fn schedule_width(&self) -> usize {
        R::COLUMNS
    }

    fn schedule_row(&self, rates: Rates, step: u64) -> Vec<f64> {
        self.0.schedule_row(rates, step)
    }

    fn record(&self, b: &mut Builder, update: &Update) -> Result<()> {
        let precision = b.program.state.precision;
        let op = ElementwiseUpdate { rule: self.0.clone(), segments: update.segments.clone(), precision };
        b.emit_into("update", Arc::new(op), &update.inputs(), &update.outputs())?;
        Ok(())
    }
}
