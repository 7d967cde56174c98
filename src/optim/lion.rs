//! Lion: the sign of an interpolated momentum (Chen et al., "Symbolic discovery of optimization algorithms",
//! 2023).

use super::hyperparameters::{Form, Hyperparameter, Value};
use super::optimizer::{Entry, Optimizer, Rates, Update};
use crate::error::Result;
use crate::ir::{Builder, OptimizerSlot, Precision};
use crate::ops::lion;
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

pub(super) const ENTRY: Entry = Entry {
    name: "lion",
    hyperparameters: &[
        Hyperparameter {
            name: "betas",
            form: Form::Pair(Included(0.0), Excluded(1.0)),
            default: Value::Pair([0.9, 0.99]),
            meaning: "Weights of the momentum in the direction of a step, and in the momentum that is kept.",
            example: "[0.95, 0.98]",
            aliases: &[],
        },
        Hyperparameter {
            name: "weight_decay",
            form: Form::Number(Included(0.0), Included(10.0)),
            default: Value::Number(0.1),
            meaning: "Decoupled weight decay, relative to what `decay` says; spares vectors.",
            example: "1.0",
            aliases: &[],
        },
    ],
    decoupled_decay: true,
    elsewhere: None,
    build: |values| {
        let [beta1, beta2] = values.pair("betas");
        Arc::new(Lion { beta1, beta2, weight_decay: values.number("weight_decay") })
    },
};

/// Lion with its hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    /// Weight of the momentum in the direction of a step.
    pub beta1: f64,
    /// Weight of the momentum in the one that is kept.
    pub beta2: f64,
    /// Decoupled weight decay of matrices.
    pub weight_decay: f64,
}

impl Optimizer for Lion {
    fn slots(&self, precision: Precision) -> Vec<OptimizerSlot> {
        vec![OptimizerSlot {
            buffer: "momentum",
            checkpoint_prefix: "lion.momentum.",
            dtype: precision.master,
            initial: 0.0,
        }]
    }

    fn slots_in_words(&self) -> &'static str {
        "momentum"
    }

    fn schedule_width(&self) -> usize {
        lion::SCHEDULE_WIDTH
    }

    fn schedule_row(&self, rates: Rates, _step: u64) -> Vec<f64> {
        vec![1.0 - rates.decay * self.weight_decay, rates.lr]
    }

    fn record(&self, b: &mut Builder, update: &Update) -> Result<()> {
        let op = lion::Lion {
            beta1: self.beta1,
            beta2: self.beta2,
            segments: update.segments.clone(),
            precision: b.program().state.precision,
        };
        b.emit_into("update", Arc::new(op), &update.inputs(), &update.outputs())?;
        Ok(())
    }
}
