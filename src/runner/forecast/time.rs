//! Predicts the time of a step on a device: every node takes the time of its products or of its memory
//! traffic, and a few microseconds more.
//!
//! This is a roofline (Williams, Waterman and Patterson, 2009) over the costs that ops declare. The
//! efficiencies of products, attention and memory were measured on an H200. Links between devices, data
//! loading and overlap of streams are left out.

use crate::device::{DType, ProductPrecision};
use crate::exec::Section;
use crate::ir::{Node, Phase};
use crate::machine::{Limits, hardware};
use crate::model::{Programs, attended_tokens, flops_per_token};
use crate::plan::Plan;
use serde::Serialize;

/// Fraction of the dense peak that products reach. On an H200, the exact shapes of models of width 768 and
/// 1024 ran at 680 of 989 TFLOP/s in bf16 through cuBLAS.
pub const PRODUCT_EFFICIENCY: f64 = 0.69;

/// The same for products of 8-bit floats, whose dense peak is twice that of bf16 on every GPU that has them.
/// On an H200, those of models of width 768 to 2048 ran at 1,060 to 1,250 of 1,979 TFLOP/s
/// (`results/measured/fp8-2026-11-30`).
const FP8_EFFICIENCY: f64 = 0.61;

/// Fraction of the bandwidth that streaming reaches. On an H200, an elementwise copy moved 4.28 of 4.8 TB/s.
pub const MEMORY_EFFICIENCY: f64 = 0.89;

/// Seconds per node besides its work: its launch in a graph, and the first and last blocks of its kernel. On
/// an H200, the steps of five models take 2 to 5 µs more than the other terms for each of their 280 to 430
/// nodes.
pub const NODE_SECONDS: f64 = 3e-6;

/// Efficiency of attention's products in bf16, by the largest head dimension that a row applies to. As a
/// fraction of the dense peak, rows of T tokens reach `fraction · T / (T + tokens)`; with a window, T is the
/// length of a row with the same work. Fitted to one H200
/// (`results/measured/nvidia-h200-2026-11-23/table.md`; heads of 32 from `…-21/ops-dim768.txt`, at 256
/// tokens).
const ATTENTION_EFFICIENCY: [(usize, AttentionEfficiency); 3] = [
    (32, AttentionEfficiency { forward: (0.106, 0.0), backward: (0.098, 0.0) }),
    (64, AttentionEfficiency { forward: (0.56, 600.0), backward: (0.45, 800.0) }),
    (usize::MAX, AttentionEfficiency { forward: (0.67, 330.0), backward: (0.49, 550.0) }),
];

/// The fraction of the peak that long rows reach, and the tokens at which a row reaches half of it.
#[derive(Clone, Copy, Debug)]
struct AttentionEfficiency {
    forward: (f64, f64),
    backward: (f64, f64),
}

/// Returns the fraction of the peak that the products of an op reach. That of products of 8-bit floats is a
/// fraction of the peak of bf16 too.
fn product_efficiency(plan: &Plan, node: &Node) -> f64 {
    if node.op.name() == "scaled_product" {
        return 2.0 * FP8_EFFICIENCY;
    }
    let head_dim = plan.model.head_dim;
    let row = ATTENTION_EFFICIENCY.iter().find(|(most, _)| head_dim <= *most);
    let (fraction, half) = match (plan.act_dtype(), node.op.name(), row) {
        (DType::Bf16, "flash_attention", Some((_, row))) => row.forward,
        (DType::Bf16, "flash_attention_grad", Some((_, row))) => row.backward,
        _ => return PRODUCT_EFFICIENCY,
    };
    let seq_len = plan.batch.seq_len;
    let tokens = node.block.map_or(seq_len as f64, |i| attended_tokens(&plan.graph, i, seq_len));
    fraction * tokens / (tokens + half)
}

/// The predicted time of an optimizer step, after any ramp of the batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTime {
    /// Seconds per step.
    pub seconds: f64,
    /// Tokens per second over all ranks.
    pub tokens_per_second: f64,
    /// Model FLOPs per second over the peak of the products' format; recomputation does not count as work.
    pub mfu: f64,
    /// Seconds for all steps, without evaluations, checkpoints and samples.
    pub training_seconds: f64,
    /// The format of products, whose peak limits them.
    pub products: &'static str,
    /// Assumed fraction of the peak for products other than attention's.
    pub product_efficiency: f64,
    /// Assumed fraction of the bandwidth for memory traffic.
    pub memory_efficiency: f64,
    /// Time by phase.
    pub phases: Vec<PhaseTime>,
}

/// The nodes of one phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PhaseTime {
    /// Its name.
    pub phase: &'static str,
    /// Nodes per step.
    pub nodes: usize,
    /// FLOPs of products per step.
    pub product_flops: f64,
    /// Bytes to and from memory per step.
    pub bytes: f64,
    /// Seconds per step.
    pub seconds: f64,
    /// The part of these in nodes that are bound by products.
    pub product_bound_seconds: f64,
}

impl StepTime {
    /// Predicts a step of a plan within a device's limits.
    pub fn new(plan: &Plan, programs: &Programs, limits: &Limits) -> Self {
        let (products, peak) = product_peak(plan, limits);
        let pace = Pace::new(plan, limits);
        let full = plan.batch.micro_steps;
        let mut phases = PHASES.map(|(_, phase)| PhaseTime { phase, ..PhaseTime::default() });
        for (section, times) in step_sections(programs, full) {
            add(&mut phases, section, times, &pace);
        }
        let seconds: f64 = phases.iter().map(|p| p.seconds).sum();
        let seconds_per_step = |micro_steps: usize| match micro_steps {
            micro_steps if micro_steps == full => seconds,
            micro_steps => {
                sum_over_step(programs, micro_steps, |section| section_seconds(plan, section, limits))
            }
        };
        let stages = plan.batch.stages(plan.steps);
        let tokens = plan.batch.tokens_per_step() as f64;
        let flops = flops_per_token(plan).value * tokens / plan.batch.world_size as f64;
        Self {
            seconds,
            tokens_per_second: tokens / seconds,
            mfu: flops / seconds / peak,
            training_seconds: stages
                .map(|stage| stage.steps as f64 * seconds_per_step(stage.micro_steps))
                .sum(),
            products,
            product_efficiency: PRODUCT_EFFICIENCY,
            memory_efficiency: MEMORY_EFFICIENCY,
            phases: phases.into_iter().filter(|p| p.nodes > 0).collect(),
        }
    }
}

/// Returns the predicted milliseconds of a step on the GPU that the driver calls `model`; `None` if its
/// limits are unknown.
pub fn predicted_step_ms(plan: &Plan, programs: &Programs, model: &str) -> Option<f64> {
    let limits = hardware::by_driver_name(model)?.limits?;
    Some(1e3 * StepTime::new(plan, programs, &limits).seconds)
}

const PHASES: [(Phase, &str); 5] = [
    (Phase::Forward, "forward"),
    (Phase::Recompute, "recompute"),
    (Phase::Backward, "backward"),
    (Phase::Communication, "communication"),
    (Phase::Optimizer, "optimizer"),
];

/// Returns the format of a plan's products, and a device's dense peak in it, in FLOP/s.
pub fn product_peak(plan: &Plan, limits: &Limits) -> (&'static str, f64) {
    match plan.act_dtype() {
        DType::Bf16 => ("bf16", limits.bf16),
        _ if plan.execution.products == ProductPrecision::Tf32 => ("tf32", limits.tf32),
        _ => ("fp32", limits.fp32),
    }
}

/// Returns the FLOPs of all products that one rank runs in a step of `micro_steps` micro-steps, including
/// recomputation.
pub fn product_flops(programs: &Programs, micro_steps: usize) -> f64 {
    let of = |section: &Section| -> f64 {
        section.program.nodes.iter().map(|node| section.program.cost(node).product_flops).sum()
    };
    sum_over_step(programs, micro_steps, of)
}

/// Sums a figure over the sections that a step of `n` micro-steps runs.
pub(super) fn sum_over_step(programs: &Programs, n: usize, figure: impl Fn(&Section) -> f64) -> f64 {
    step_sections(programs, n).into_iter().map(|(section, times)| times as f64 * figure(section)).sum()
}

/// Returns the seconds that a section takes within a device's limits.
pub(super) fn section_seconds(plan: &Plan, section: &Section, limits: &Limits) -> f64 {
    let pace = Pace::new(plan, limits);
    section.program.nodes.iter().map(|node| pace.seconds(section, node)).sum()
}

/// The rates that nodes are assumed to reach on a device.
pub(super) struct Pace<'a> {
    plan: &'a Plan,
    /// The dense peak of products, in FLOP/s.
    peak: f64,
    /// Bytes per second to and from memory.
    bandwidth: f64,
}

/// The minimum times that a node takes, in seconds.
struct NodeTimes {
    products: f64,
    memory: f64,
    overhead: f64,
}

impl NodeTimes {
    fn seconds(&self) -> f64 {
        self.products.max(self.memory) + self.overhead
    }
}

impl<'a> Pace<'a> {
    pub(super) fn new(plan: &'a Plan, limits: &Limits) -> Self {
        let bandwidth = limits.bandwidth * MEMORY_EFFICIENCY;
        Self { plan, peak: product_peak(plan, limits).1, bandwidth }
    }

    /// Returns the seconds that a node takes.
    pub(super) fn seconds(&self, section: &Section, node: &Node) -> f64 {
        self.times(section, node).seconds()
    }

    fn times(&self, section: &Section, node: &Node) -> NodeTimes {
        let cost = section.program.cost(node);
        let efficiency = product_efficiency(self.plan, node);
        NodeTimes {
            products: cost.product_flops / (self.peak * efficiency),
            memory: cost.bytes / self.bandwidth,
            // Views move nothing and launch nothing.
            overhead: if cost.bytes > 0.0 { NODE_SECONDS } else { 0.0 },
        }
    }
}

/// Returns the sections that a step of `n` micro-steps runs, and how often it runs each.
pub(super) fn step_sections(programs: &Programs, n: usize) -> Vec<(&Section, usize)> {
    let mut sections = vec![(programs.micro_step(0, n), 1), (&programs.step_end, 1)];
    if n > 1 {
        sections.push((programs.micro_step(n - 1, n), 1));
    }
    if n > 2 {
        sections.push((programs.micro_step(1, n), n - 2));
    }
    sections
}

fn add(phases: &mut [PhaseTime; 5], section: &Section, times: usize, pace: &Pace<'_>) {
    for node in &section.program.nodes {
        let cost = section.program.cost(node);
        let taken = pace.times(section, node);
        let at = PHASES.iter().position(|(phase, _)| *phase == node.phase);
        let phase = &mut phases[at.expect("every phase is listed")];
        let n = times as f64;
        phase.nodes += times;
        phase.product_flops += n * cost.product_flops;
        phase.bytes += n * cost.bytes;
        phase.seconds += n * taken.seconds();
        if taken.products > taken.memory {
            phase.product_bound_seconds += n * taken.products;
        }
    }
}
