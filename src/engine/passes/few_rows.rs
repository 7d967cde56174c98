//! Gives products of a few rows an op of their own, which also absorbs the ops that follow.

use crate::ir::{Home, Node, Op, Program, TensorId};
use crate::ops::activate::Activate;
use crate::ops::add_bias::AddBias;
use crate::ops::formula::Function;
use crate::ops::gated::Gated;
use crate::ops::linear::Linear;
use crate::ops::linear_few_rows::{LinearFewRows, Output};
use std::any::Any;
use std::sync::Arc;

/// Replaces every product that the kernel of [`LinearFewRows`] serves by that op. The op absorbs the bias and
/// the activation that follow, if nothing else reads the values between them. Activations given as formulas
/// stay separate ops.
pub fn fuse_few_rows(mut program: Program) -> Program {
    let mut at = 0;
    while at < program.nodes.len() {
        if let Some(node) = few_rows(&program, &program.nodes[at]) {
            program.nodes[at] = node;
            while let Some(node) = merge_next(&program, at) {
                program.nodes[at] = node;
                program.nodes.remove(at + 1);
            }
        }
        at += 1;
    }
    program
}

/// Returns a [`LinearFewRows`] node in place of a product that it serves; `None` for all other nodes.
fn few_rows(program: &Program, node: &Node) -> Option<Node> {
    let linear = downcast::<Linear>(&node.op)?;
    let [x, w] = *node.inputs else { return None };
    let serves = LinearFewRows::serves(program.spec(x), program.spec(w));
    serves.then(|| Node { op: Arc::new(LinearFewRows::new(*linear)), ..node.clone() })
}

/// Returns one node that does the work of node `at` and the next; `None` if they cannot be merged.
fn merge_next(program: &Program, at: usize) -> Option<Node> {
    let (node, next) = (&program.nodes[at], program.nodes.get(at + 1)?);
    let layer = *downcast::<LinearFewRows>(&node.op)?;
    if next.inputs[0] != node.outputs[0] || !is_read_once(program, node.outputs[0]) {
        return None;
    }
    let is_unfinished = layer.output == Output::Sum;
    let layer = if downcast::<AddBias>(&next.op).is_some() && is_unfinished && !layer.bias {
        LinearFewRows { bias: true, ..layer }
    } else if let Some(Activate { function: Function::BuiltIn(f), bias: false }) =
        downcast(&next.op).filter(|_| is_unfinished)
    {
        LinearFewRows { output: Output::Activated(*f), ..layer }
    } else if let Some(Gated(Function::BuiltIn(f))) = downcast(&next.op).filter(|_| is_unfinished) {
        LinearFewRows { output: Output::Gated(*f), ..layer }
    } else {
        return None;
    };
    let inputs = [&node.inputs, &next.inputs[1..]].concat();
    Some(Node { op: Arc::new(layer), inputs, ..next.clone() })
}

/// Returns the op as a `T`, if it is one.
fn downcast<T: Op>(op: &Arc<dyn Op>) -> Option<&T> {
    let op: &dyn Any = op.as_ref();
    op.downcast_ref()
}

/// Returns true if the tensor is transient, one node writes it, and one node reads it, once.
fn is_read_once(program: &Program, id: TensorId) -> bool {
    let count = |tensors: fn(&Node) -> &[TensorId]| {
        let all = program.nodes.iter().flat_map(tensors);
        all.filter(|&&tensor| program.base(tensor) == program.base(id)).count()
    };
    program.tensor(id).home == Home::Transient
        && count(|node| &node.inputs) == 1
        && count(|node| &node.outputs) == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DType;
    use crate::ir::{Builder, Precision, Spec, StateBuilder};
    use crate::ops::activation::Activation;
    use crate::ops::add::Add;

    /// Records three layers of `rows` rows: one with a bias and an activation, one with a gate, and one in
    /// which another op also reads the product before its bias. Returns the ops after the pass.
    fn fused(rows: usize, dtype: DType) -> Vec<String> {
        let mut layout = StateBuilder::empty(Precision::for_act_dtype(dtype));
        let weights = Spec::new([64, 64], dtype);
        let bias = Spec::new([64], dtype.accumulator());
        let gate_up = Spec::new([2, 64, 64], dtype);
        let x = Spec::new([rows, 64], dtype);
        let slots = layout.group("s", [("x", x), ("w", weights), ("b", bias), ("gate_up", gate_up)]);
        let mut b = Builder::new("generate", Arc::new(layout.finish()));
        let [x, w, bias, gate_up] = slots.map(|slot| b.state_slot(slot));
        let y = b.emit1("y", Linear::default(), &[x, w]).unwrap();
        let y = b.emit1("biased", AddBias, &[y, bias]).unwrap();
        let y = b.emit1("activated", Activate::new(Activation::Gelu), &[y]).unwrap();
        let y = b.emit1("y", Linear::default(), &[y, gate_up]).unwrap();
        let y = b.emit1("gated", Gated(Activation::Silu.into()), &[y]).unwrap();
        let y = b.emit1("y", Linear::default(), &[y, w]).unwrap();
        let z = b.emit1("biased", AddBias, &[y, bias]).unwrap();
        b.emit1("sum", Add, &[y, z]).unwrap();
        let program = fuse_few_rows(b.finish());
        program.nodes.iter().map(|node| format!("{} {}", node.op.name(), node.op.attributes())).collect()
    }

    #[test]
    fn bias_and_activation_go_into_the_product_where_nothing_else_reads_it() {
        let layers = [
            "linear_few_rows bias activation=gelu",
            "linear_few_rows gate=silu",
            "linear_few_rows ",
            "add_bias ",
            "add ",
        ];
        assert_eq!(fused(16, DType::Bf16), layers);
    }

    #[test]
    fn products_of_more_rows_or_in_another_format_stay() {
        let recorded =
            ["linear ", "add_bias ", "gelu ", "linear ", "swiglu ", "linear ", "add_bias ", "add "];
        assert_eq!(fused(17, DType::Bf16), recorded);
        assert_eq!(fused(1, DType::F32), recorded);
    }
}
