//! Where the time of a step goes.

use super::rank::Rank;
use super::run::prepare;
use crate::device::Device;
use crate::device::comm::Alone;
use crate::device::cpu::Pool;
use crate::error::{Error, Result};
use crate::ir::Phase;
use crate::recipe::Resolved;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The time of one op in one phase, over all its nodes of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTime {
    /// The op.
    pub op: &'static str,
    /// The part of the step.
    pub phase: Phase,
    /// Nodes per step.
    pub calls: usize,
    /// Median over the measured steps.
    pub time: Duration,
    /// Operations of matrix products per step.
    pub product_flops: f64,
    /// Bytes that must cross memory, per step.
    pub bytes: f64,
}

/// Times of one op in one phase while they are collected.
#[derive(Clone, Debug, Default)]
struct Collected {
    calls: usize,
    product_flops: f64,
    bytes: f64,
    steps: Vec<Duration>,
}

/// Trains `warmup` steps, then measures `steps`; nothing is written. Sorted by time, longest first.
///
/// # Errors
/// As [`super::run`]; several ranks are refused, for their waits would be measured as work.
pub fn profile(mut resolved: Resolved, warmup: usize, steps: usize) -> Result<Vec<OpTime>> {
    let (plan, programs, dataset) = prepare(&mut resolved)?;
    if plan.batch.world > 1 {
        return Err(Error::usage("a profile is of one rank; set parallelism.world_size=1"));
    }
    let device = Device::open(plan.execution.gpu, Arc::new(Pool::new(plan.execution.threads)?))?;
    let mut rank = Rank::new(plan, programs, dataset, device, Arc::new(Alone))?;
    for _ in 0..warmup {
        rank.time_step(|_, _, _| {})?;
    }
    let mut ops: BTreeMap<(Phase, &'static str), Collected> = BTreeMap::new();
    for step in 0..steps {
        rank.time_step(|program, node, time| {
            let op = ops.entry((node.phase, node.op.name())).or_default();
            op.steps.resize(step + 1, Duration::ZERO);
            op.steps[step] += time;
            if step == 0 {
                let cost = program.cost(node);
                op.calls += 1;
                op.product_flops += cost.product_flops;
                op.bytes += cost.bytes;
            }
        })?;
    }
    let mut times: Vec<OpTime> = ops
        .into_iter()
        .map(|((phase, op), mut c)| {
            c.steps.sort();
            let time = c.steps[c.steps.len() / 2];
            OpTime { op, phase, calls: c.calls, time, product_flops: c.product_flops, bytes: c.bytes }
        })
        .collect();
    times.sort_by_key(|t| std::cmp::Reverse(t.time));
    Ok(times)
}
