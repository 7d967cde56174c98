//! AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as `torch.optim.AdamW` computes it.

use super::hyperparameters::{Form, Hyperparameter, Value};
use super::optimizer::{Entry, Optimizer, Rates, Update};
use crate::error::Result;
use crate::ir::{Builder, OptimizerSlot, Precision};
use crate::ops::adamw::{self, SCHEDULE_WIDTH, schedule_row};
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

pub(super) const ENTRY: Entry = Entry {
    name: "adamw",
    hyperparameters: &[
        Hyperparameter {
            name: "betas",
            form: Form::Pair(Included(0.0), Excluded(1.0)),
            default: Value::Pair([0.9, 0.95]),
            meaning: "Decay rates of the first and the second moment.",
            example: "[0.9, 0.999]",
            aliases: &[],
        },
        Hyperparameter {
            name: "eps",
            form: Form::Number(Excluded(0.0), Included(1.0)),
            default: Value::Number(1e-8),
            meaning: "Added to the root of the second moment.",
            example: "1e-6",
            aliases: &["adam_epsilon"],
        },
        Hyperparameter {
            name: "weight_decay",
            form: Form::Number(Included(0.0), Included(10.0)),
            default: Value::Number(0.1),
            meaning: "Decoupled weight decay, relative to what `decay` says; spares vectors.",
            example: "0.01",
            aliases: &[],
        },
    ],
    decoupled_decay: true,
    elsewhere: None,
    build: |values| {
        let [beta1, beta2] = values.pair("betas");
        let (eps, weight_decay) = (values.number("eps"), values.number("weight_decay"));
        Arc::new(AdamW { beta1, beta2, eps, weight_decay })
    },
};

/// AdamW with its hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment per step.
    pub beta1: f64,
    /// Decay of the second moment per step.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of matrices: they are multiplied by `1 − lr·weight_decay`, or if it is
    /// independent of the peak by `1 − (lr / peak)·weight_decay`.
    pub weight_decay: f64,
}

impl Optimizer for AdamW {
    fn slots(&self, precision: Precision) -> Vec<OptimizerSlot> {
        let moment = |buffer, checkpoint_prefix| OptimizerSlot {
            buffer,
            checkpoint_prefix,
            dtype: precision.master,
            initial: 0.0,
        };
        vec![moment("m", "adam.m."), moment("v", "adam.v.")]
    }

    fn slots_in_words(&self) -> &'static str {
        "two moments"
    }

    fn schedule_width(&self) -> usize {
        SCHEDULE_WIDTH
    }

    fn schedule_row(&self, rates: Rates, step: u64) -> Vec<f64> {
        schedule_row(rates.lr, rates.decay * self.weight_decay, (self.beta1, self.beta2), step).to_vec()
    }

    fn record(&self, b: &mut Builder, update: &Update) -> Result<()> {
        let op = adamw::AdamW {
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            segments: update.segments.clone(),
            precision: b.program().state.precision,
        };
        b.emit_into("update", Arc::new(op), &update.inputs(), &update.outputs())?;
        Ok(())
    }
}
