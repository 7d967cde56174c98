//! What products of 8-bit floats would gain or cost a step.

use super::time::StepTime;
use crate::device::DType;
use crate::machine::Hardware;
use crate::model::Programs;
use crate::plan::{Fp8, Plan};
use crate::policy::{Fp8Products, Fp8Scaling};
use serde::Serialize;

/// The predicted speed of a plan with products of 8-bit floats over that without them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fp8Gain {
    /// True if the plan has them.
    pub planned: bool,
    /// Tokens per second with them over tokens per second without.
    pub times_as_fast: f64,
    /// Tokens per second of the other plan.
    pub other_tokens_per_second: f64,
}

impl Fp8Gain {
    /// Predicts it for a plan in bf16 or fp8 on a device, where the plan's own step takes `step`. `None` if
    /// the device has no such products, the plan is in another format, or no product of the model can be one.
    pub fn new(plan: &Plan, step: &StepTime, device: &Hardware) -> Option<Self> {
        let limits = device.limits?;
        let (major, minor) = device.compute_capability?.split_once('.')?;
        let capability: (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        if capability < (8, 9) || plan.act_dtype() != DType::Bf16 || plan.adapter.is_some() {
            return None;
        }
        let mut other = plan.clone();
        let blocks = plan.graph.nodes.iter().filter_map(|node| node.block).max()? + 1;
        let with_defaults = || Fp8 {
            products: Fp8Products::for_width(plan.model.dim),
            blocks: 0..blocks,
            gradients: DType::E5m2,
            scaling: Fp8Scaling::Delayed,
        };
        other.fp8 = if plan.fp8.is_some() { None } else { Some(with_defaults()) };
        let programs = Programs::new(&other).ok()?;
        let others = StepTime::new(&other, &programs, &limits).tokens_per_second;
        let planned = plan.fp8.is_some();
        let [with, without] =
            if planned { [step.tokens_per_second, others] } else { [others, step.tokens_per_second] };
        Some(Self { planned, times_as_fast: with / without, other_tokens_per_second: others })
    }

    /// Says it in a sentence.
    pub fn sentence(&self) -> String {
        let Self { planned, times_as_fast, .. } = *self;
        match (planned, times_as_fast > 1.0) {
            (true, true) => format!("fp8 is predicted to be {times_as_fast:.2} times as fast as bf16"),
            (true, false) => format!(
                "fp8 is predicted to be slower than bf16 here, {times_as_fast:.2} times as fast: set training.dtype = \
                 \"bf16\""
            ),
            (false, true) => {
                format!(
                    "training.dtype = \"fp8\" is predicted to be {times_as_fast:.2} times as fast (docs/fp8.md)"
                )
            }
            (false, false) => format!(
                "training.dtype = \"fp8\" is predicted to gain nothing: {times_as_fast:.2} times as fast"
            ),
        }
    }
}
