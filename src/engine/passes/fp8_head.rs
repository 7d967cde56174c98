//! Divides heads into their products and what lies between them, so that the products can read 8-bit floats.

use crate::error::{Error, Result};
use crate::ir::{Builder, Destination, Home, Mode, Node, Op, Program};
use crate::ops::cross_entropy::CrossEntropyWithGrad;
use crate::ops::head_loss::{DW, DX, HeadGradients, HeadLoss, LOGITS};
use crate::ops::linear::{Linear, LinearInputGrad, LinearWeightGrad};
use std::any::Any;
use std::sync::Arc;

/// Replaces every [`HeadLoss`] with gradients whose weight the state holds as 8-bit floats by its products
/// and [`CrossEntropyWithGrad`].
///
/// # Errors
/// If the shapes do not fit.
pub(super) fn split_heads(program: Program) -> Result<Program> {
    let mut builder = Builder::resume(program);
    for node in builder.take_nodes() {
        match head_of_fp8_weight(&builder.program, &node) {
            Some(head) => split(&mut builder, head, &node)?,
            None => builder.push(node),
        }
    }
    Ok(builder.finish())
}

/// Returns the op of a node, if it is a head with gradients that reads an 8-bit weight.
fn head_of_fp8_weight(program: &Program, node: &Node) -> Option<HeadLoss> {
    let op: &dyn Any = node.op.as_ref();
    let head = op.downcast_ref::<HeadLoss>().filter(|head| head.gradients != HeadGradients::None)?;
    let Home::State(weight) = program.tensor(node.inputs[1]).home else { return None };
    program.state.fp8_weight_read_at(weight).map(|_| *head)
}

/// Records the parts of a head, which write its outputs.
fn split(b: &mut Builder, head: HeadLoss, node: &Node) -> Result<()> {
    let HeadLoss { factor, gradients, objective, products } = head;
    let [x, weight, targets, factors @ ..] = &node.inputs[..] else {
        return Err(Error::failed("a head reads x, W and targets"));
    };
    let to = |output: usize| Destination::Into(node.outputs[output], node.modes[output]);
    let mut emit = |name: &str, op: Arc<dyn Op>, inputs: &[_], outs: &[Destination]| {
        b.set_scope_of(node);
        b.phase = node.phase;
        b.emit_into(name, op, inputs, outs)
    };
    let logits = node.outputs[LOGITS];
    let written = Destination::Into(logits, Mode::Write);
    emit("logits", Arc::new(Linear { products }), &[*x, *weight], &[written])?;
    let terms = DX + gradients.count()..node.outputs.len();
    let outs = [vec![to(0), Destination::New], terms.map(to).collect()].concat();
    let losses = CrossEntropyWithGrad { factor, objective };
    let d_logits = emit("d_logits", Arc::new(losses), &[&[logits, *targets], factors].concat(), &outs)?[1];
    if gradients == HeadGradients::RowsAndWeight {
        let op = LinearWeightGrad { products };
        emit("d_head", Arc::new(op), &[*x, d_logits, *weight], &[to(DW)])?;
    }
    let op = LinearInputGrad { products, adds: false };
    emit("d_x", Arc::new(op), &[d_logits, *weight], &[to(DX)]).map(drop)
}
