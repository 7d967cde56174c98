//! Finds the largest batch that fits for each format and recompute mode, and changes to try if a plan does
//! not fit.
//!
//! Nothing here is estimated: every candidate is planned in full and its peak read.

use super::memory::peak_bytes;
use super::{Budget, StepTime};
use crate::device::{DType, Precision, ProductPrecision};
use crate::error::Result;
use crate::model::Programs;
use crate::plan::Plan;
use crate::policy::{Attention, Placement, Recompute};
use serde::Serialize;

/// The largest value of `training.local_batch_size`.
const MAX_LOCAL: usize = 1 << 20;

/// Maximum rows of one program, because kernels index them with 32 bits.
const MAX_ROWS: usize = i32::MAX as usize;

/// The largest local batch for a format and a recompute mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FitRow {
    /// `training.dtype`.
    pub dtype: &'static str,
    /// `activation_checkpoint.mode`.
    pub recompute: &'static str,
    /// Sequences per rank and micro-step; 0 if not even one fits.
    pub local_batch_size: usize,
    /// Tokens in this batch.
    pub tokens: usize,
    /// Peak memory with this batch, or with one sequence if none fits.
    pub peak_bytes: usize,
    /// True if a larger batch is limited by its number of rows, not by memory.
    pub capped: bool,
    /// Predicted tokens per second over all ranks with this batch, for a device with known limits.
    pub tokens_per_second: Option<f64>,
}

/// Finds the largest local batch within a budget for every format and recompute mode. Accumulation and the
/// number of ranks stay.
///
/// # Errors
/// If an op rejects the plan's numbers.
pub fn fit_local_batch(plan: &Plan, budget: &Budget) -> Result<Vec<FitRow>> {
    let full = if plan.execution.products == ProductPrecision::Tf32 { "tf32" } else { "fp32" };
    let mut rows = Vec::new();
    for (act_dtype, dtype) in [(DType::Bf16, "bf16"), (DType::F32, full)] {
        for &mode in Recompute::ALL {
            let mut plan = plan.clone();
            plan.precision = Precision::for_act_dtype(act_dtype);
            plan.fp8 = None;
            plan.execution.recompute = mode;
            rows.push(fit_row(&plan, budget, dtype, mode.word())?);
        }
    }
    Ok(rows)
}

fn fit_row(plan: &Plan, budget: &Budget, dtype: &'static str, recompute: &'static str) -> Result<FitRow> {
    let accumulation = plan.batch.accumulation;
    let most = MAX_LOCAL.min(MAX_ROWS / plan.batch.seq_len);
    let fits = |n: usize| {
        let plan = with_local_batch(plan, n, accumulation);
        Ok(budget.holds(peak_bytes(&plan, &Programs::new(&plan)?)))
    };
    let largest = largest_fitting(most, fits)?;
    let plan = with_local_batch(plan, largest.max(1), accumulation);
    let (peak_bytes, tokens_per_second) = peak_and_speed(&plan, budget)?;
    Ok(FitRow {
        dtype,
        recompute,
        local_batch_size: largest,
        tokens: largest * plan.batch.seq_len,
        peak_bytes,
        capped: largest == most,
        tokens_per_second: tokens_per_second.filter(|_| largest > 0),
    })
}

/// Returns the largest `n` in `0..=most` that fits, by doubling and then halving. Fitting must be monotonic.
fn largest_fitting(most: usize, fits: impl Fn(usize) -> Result<bool>) -> Result<usize> {
    let (mut low, mut high) = (0, 1);
    while high <= most && fits(high)? {
        low = high;
        high = if high == most { most + 1 } else { (2 * high).min(most) };
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle)? { low = middle } else { high = middle }
    }
    Ok(low)
}

/// Returns the plan with another batch per rank and micro-step. The recipe must not use looped batching.
fn with_local_batch(plan: &Plan, local: usize, accumulation: usize) -> Plan {
    let mut plan = plan.clone();
    let batch = &mut plan.batch;
    (batch.local, batch.micro) = (local, local);
    (batch.accumulation, batch.micro_steps) = (accumulation, accumulation);
    batch.global = local.saturating_mul(accumulation).saturating_mul(batch.world_size);
    plan
}

/// A change of the recipe, and what the plan would need with it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The overrides, as `xrun` takes them.
    pub set: Vec<String>,
    /// True if the run still trains the same curve, up to rounding.
    pub same_curve: bool,
    /// Peak memory with the change.
    pub peak_bytes: usize,
    /// True if the plan fits with the change.
    pub fits: bool,
    /// Predicted tokens per second over all ranks, for a device with known limits.
    pub tokens_per_second: Option<f64>,
}

/// A plan with the changes made so far to make it fit.
#[derive(Clone)]
struct Changed {
    plan: Plan,
    set: Vec<String>,
    same_curve: bool,
}

impl Changed {
    fn with(&self, setting: &str, change: impl FnOnce(&mut Plan)) -> Self {
        let mut changed = self.clone();
        change(&mut changed.plan);
        changed.set.push(setting.to_owned());
        changed
    }
}

/// Returns changes that make a plan fit: single changes that suffice, those that keep the curve first, or all
/// changes together if no single one suffices. If nothing fits, the only entry is the least that this model
/// needs.
///
/// # Errors
/// If an op rejects the plan's numbers.
pub fn advise(plan: &Plan, budget: &Budget) -> Result<Vec<Advice>> {
    let start = Changed { plan: plan.clone(), set: Vec::new(), same_curve: true };
    let mut everything = start.clone();
    for change in [to_arena, to_flash, to_fused, to_full] {
        everything = change(&everything).unwrap_or(everything);
    }
    let narrow = to_bf16(&everything).unwrap_or_else(|| everything.clone());
    let smallest = if splits(&narrow) { split(&narrow, 1) } else { narrow.clone() };
    let least = judge(&smallest, budget)?;
    if !least.fits {
        return Ok(vec![least]);
    }
    let singles = single_changes(&start);
    for (from, changes) in
        [(&start, singles), (&everything, vec![everything.clone()]), (&narrow, vec![narrow.clone()])]
    {
        let mut enough = Vec::new();
        for change in &changes {
            enough.push(judge(change, budget)?);
        }
        enough.extend(split_batch(from, budget)?);
        enough.retain(|advice| advice.fits);
        enough.sort_by_key(|advice| !advice.same_curve);
        if !enough.is_empty() {
            return Ok(enough);
        }
    }
    Ok(vec![least])
}

fn single_changes(start: &Changed) -> Vec<Changed> {
    [to_arena, to_flash, to_fused, to_full, to_bf16].iter().filter_map(|change| change(start)).collect()
}

fn to_arena(from: &Changed) -> Option<Changed> {
    (from.plan.execution.placement != Placement::Arena)
        .then(|| from.with("engine.placement=arena", |p| p.execution.placement = Placement::Arena))
}

fn to_flash(from: &Changed) -> Option<Changed> {
    (from.plan.execution.attention != Attention::Flash)
        .then(|| from.with("engine.attention=flash", |p| p.execution.attention = Attention::Flash))
}

fn to_fused(from: &Changed) -> Option<Changed> {
    (!from.plan.execution.fused).then(|| from.with("engine.fused=true", |p| p.execution.fused = true))
}

fn to_full(from: &Changed) -> Option<Changed> {
    (from.plan.execution.recompute != Recompute::Full)
        .then(|| from.with("activation_checkpoint.mode=full", |p| p.execution.recompute = Recompute::Full))
}

fn to_bf16(from: &Changed) -> Option<Changed> {
    let change = |p: &mut Plan| {
        p.precision = Precision::for_act_dtype(DType::Bf16);
        p.execution.products = ProductPrecision::Native;
    };
    (from.plan.act_dtype() != DType::Bf16)
        .then(|| Changed { same_curve: false, ..from.with("training.dtype=bf16", change) })
}

/// Returns true if the batch can be split. One sequence cannot, and looped batching is split already.
fn splits(from: &Changed) -> bool {
    let batch = &from.plan.batch;
    batch.local > 1 && batch.micro == batch.local
}

/// Splits the same global batch into micro-steps of `local` sequences, which must divide it.
fn split(from: &Changed, local: usize) -> Changed {
    let accumulation = from.plan.batch.local * from.plan.batch.accumulation / local;
    let mut changed = from.clone();
    changed.plan = with_local_batch(&from.plan, local, accumulation);
    changed.set.push(format!("training.local_batch_size={local}"));
    changed.set.push(format!("training.accumulation={accumulation}"));
    changed
}

/// Returns the largest part of the batch that fits, with the rest accumulated, or the smallest part if none
/// fits.
fn split_batch(from: &Changed, budget: &Budget) -> Result<Option<Advice>> {
    if !splits(from) {
        return Ok(None);
    }
    let total = from.plan.batch.local * from.plan.batch.accumulation;
    let batch = &from.plan.batch;
    let divides = |n: &usize| {
        let mut stages = batch.stages(from.plan.steps);
        total.is_multiple_of(*n) && stages.all(|stage| stage.sequences.is_multiple_of(n * batch.world_size))
    };
    let parts: Vec<usize> = (1..batch.local).filter(divides).collect();
    // Memory grows with the batch, so the parts that fit come first.
    let fitting = largest_fitting(parts.len(), |n| Ok(judge(&split(from, parts[n - 1]), budget)?.fits))?;
    Ok(Some(judge(&split(from, parts[fitting.saturating_sub(1)]), budget)?))
}

fn judge(changed: &Changed, budget: &Budget) -> Result<Advice> {
    let (peak_bytes, tokens_per_second) = peak_and_speed(&changed.plan, budget)?;
    Ok(Advice {
        set: changed.set.clone(),
        same_curve: changed.same_curve,
        peak_bytes,
        fits: budget.holds(peak_bytes),
        tokens_per_second,
    })
}

/// Returns the peak memory of a plan and, for a device with known limits, its predicted tokens per second.
fn peak_and_speed(plan: &Plan, budget: &Budget) -> Result<(usize, Option<f64>)> {
    let programs = Programs::new(plan)?;
    let limits = budget.hardware.and_then(|h| h.limits);
    let tokens_per_second = limits.map(|l| StepTime::new(plan, &programs, &l).tokens_per_second);
    Ok((peak_bytes(plan, &programs), tokens_per_second))
}

#[cfg(test)]
mod tests {
    use super::largest_fitting;

    #[test]
    fn the_search_finds_every_border() {
        for most in 1..40 {
            for border in 0..=most + 3 {
                let found = largest_fitting(most, |n| {
                    assert!((1..=most).contains(&n));
                    Ok(n <= border)
                });
                assert_eq!(found, Ok(border.min(most)), "border {border} of {most}");
            }
        }
    }
}
