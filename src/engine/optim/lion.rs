//! Lion: the sign of an interpolated momentum (Chen et al., "Symbolic discovery of optimization algorithms",
//! 2023, Algorithm 2), in the order of operations of the authors' PyTorch code (google/automl,
//! lion/lion_pytorch.py).

use super::elementwise::{Elementwise, ElementwiseUpdate, Rule, Scalars, Slot};
use super::hyperparameters::{Form, Hyperparameter, Value};
use super::optimizer::{Entry, Rates};
use super::role::GroupRole;
use super::width::{Power, WidthRule};
use crate::device::Real;
use crate::ir::{Fill, OpType};
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

pub(super) const ENTRY: Entry = Entry {
    name: "lion",
    hyperparameters: &[
        Hyperparameter {
            name: "betas",
            form: Form::Pair(Included(0.0), Excluded(1.0)),
            default: Value::Pair([0.9, 0.99]),
            meaning: "Weights of the old momentum in the direction of a step, and in the new momentum.",
            default_is_implied: false,
            example: "[0.95, 0.98]",
            aliases: &[],
        },
        Hyperparameter {
            name: "weight_decay",
            form: Form::Number(Included(0.0), Included(10.0)),
            default: Value::Number(0.1),
            meaning: "Decoupled weight decay, relative to the quantity in `decay`; not applied to vectors.",
            default_is_implied: false,
            example: "1.0",
            aliases: &[],
        },
    ],
    decoupled_decay: true,
    fallback: None,
    width_rule: |_, role| match role {
        GroupRole::Matrix => Some(WidthRule::new(Power::Inverse, Power::Zero, Power::One)),
        _ => Some(WidthRule::UNCHANGED),
    },
    build: |values| {
        let [beta1, beta2] = values.pair("betas");
        Arc::new(Elementwise(Lion { beta1, beta2, weight_decay: values.number("weight_decay") }))
    },
    ops: &[OpType::new::<ElementwiseUpdate<Lion, 1>>()],
};

/// Lion with its hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    /// Weight of the momentum in the direction of a step.
    pub beta1: f64,
    /// Weight of the momentum in the momentum that is kept.
    pub beta2: f64,
    /// Decoupled weight decay of matrices.
    pub weight_decay: f64,
}

impl Rule<1> for Lion {
    const NAME: &'static str = "lion";
    const SLOTS: [Slot; 1] = [Slot { buffer: "momentum", checkpoint_prefix: "lion.momentum." }];
    const SLOTS_DESCRIPTION: &'static str = "momentum";
    const COLUMNS: usize = 2;

    fn attributes(&self) -> String {
        format!("betas=({},{})", self.beta1, self.beta2)
    }

    fn schedule_row(&self, rates: Rates, _step: u64) -> Vec<f64> {
        vec![1.0 - rates.decay * self.weight_decay, rates.lr]
    }

    fn constants(&self) -> [f64; 4] {
        [self.beta1, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2]
    }

    #[inline(always)]
    fn update<A: Real>(s: &Scalars<A>, decays: bool, p: A, [m]: [A; 1], g: A) -> (A, [A; 1]) {
        let ([decay, lr, ..], [beta1, one_minus_beta1, beta2, one_minus_beta2]) = (s.row, s.constants);
        // Three roundings, as in the authors' code: the direction is the sign of the rounded sum.
        let direction = m * beta1 + g * one_minus_beta1;
        let p = if decays { p * decay } else { p };
        let p = if direction > A::ZERO {
            p - lr
        } else if direction < A::ZERO {
            p + lr
        } else {
            p
        };
        // A fused multiply-add, as PyTorch's `add(other, alpha=…)` computes it.
        (p, [one_minus_beta2.fma(g, m * beta2)])
    }

    fn example() -> (Self, [Fill; 1]) {
        (Self { beta1: 0.9, beta2: 0.99, weight_decay: 1.0 }, [Fill::Normal(0.0, 0.3)])
    }

    fn reference(&self, row: &[f64], decays: bool, p: f64, [m]: [f64; 1], g: f64) -> (f64, [f64; 1]) {
        let direction = self.beta1 * m + (1.0 - self.beta1) * g;
        let decayed = if decays { row[0] * p } else { p };
        (decayed - row[1] * direction.signum(), [self.beta2 * m + (1.0 - self.beta2) * g])
    }
}
