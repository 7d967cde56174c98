//! AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled weight decay regularization",
//! 2019), in the order of operations of PyTorch's `torch.optim.AdamW`.

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
    name: "adamw",
    hyperparameters: &[
        Hyperparameter {
            name: "betas",
            form: Form::Pair(Included(0.0), Excluded(1.0)),
            default: Value::Pair([0.9, 0.95]),
            meaning: "Decay rates of the first and the second moment.",
            default_is_implied: false,
            example: "[0.9, 0.999]",
            aliases: &[],
        },
        Hyperparameter {
            name: "eps",
            form: Form::Number(Excluded(0.0), Included(1.0)),
            default: Value::Number(1e-8),
            meaning: "Added to the root of the second moment.",
            default_is_implied: false,
            example: "1e-6",
            aliases: &["adam_epsilon"],
        },
        Hyperparameter {
            name: "weight_decay",
            form: Form::Number(Included(0.0), Included(10.0)),
            default: Value::Number(0.1),
            meaning: "Decoupled weight decay, relative to the quantity in `decay`; not applied to vectors.",
            default_is_implied: false,
            example: "0.01",
            aliases: &[],
        },
    ],
    decoupled_decay: true,
    fallback: None,
    width_rule: |_, role| match role {
        GroupRole::Matrix => Some(WidthRule::new(Power::Inverse, Power::Inverse, Power::One)),
        _ => Some(WidthRule::new(Power::Zero, Power::Inverse, Power::Zero)),
    },
    build: |values| {
        let [beta1, beta2] = values.pair("betas");
        let (eps, weight_decay) = (values.number("eps"), values.number("weight_decay"));
        Arc::new(Elementwise(AdamW { beta1, beta2, eps, weight_decay }))
    },
    ops: &[OpType::new::<ElementwiseUpdate<AdamW, 2>>()],
};

/// AdamW with its hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay rate of the first moment per step.
    pub beta1: f64,
    /// Decay rate of the second moment per step.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay: each step multiplies a matrix by `1 − lr·weight_decay`, or by `1 − (lr /
    /// peak)·weight_decay` if decay is independent of the peak.
    pub weight_decay: f64,
}

impl Rule<2> for AdamW {
    const NAME: &'static str = "adamw";
    const SLOTS: [Slot; 2] = [
        Slot { buffer: "m", checkpoint_prefix: "adam.m." },
        Slot { buffer: "v", checkpoint_prefix: "adam.v." },
    ];
    const SLOTS_DESCRIPTION: &'static str = "two moments";
    const COLUMNS: usize = 4;

    fn attributes(&self) -> String {
        format!("betas=({},{}) eps={}", self.beta1, self.beta2, self.eps)
    }

    /// `[1 − decay, lr / (1 − β1^t), √(1 − β2^t), lr]`.
    fn schedule_row(&self, rates: Rates, step: u64) -> Vec<f64> {
        // Not powi: its rounding is unspecified, and the step may exceed i32.
        let power = |beta: f64| (beta.ln() * step as f64).exp();
        let (size, correction) = (rates.lr / (1.0 - power(self.beta1)), (1.0 - power(self.beta2)).sqrt());
        vec![1.0 - rates.decay * self.weight_decay, size, correction, rates.lr]
    }

    fn constants(&self) -> [f64; 4] {
        [1.0 - self.beta1, self.beta2, 1.0 - self.beta2, self.eps]
    }

    #[inline(always)]
    fn update<A: Real>(s: &Scalars<A>, decays: bool, p: A, [m, v]: [A; 2], g: A) -> (A, [A; 2]) {
        let ([decay, size, correction, _], [one_minus_beta1, beta2, one_minus_beta2, eps]) =
            (s.row, s.constants);
        let m = one_minus_beta1.fma(g - m, m);
        let v = (one_minus_beta2 * g).fma(g, beta2 * v);
        let denominator = v.sqrt() / correction + eps;
        // Three roundings, as in PyTorch: when decay and step cancel, any other order is many ulp off.
        let decayed = if decays { p * decay } else { p };
        (decayed - size * m / denominator, [m, v])
    }

    fn example() -> (Self, [Fill; 2]) {
        let rule = Self { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
        (rule, [Fill::Normal(0.0, 0.3), Fill::Uniform(0.0, 0.5)])
    }

    fn reference(&self, row: &[f64], decays: bool, p: f64, [m, v]: [f64; 2], g: f64) -> (f64, [f64; 2]) {
        let m = self.beta1 * m + (1.0 - self.beta1) * g;
        let v = self.beta2 * v + (1.0 - self.beta2) * g * g;
        let decayed = p * if decays { row[0] } else { 1.0 };
        (decayed - row[1] * m / (v.sqrt() / row[2] + self.eps), [m, v])
    }
}
