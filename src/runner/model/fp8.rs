//! The programs and parts of programs that only fp8 runs have.

use super::fp8_weights::fp8_role;
use super::gather::gather_updated;
use super::layout;
use crate::error::Result;
use crate::exec::Section;
use crate::ir::{
    Builder, ControlSlot, Destination, FlatBuffer, Fp8Slot, Home, Mode, Phase, Program, SiteKind, State,
};
use crate::ops::all_gather::{AllGather, Part};
use crate::ops::round_masters::RoundMasters;
use crate::ops::update_scales::UpdateScales;
use crate::optim::all_segments;
use crate::plan::Plan;
use crate::policy::Fp8Scaling;
use std::sync::Arc;

/// Prefix of the tensors in checkpoints that hold the scales of a weight's matrices: those of its layer's
/// input and of the gradient of the output, each followed by its inverse.
pub const SCALES_PREFIX: &str = "fp8.scales.";

/// Returns true if a tensor of a checkpoint, by its name, holds scales of 8-bit floats.
pub fn is_of_scales(name: &str) -> bool {
    name.starts_with(SCALES_PREFIX)
}

/// Records, at the end of a step, the scales of the next step from the maxima of all ranks. `bad` is set if a
/// maximum is not finite. Records nothing without 8-bit floats.
///
/// # Errors
/// If the state lacks a slot.
pub(super) fn record_scales(plan: &Plan, b: &mut Builder) -> Result<()> {
    let state = Arc::clone(&b.program.state);
    let (Some(fp8), Some(planned)) = (&state.fp8, &plan.fp8) else { return Ok(()) };
    let (sites, maxima) = (fp8.sites(), b.state(Fp8Slot::Maxima)?);
    let mut all = maxima;
    if plan.exchanges_gradients() {
        all = b.state(Fp8Slot::AllMaxima)?;
        let part = |rank| Part { rank, tensor: 0, to: rank * sites, from: Some(0), len: sites };
        let parts = (0..plan.batch.world_size).map(part).collect();
        let gather = AllGather { like: vec![b.spec(all).clone()], parts, wait: true };
        b.phase = Phase::Communication;
        b.emit_into("maxima", Arc::new(gather), &[maxima], &[Destination::Into(all, Mode::Add)])?;
    }
    b.phase = Phase::Optimizer;
    let given = |kind: SiteKind| {
        (planned.scaling == Fp8Scaling::Delayed && kind != SiteKind::Weight).then(|| fp8.format(kind))
    };
    let roles = fp8.weights.iter().map(|weight| fp8_role(state.params[weight.param.index].role) as usize);
    let op = UpdateScales { sites, formats: SiteKind::ALL.map(given), roles: roles.collect() };
    let mut outs = Vec::new();
    outs.push(Destination::Into(b.state(ControlSlot::Bad)?, Mode::Add));
    for table in [Fp8Slot::Scales, Fp8Slot::Maxima, Fp8Slot::Counts] {
        outs.push(Destination::Into(b.state(table)?, Mode::Add));
    }
    outs.push(Destination::Into(b.state(ControlSlot::Fp8Health)?, Mode::Write));
    b.emit_into("scales", Arc::new(op), &[all], &outs).map(drop)
}

/// The programs that find the scales of the first steps, whose maxima no earlier step has measured.
#[derive(Clone, Debug)]
pub struct ScaleSearch {
    /// Forward and backward of a micro-step in bf16, which measures the maxima of the matrices that products
    /// of 8-bit floats read.
    pub measure: Section,
    /// Sets the scales from the maxima of all micro-steps.
    pub end: Section,
}

/// Returns the programs that find scales; `None` if every matrix is scaled by its own maximum anyway.
/// `measure` records the first of them.
///
/// # Errors
/// If an op rejects the plan's numbers.
pub(super) fn scale_search(
    plan: &Plan,
    state: &Arc<State>,
    measure: impl Fn() -> Result<Program>,
) -> Result<Option<ScaleSearch>> {
    if plan.fp8.as_ref().is_none_or(|fp8| fp8.scaling == Fp8Scaling::Current) {
        return Ok(None);
    }
    let mut b = Builder::new("scales", Arc::clone(state));
    record_scales(plan, &mut b)?;
    Ok(Some(ScaleSearch { measure: Section::new(measure()?), end: Section::new(b.finish()) }))
}

/// Records the program that puts the rounded masters back into the compute copy, whose memory 8-bit weights
/// take in a step; `None` without 8-bit weights.
///
/// # Errors
/// If an op rejects the plan's numbers.
pub(super) fn restore_copy(plan: &Plan, state: &Arc<State>) -> Result<Option<Section>> {
    if state.fp8.is_none() {
        return Ok(None);
    }
    let mut b = Builder::new("restore_compute_copy", Arc::clone(state));
    b.phase = Phase::Optimizer;
    let op = RoundMasters { segments: all_segments(state), precision: state.precision };
    let (masters, copy) = (b.state(FlatBuffer::Params)?, b.state(FlatBuffer::ComputeCopy)?);
    b.emit_into("copy", Arc::new(op), &[masters], &[Destination::Into(copy, Mode::Add)])?;
    let first = layout::updated_first_from(plan, state)..state.flat_len;
    gather_updated(plan, &mut b, &first, true)?;
    Ok(Some(Section::new(b.finish())))
}

/// Returns how many elements of inputs, gradients and weights a program rounds and counts.
pub fn counted_elements(program: &Program) -> [usize; SiteKind::ALL.len()] {
    let mut elements = [0; SiteKind::ALL.len()];
    let Some(counts) = program.state.slot(Fp8Slot::Counts) else { return elements };
    for node in &program.nodes {
        for &output in &node.outputs {
            let Home::View { of, offset } = program.tensor(output).home else { continue };
            if program.tensor(of).home == Home::State(counts) {
                let site = offset / program.spec(output).bytes();
                elements[site % SiteKind::ALL.len()] += program.spec(node.outputs[0]).elements();
            }
        }
    }
    elements
}
