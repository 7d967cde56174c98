//! SGD with momentum, as `torch.optim.SGD` computes it: without dampening, and with coupled weight decay.

use super::hyperparameters::{Form, Hyperparameter, Value};
use super::optimizer::{Entry, Optimizer, Rates, Update};
use crate::error::Result;
use crate::ir::{Builder, OptimizerSlot, Precision};
use crate::ops::sgd;
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

pub(super) const ENTRY: Entry = Entry {
    name: "sgd",
    hyperparameters: &[
        Hyperparameter {
            name: "momentum",
            form: Form::Number(Included(0.0), Excluded(1.0)),
            default: Value::Number(0.9),
            meaning: "Fraction of the summed past gradients that each step keeps; 0 keeps none.",
            example: "0.95",
            aliases: &[],
        },
        Hyperparameter {
            name: "weight_decay",
            form: Form::Number(Included(0.0), Included(10.0)),
            default: Value::Number(0.0),
            meaning: "Coupled weight decay, as in PyTorch: added to the gradient; spares vectors.",
            example: "1e-4",
            aliases: &[],
        },
    ],
    decoupled_decay: false,
    elsewhere: None,
    build: |values| {
        Arc::new(Sgd { momentum: values.number("momentum"), weight_decay: values.number("weight_decay") })
    },
};

/// SGD with its hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Factor of the momentum; with 0 there is none.
    pub momentum: f64,
    /// Factor of a matrix that is added to its gradient.
    pub weight_decay: f64,
}

impl Optimizer for Sgd {
    fn slots(&self, precision: Precision) -> Vec<OptimizerSlot> {
        if self.momentum == 0.0 {
            return Vec::new();
        }
        // PyTorch starts the momentum as the first gradient, which is what a step from zero makes it.
        vec![OptimizerSlot {
            buffer: "momentum",
            checkpoint_prefix: "sgd.momentum.",
            dtype: precision.master,
            initial: 0.0,
        }]
    }

    fn slots_in_words(&self) -> &'static str {
        if self.momentum == 0.0 { "" } else { "momentum" }
    }

    fn schedule_width(&self) -> usize {
        sgd::SCHEDULE_WIDTH
    }

    fn schedule_row(&self, rates: Rates, _step: u64) -> Vec<f64> {
        vec![rates.lr]
    }

    fn record(&self, b: &mut Builder, update: &Update) -> Result<()> {
        let op = sgd::Sgd {
            momentum: self.momentum,
            weight_decay: self.weight_decay,
            segments: update.segments.clone(),
            precision: b.program().state.precision,
        };
        b.emit_into("update", Arc::new(op), &update.inputs(), &update.outputs())?;
        Ok(())
    }
}
