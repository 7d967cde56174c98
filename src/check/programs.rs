//! The state and the programs of a case.

use crate::error::{Error, Result};
use crate::ir::{
    Builder, Case, Destination, Home, Mode, Op, Phase, Precision, Program, SlotId, Spec, State, StateBuilder,
    TensorId, Upstream,
};
use crate::ops::copy::Copy;
use crate::passes::{differentiate, recompute};
use crate::policy::Recompute;
use std::sync::Arc;

pub(super) fn output_specs(case: &Case) -> Result<Vec<Spec>> {
    let inputs: Vec<Spec> = case.inputs.iter().map(|(s, _)| s.clone()).collect();
    case.op.infer(&inputs).map_err(|e| Error::failed(format!("{case:?}: {e}")))
}

pub(super) fn layout(case: &Case, precision: Precision) -> Result<State> {
    let mut builder = StateBuilder::empty(precision);
    let outputs = output_specs(case)?;
    let mut group = |name: &str, tensors: Vec<(usize, Spec)>| {
        let names: Vec<String> = tensors.iter().map(|(i, _)| i.to_string()).collect();
        let tensors: Vec<(&str, Spec)> =
            names.iter().zip(tensors).map(|(name, (_, spec))| (name.as_str(), spec)).collect();
        builder.group(name, &tensors);
    };
    group("in", case.inputs.iter().map(|(s, _)| s.clone()).enumerate().collect());
    group("out", outputs.iter().cloned().enumerate().collect());
    group("seed", case.upstream.iter().map(|&k| (k, outputs[k].clone())).collect());
    let gradient = |i: usize| {
        let spec = &case.inputs[i].0;
        if case.weights.contains(&i) { spec.with_dtype(spec.dtype.accumulator()) } else { spec.clone() }
    };
    group("grad", case.differentiable.iter().map(|&i| (i, gradient(i))).collect());
    for i in &case.differentiable {
        builder.watch(&format!("in.{i}"), &format!("grad.{i}"));
    }
    Ok(builder.finish())
}

/// Records copies of the inputs, the op, and copies of its outputs.
pub(super) fn forward(case: &Case, state: &Arc<State>) -> Result<(Program, Vec<TensorId>)> {
    let mut b = Builder::new("forward", Arc::clone(state));
    let mut inputs = Vec::new();
    for i in 0..case.inputs.len() {
        let from = b.state(&format!("in.{i}"))?;
        let weight = case.weights.contains(&i);
        inputs.push(if weight { from } else { b.emit1(&format!("in{i}"), Copy, &[from])? });
    }
    let mut outs = Vec::new();
    for (k, _) in output_specs(case)?.iter().enumerate() {
        let adds = case.outputs.get(k).is_some_and(|(mode, _)| *mode == Mode::Add);
        let out = b.state(&format!("out.{k}"))?;
        outs.push(if adds { Destination::Into(out, Mode::Add) } else { Destination::New });
    }
    let outputs = b.emit_into("y", Arc::clone(&case.op), &inputs, &outs)?;
    for (k, &y) in outputs.iter().enumerate() {
        if outs[k] == Destination::New {
            let out = b.state(&format!("out.{k}"))?;
            b.emit_into("out", Arc::new(Copy), &[y], &[Destination::Into(out, Mode::Write)])?;
        }
    }
    Ok((b.finish(), outputs))
}

pub(super) fn both(case: &Case, state: &Arc<State>, first: bool) -> Result<Program> {
    let (program, outputs) = forward(case, state)?;
    let mut b = Builder::resume(program);
    let mut seeds = Vec::new();
    for &k in &case.upstream {
        let seed = b.state(&format!("seed.{k}"))?;
        seeds.push((outputs[k], Upstream::Tensor(seed)));
    }
    differentiate(b.finish(), &seeds, first)
}

/// As the first micro-step of [`both`], but the outputs are copied in the backward, before its gradients, and
/// those that are cheap to recompute are not kept for it.
pub(super) fn recomputed(case: &Case, state: &Arc<State>) -> Result<Program> {
    let mut program = both(case, state, true)?;
    let results: Vec<SlotId> =
        (0..output_specs(case)?.len()).filter_map(|k| state.slot(&format!("out.{k}"))).collect();
    for at in 0..program.nodes.len() {
        let node = &program.nodes[at];
        let to = program.tensor(node.outputs[0]).home;
        if node.op.name() == Copy.name() && results.iter().any(|&slot| to == Home::State(slot)) {
            program.nodes[at].phase = Phase::Backward;
        }
    }
    recompute(program, Recompute::Selective)
}
