//! Profiles a step by op and phase.

use super::agreement::StepRequest;
use super::gauges::environment;
use super::job::prepare;
use super::rank::{Rank, STEPS_AHEAD};
use crate::device::communicator::SingleRank;
use crate::device::cpu::Pool;
use crate::device::cuda::limits::{self, Limits};
use crate::device::{DType, Device};
use crate::error::{Error, Result};
use crate::exec::UnderLoad;
use crate::forecast::{Planned, with_steps_of_budget};
use crate::ir::{Node, Phase, Program};
use crate::machine::Machine;
use crate::recipe::Recipe;
use crate::results::quantiles::median;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time of one op in one phase, over all nodes of a step that are counted together.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTime {
    /// The op.
    pub op: &'static str,
    /// The part of the step.
    pub phase: Phase,
    /// The shapes of its tensors; empty if nodes of several shapes are counted together.
    pub shapes: String,
    /// Number of nodes per step.
    pub calls: usize,
    /// Median time per step over the measured steps.
    pub time: Duration,
    /// FLOPs of matrix products per step.
    pub product_flops: f64,
    /// Bytes that must cross the memory bus per step.
    pub bytes: f64,
    /// Minimum time per step by the GPU's measured limits, summed over the nodes; `None` on the CPU.
    pub budget: Option<Duration>,
    /// Time and power while the first node was repeated under load; `None` if that was not requested.
    pub under_load: Option<UnderLoad>,
}

impl OpTime {
    /// Returns the milliseconds per step under load and the power in watts. Assumes that all nodes take as
    /// long as the one that was repeated.
    pub fn loaded_ms_and_watts(&self) -> Option<(f64, f64)> {
        self.under_load.map(|u| (u.time.as_secs_f64() * 1e3 * self.calls as f64, u.watts))
    }
}

/// A node of one measured step.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The op.
    pub op: &'static str,
    /// The node's scope in the model, such as `blocks.0`.
    pub scope: String,
    /// The part of the step.
    pub phase: Phase,
    /// Start, relative to the beginning of the step.
    pub start: Duration,
    /// Duration.
    pub time: Duration,
}

/// Result of a profile.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Sorted by time, longest first.
    pub ops: Vec<OpTime>,
    /// Mean time of a step with no measurements inside it.
    pub step: Duration,
    /// Number of tokens in a step.
    pub tokens: usize,
    /// The GPU's measured limits; `None` on the CPU.
    pub limits: Option<Limits>,
    /// The nodes of the last measured step, in order.
    pub spans: Vec<Span>,
    /// The device class.
    pub device: String,
}

/// Settings of a profile.
#[derive(Clone, Copy, Debug)]
pub struct ProfileRequest {
    /// Number of steps before the measurement.
    pub warmup: usize,
    /// Number of measured steps.
    pub steps: usize,
    /// True to list the nodes of an op separately by shape.
    pub by_shape: bool,
    /// True to repeat one node of every kind under load. This takes a second per kind and needs a GPU.
    pub energy: bool,
    /// Number of GPU multiprocessors to occupy while single nodes are measured. They are free while whole
    /// steps are.
    pub held: usize,
}

/// Key by which nodes are counted together: phase, op, and shapes or nothing.
type Kind = (Phase, &'static str, String);

/// Maximum number of optimizer updates while nodes are repeated under load: one for each kind of node in an
/// update.
const STEPS_UNDER_LOAD: usize = 32;

/// Times of nodes that are counted together.
#[derive(Clone, Debug, Default)]
struct Collected {
    calls: usize,
    product_flops: f64,
    bytes: f64,
    budget: f64,
    steps: Vec<Duration>,
}

/// Trains a few steps, then measures steps node by node, then whole steps. Writes nothing.
///
/// # Errors
/// Fails like [`prepare`], and for several ranks, whose waits would be measured as work.
pub fn profile(recipe: &Recipe, machine: &Machine, request: ProfileRequest) -> Result<Profile> {
    // The schedule has one row per step, so it must cover all measured steps and the ones under load.
    let needed = request.warmup.saturating_add(2 * request.steps + STEPS_AHEAD + 1 + STEPS_UNDER_LOAD);
    // A budget in FLOPs gets its steps from a plan.
    let recipe = with_steps_of_budget(recipe.clone(), machine)?;
    let steps = recipe.values().training.steps.max(needed);
    // Without the batch ramp, so that all steps have the same batch.
    let recipe = recipe.with_overrides(&["training.batch_ramp=[]".to_owned()], machine)?;
    let recipe = recipe.with_number_of_steps(steps);
    let (Planned { plan, programs, .. }, dataset) = prepare(&recipe, &machine.clone().with_ranks(1, 1))?;
    if plan.batch.world_size > 1 {
        return Err(Error::usage("a profile covers one rank; set parallelism.world_size=1"));
    }
    if request.held > 0 && !plan.execution.cuda_graphs {
        return Err(Error::usage(
            "multiprocessors are held on a GPU while CUDA graphs run, but this plan has none",
        ));
    }
    let class = environment(&plan, Vec::new())?.device_class();
    let device = Device::open(plan.execution.gpu, Arc::new(Pool::new(plan.execution.threads)?))?;
    if request.energy {
        let Some(gpu) = device.gpu() else {
            return Err(Error::usage("energy is measured on a GPU, but this plan is for the CPU"));
        };
        if gpu.initial.power_meter().is_none() {
            return Err(Error::failed("the driver reports no energy of this GPU, so it cannot be measured"));
        }
        if programs.step_end.program.nodes.len() > STEPS_UNDER_LOAD {
            return Err(Error::failed("the schedule has too few rows to repeat every node of an update"));
        }
    }
    let limits = match device.gpu() {
        Some(gpu) => {
            let fp8 = plan.fp8.is_some();
            Some(limits::measure(gpu, plan.precision.act_dtype, plan.execution.products, fp8)?)
        }
        None => None,
    };
    let tokens = plan.batch.tokens_per_step();
    let mut rank = Rank::for_measurements(
        Arc::new(plan),
        Arc::new(programs),
        Arc::new(dataset),
        device,
        Arc::new(SingleRank),
    )?;
    rank.engine_mut().occupied_multiprocessors = request.held;
    for _ in 0..request.warmup {
        rank.time_step(|_, _, _| {})?;
    }
    let kind = |program: &Program, node: &Node| -> Kind {
        let shapes = if request.by_shape { shapes(program, node) } else { String::new() };
        (node.phase, node.op.name(), shapes)
    };
    let mut ops: BTreeMap<Kind, Collected> = BTreeMap::new();
    let mut spans = Vec::new();
    for step in 0..request.steps {
        spans.clear();
        let mut start = Duration::ZERO;
        rank.time_step(|program, node, time| {
            let op = ops.entry(kind(program, node)).or_default();
            op.steps.resize(step + 1, Duration::ZERO);
            op.steps[step] += time;
            if step == 0 {
                let cost = program.cost(node);
                op.calls += 1;
                op.product_flops += cost.product_flops;
                op.bytes += cost.bytes;
                op.budget += limits.map_or(0.0, |l| budget(&l, program, node));
            }
            let scope = node.scope.to_string();
            spans.push(Span { op: node.op.name(), scope, phase: node.phase, start, time });
            start += time;
        })?;
    }
    let step = whole_steps(&mut rank, request.steps)?;
    // Comes last, because it leaves meaningless parameters.
    let mut energies = if request.energy { rank.time_under_load(kind)? } else { BTreeMap::new() };
    let mut ops: Vec<OpTime> = ops
        .into_iter()
        .map(|(kind, c)| {
            let under_load = energies.remove(&kind);
            let (phase, op, shapes) = kind;
            let time = median(c.steps.iter().map(Duration::as_secs_f64));
            let time = Duration::from_secs_f64(time.unwrap_or_default());
            let budget = limits.map(|_| Duration::from_secs_f64(c.budget));
            let (product_flops, bytes) = (c.product_flops, c.bytes);
            OpTime { op, phase, shapes, calls: c.calls, time, product_flops, bytes, budget, under_load }
        })
        .collect();
    ops.sort_by_key(|t| std::cmp::Reverse(t.time));
    Ok(Profile { ops, step, tokens, limits, spans, device: class })
}

/// Returns the time that a node takes at the limits of the GPU, in seconds.
fn budget(limits: &Limits, program: &Program, node: &Node) -> f64 {
    let cost = program.cost(node);
    let format = node.inputs.first().map_or(DType::F32, |&input| program.tensor(input).spec.dtype);
    (cost.bytes / limits.bandwidth).max(cost.product_flops / limits.product_flops(format))
}

/// Returns the mean time of whole training steps after a warmup.
fn whole_steps(rank: &mut Rank, steps: usize) -> Result<Duration> {
    let ahead = rank.steps_ahead();
    let mut train = |steps: usize| -> Result<Duration> {
        let started = Instant::now();
        let mut launched = 0;
        for _ in 0..steps {
            while rank.queued_steps() < ahead && launched < steps {
                rank.launch_step()?;
                launched += 1;
            }
            rank.finish_step(StepRequest::default())?;
        }
        Ok(started.elapsed())
    };
    // The first steps of each kind are captured into graphs, which takes extra time.
    train(ahead + 1)?;
    Ok(train(steps)? / steps as u32)
}

/// Returns the specs of a node's tensors, without names: `bf16[8192,768] f32[768] → bf16[8192,768]`.
fn shapes(program: &Program, node: &Node) -> String {
    let list = |ids: &[crate::ir::TensorId]| {
        ids.iter().map(|&id| program.spec(id).to_string()).collect::<Vec<_>>().join(" ")
    };
    format!("{} → {}", list(&node.inputs), list(&node.outputs))
}
