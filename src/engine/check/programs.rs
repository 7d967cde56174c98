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

/// The state of a case: slots for inputs, outputs, gradients of outputs, and gradients of inputs.
pub(super) struct Layout {
    pub(super) state: Arc<State>,
    pub(super) inputs: Vec<SlotId>,
    pub(super) outputs: Vec<SlotId>,
    /// Upstream gradients, in the order of [`Case::upstream`].
    pub(super) seeds: Vec<SlotId>,
    /// Gradients of inputs, in the order of [`Case::differentiable`].
    pub(super) grads: Vec<SlotId>,
}

impl Layout {
    pub(super) fn new(case: &Case, precision: Precision) -> Result<Self> {
        let mut builder = StateBuilder::empty(precision);
        let output_specs = output_specs(case)?;
        let mut group = |name: &str, tensors: Vec<(usize, Spec)>| {
            builder.group_from_iter(name, tensors.into_iter().map(|(i, spec)| (i.to_string(), spec)))
        };
        let inputs = group("in", case.inputs.iter().map(|(s, _)| s.clone()).enumerate().collect());
        let outputs = group("out", output_specs.iter().cloned().enumerate().collect());
        let seeds = group("seed", case.upstream.iter().map(|&k| (k, output_specs[k].clone())).collect());
        let gradient = |i: usize| {
            let spec = &case.inputs[i].0;
            if case.weights.contains(&i) { spec.with_dtype(spec.dtype.accumulator()) } else { spec.clone() }
        };
        let grads = group("grad", case.differentiable.iter().map(|&i| (i, gradient(i))).collect());
        for (&i, &grad) in case.differentiable.iter().zip(&grads) {
            builder.watch(inputs[i], grad);
        }
        Ok(Self { state: Arc::new(builder.finish()), inputs, outputs, seeds, grads })
    }

    /// Records copies of the inputs, the op, and copies of its outputs.
    pub(super) fn forward(&self, case: &Case) -> Result<(Program, Vec<TensorId>)> {
        let mut b = Builder::new("forward", Arc::clone(&self.state));
        let mut inputs = Vec::new();
        for (i, &slot) in self.inputs.iter().enumerate() {
            let from = b.state_slot(slot);
            let weight = case.weights.contains(&i);
            inputs.push(if weight { from } else { b.emit1(&format!("in{i}"), Copy, &[from])? });
        }
        let mut outs = Vec::new();
        for (k, &slot) in self.outputs.iter().enumerate() {
            let adds = case.outputs.get(k).is_some_and(|(mode, _)| *mode == Mode::Add);
            let out = b.state_slot(slot);
            outs.push(if adds { Destination::Into(out, Mode::Add) } else { Destination::New });
        }
        let outputs = b.emit_into("y", Arc::clone(&case.op), &inputs, &outs)?;
        for (k, &y) in outputs.iter().enumerate() {
            if outs[k] == Destination::New {
                let out = b.state_slot(self.outputs[k]);
                b.emit_into("out", Arc::new(Copy), &[y], &[Destination::Into(out, Mode::Write)])?;
            }
        }
        Ok((b.finish(), outputs))
    }

    /// Records the forward and its gradient, for the first micro-step of a step or a later one.
    pub(super) fn with_gradient(&self, case: &Case, first: bool) -> Result<Program> {
        let (program, outputs) = self.forward(case)?;
        let mut b = Builder::resume(program);
        let seed = |(&k, &seed)| (outputs[k], Upstream::Tensor(b.state_slot(seed)));
        let seeds: Vec<_> = case.upstream.iter().zip(&self.seeds).map(seed).collect();
        differentiate(b.finish(), &seeds, first)
    }

    /// Records the op twice on the same inputs, and the gradients of both: the second gradient of a tensor is
    /// added to the first, by its op or by a sum.
    pub(super) fn twice(&self, case: &Case) -> Result<Program> {
        let (program, outputs) = self.forward(case)?;
        let mut b = Builder::resume(program);
        let inputs =
            b.program.nodes.iter().find(|node| node.outputs == outputs).map(|node| node.inputs.clone());
        let inputs = inputs.ok_or_else(|| Error::failed(format!("{case:?} is not in its program")))?;
        let again = b.emit_into("again", Arc::clone(&case.op), &inputs, &[])?;
        let seeds: Vec<_> = [outputs, again]
            .iter()
            .flat_map(|outputs| case.upstream.iter().zip(&self.seeds).map(|(&k, &seed)| (outputs[k], seed)))
            .map(|(output, seed)| (output, Upstream::Tensor(b.state_slot(seed))))
            .collect();
        differentiate(b.finish(), &seeds, true)
    }

    /// Records the same as the first micro-step of [`Layout::with_gradient`], except that the outputs are
    /// copied in the backward, before the gradients, and outputs that are cheap to recompute are not kept for
    /// it.
    pub(super) fn recomputed(&self, case: &Case) -> Result<Program> {
        let mut program = self.with_gradient(case, true)?;
        for at in 0..program.nodes.len() {
            let node = &program.nodes[at];
            let to = program.tensor(node.outputs[0]).home;
            if node.op.name() == Copy.name() && self.outputs.iter().any(|&slot| to == Home::State(slot)) {
                program.nodes[at].phase = Phase::Backward;
            }
        }
        recompute(program, Recompute::Selective)
    }
}
