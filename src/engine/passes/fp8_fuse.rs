//! Rounds matrices to 8-bit floats in the ops that compute them, so that the matrices themselves are never
//! stored. The bits stay the same.

use crate::ir::{Home, Mode, Node, Op, Program, TensorId};
use crate::ops::gated::{Gated, GatedGrad};
use crate::ops::gated_quantize::{GatedGradQuantize, GatedQuantize};
use crate::ops::quantize::Quantize;
use crate::policy::Fp8Scaling;
use std::any::Any;
use std::sync::Arc;

/// Merges [`Quantize`] with the gated activation or the gradient of one before it, if nothing else reads the
/// matrix. Those with current scaling stay, because they need the largest number first.
pub fn fuse_quantize(mut program: Program) -> Program {
    let mut removed = vec![false; program.nodes.len()];
    let mut merged = Vec::new();
    for node in &program.nodes {
        let found = merge(&program, node).filter(|(node, _)| {
            let specs: Vec<_> = node.inputs.iter().map(|&id| program.spec(id).clone()).collect();
            node.op.infer(&specs).is_ok()
        });
        for &rounding in found.iter().flat_map(|(_, roundings)| roundings) {
            removed[rounding] = true;
        }
        merged.push(found.map(|(node, _)| node));
    }
    let nodes = std::mem::take(&mut program.nodes).into_iter().zip(merged).zip(removed);
    let kept = nodes.filter(|(_, removed)| !removed).map(|((node, merged), _)| merged.unwrap_or(node));
    program.nodes = kept.collect();
    program
}

/// Returns one node that does the work of a node and of the roundings of its outputs, and the indices of
/// these roundings; `None` if there is no such op.
fn merge(program: &Program, node: &Node) -> Option<(Node, Vec<usize>)> {
    let rounding = |output: usize| rounding_of(program, node.outputs[output]);
    if let Some(gated) = downcast::<Gated>(&node.op) {
        let (index, rounding) = rounding(0)?;
        let op = GatedQuantize { of: gated.0.clone(), rounding: *rounding };
        let quantize = &program.nodes[index];
        let inputs = vec![node.inputs[0], quantize.inputs[1]];
        let outputs = (quantize.outputs.clone(), quantize.modes.clone());
        return Some((merged_node(node, Arc::new(op), inputs, outputs), vec![index]));
    }
    let grad = downcast::<GatedGrad>(&node.op)?;
    let (index, gradient) = rounding(0)?;
    let emitted = if grad.emits { Some(rounding(1)?) } else { None };
    let op = GatedGradQuantize {
        of: grad.of.clone(),
        gradient: *gradient,
        emitted: emitted.map(|(_, rounding)| *rounding),
    };
    let indices: Vec<usize> = std::iter::once(index).chain(emitted.map(|(index, _)| index)).collect();
    let quantized = || indices.iter().map(|&index| &program.nodes[index]);
    let inputs = node.inputs.iter().copied().chain(quantized().map(|quantize| quantize.inputs[1])).collect();
    let outputs = quantized().flat_map(|quantize| quantize.outputs.iter().copied()).collect();
    let modes = quantized().flat_map(|quantize| quantize.modes.iter().copied()).collect();
    Some((merged_node(node, Arc::new(op), inputs, (outputs, modes)), indices))
}

fn merged_node(
    node: &Node,
    op: Arc<dyn Op>,
    inputs: Vec<TensorId>,
    (outputs, modes): (Vec<TensorId>, Vec<Mode>),
) -> Node {
    Node { op, inputs, outputs, modes, ..node.clone() }
}

/// Returns the only node that reads a tensor, with its index, if it is a rounding with a given scale.
fn rounding_of(program: &Program, id: TensorId) -> Option<(usize, &Quantize)> {
    let reads = |node: &Node| node.inputs.iter().any(|&input| program.base(input) == id);
    let mut readers = program.nodes.iter().enumerate().filter(|(_, node)| reads(node));
    let (index, reader) = readers.next()?;
    let rounding = downcast::<Quantize>(&reader.op)?;
    let alone = readers.next().is_none() && program.tensor(id).home == Home::Transient;
    (alone && rounding.scaling == Fp8Scaling::Delayed).then_some((index, rounding))
}

/// Returns the op as a `T`, if it is one.
fn downcast<T: Op>(op: &Arc<dyn Op>) -> Option<&T> {
    let op: &dyn Any = op.as_ref();
    op.downcast_ref()
}
