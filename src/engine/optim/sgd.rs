//! SGD with momentum (Sutskever et al., "On the importance of initialization and momentum in deep learning",
//! 2013), in the form and order of operations of PyTorch's `torch.optim.SGD` (torch/optim/sgd.py,
//! `_single_tensor_sgd`), without dampening. Weight decay is coupled, as in PyTorch: it is added to the
//! gradient before the momentum.

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
    name: "sgd",
    hyperparameters: &[
        Hyperparameter {
            name: "momentum",
            form: Form::Number(Included(0.0), Excluded(1.0)),
            default: Value::Number(0.9),
            meaning: "Fraction of the summed past gradients that each step keeps; 0 keeps none.",
            default_is_implied: false,
            example: "0.95",
            aliases: &[],
        },
        Hyperparameter {
            name: "weight_decay",
            form: Form::Number(Included(0.0), Included(10.0)),
            default: Value::Number(0.0),
            meaning: "Coupled weight decay, as in PyTorch: added to the gradient; not applied to vectors.",
            default_is_implied: false,
            example: "1e-4",
            aliases: &[],
        },
    ],
    decoupled_decay: false,
    fallback: None,
    width_rule: |_, role| match role {
        GroupRole::Matrix => Some(WidthRule::UNCHANGED),
        // Decay is added to gradients, which the width divides by the ratio.
        _ => Some(WidthRule::new(Power::One, Power::Zero, Power::Inverse)),
    },
    build: |values| {
        let rule = Sgd { momentum: values.number("momentum"), weight_decay: values.number("weight_decay") };
        if rule.momentum == 0.0 {
            Arc::new(Elementwise::<_, 0>(rule))
        } else {
            Arc::new(Elementwise::<_, 1>(rule))
        }
    },
    ops: &[OpType::new::<ElementwiseUpdate<Sgd, 1>>(), OpType::new::<ElementwiseUpdate<Sgd, 0>>()],
};

/// SGD with its hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Factor of the momentum; 0 means no momentum.
    pub momentum: f64,
    /// Factor of the share of a matrix that is added to its gradient.
    pub weight_decay: f64,
}

/// With momentum (`N` = 1), or without momentum and slot (`N` = 0).
impl<const N: usize> Rule<N> for Sgd {
    const NAME: &'static str = "sgd";
    // PyTorch initializes the momentum with the first gradient; the first step from zero gives the same.
    const SLOTS: [Slot; N] = [Slot { buffer: "momentum", checkpoint_prefix: "sgd.momentum." }; N];
    const SLOTS_DESCRIPTION: &'static str = if N == 0 { "" } else { "momentum" };
    const COLUMNS: usize = 1;

    fn attributes(&self) -> String {
        format!("momentum={} weight_decay={}", self.momentum, self.weight_decay)
    }

    fn schedule_row(&self, rates: Rates, _step: u64) -> Vec<f64> {
        vec![rates.lr]
    }

    fn constants(&self) -> [f64; 4] {
        [self.weight_decay, self.momentum, 0.0, 0.0]
    }

    #[inline(always)]
    fn update<A: Real>(s: &Scalars<A>, decays: bool, p: A, mut slots: [A; N], g: A) -> (A, [A; N]) {
        let ([lr, ..], [decay, momentum, ..]) = (s.row, s.constants);
        // A fused multiply-add, like PyTorch's `add(other, alpha=…)`.
        let mut step = if decays { decay.fma(p, g) } else { g };
        for m in &mut slots {
            *m = momentum * *m + step;
            step = *m;
        }
        ((-lr).fma(step, p), slots)
    }

    fn example() -> (Self, [Fill; N]) {
        let momentum = if N == 0 { 0.0 } else { 0.9 };
        (Self { momentum, weight_decay: 0.1 }, [const { Fill::Normal(0.0, 0.3) }; N])
    }

    fn reference(&self, row: &[f64], decays: bool, p: f64, slots: [f64; N], g: f64) -> (f64, [f64; N]) {
        let gradient = g + if decays { self.weight_decay * p } else { 0.0 };
        let slots = slots.map(|m| self.momentum * m + gradient);
        (p - row[0] * slots.first().unwrap_or(&gradient), slots)
    }
}
