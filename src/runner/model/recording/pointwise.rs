//! Functions of rows and trained vectors, with broadcast.

use super::step::Step;
use super::view::View;
use super::{Recording, Tensors, index_of};
use crate::error::Result;
use crate::expression::{Formula, Tree};
use crate::ir::{Builder, TensorId};
use crate::model_text::{Graph, Operation, Shape};
use crate::ops::arrange::Arrange;
use crate::ops::pointwise::{Operand, Pointwise};
use std::sync::Arc;

/// A variable of a function: a part of a tensor, and how its numbers are spread over the result.
struct Variable {
    node: usize,
    view: View,
    per_head: bool,
    per_element: bool,
}

impl Recording<'_> {
    /// Records a function of the step's inputs. Parts of a tensor that cover it are read in place, and other
    /// parts are copied.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn pointwise(
        &self,
        b: &mut Builder,
        step: &Step,
        formula: &Formula,
        tensors: &mut Tensors,
    ) -> Result<Vec<TensorId>> {
        let graph = &*self.plan.graph;
        let (shape, variables) = variables(graph, step);
        let (mut inputs, mut operands) = (Vec::new(), Vec::new());
        let mut places = Vec::with_capacity(variables.len());
        for variable in &variables {
            let Variable { node, view, mut per_head, per_element } = *variable;
            let (tensor, from) = if let Operation::Vector(parameter) = graph.nodes[view.base].operation {
                (self.param(b, parameter)?, view.from)
            } else if let Some(tensor) = in_place(b, &variables, view.base, shape, tensors) {
                (tensor, view.from)
            } else if per_head || shape.heads == 1 {
                (self.read(b, tensors, node)?, 0)
            } else {
                per_head = true;
                let rows = self.read(b, tensors, node)?;
                let piece = View { base: node, from: 0, stride: view.width, ..view }.piece(0);
                (b.emit1("heads", Arrange { heads: shape.heads, pieces: vec![piece] }, &[rows])?, 0)
            };
            let input = index_of(&mut inputs, tensor);
            let operand = Operand { input, from, per_head, per_element };
            places.push(Tree::Variable(index_of(&mut operands, operand)));
        }
        // Values that are the same tensor, such as rows of which none is dropped, are one variable.
        let formula = match operands.len() == variables.len() {
            true => formula.clone(),
            false => Formula::from_tree(formula.tree().with_variables(&places), operands.len()),
        };
        let op = Pointwise::new(&formula, operands, shape.heads, shape.width);
        self.emit(b, step, Arc::new(op), &inputs)
    }
}

/// Returns the shape of a function's result and its variables. Heads that no variable tells apart are one.
fn variables(graph: &Graph, step: &Step) -> (Shape, Vec<Variable>) {
    let mut shape = graph.nodes[step.outputs[0]].shape;
    let of = |node: usize| graph.nodes[node].shape;
    let is_whole = |own: Shape| (own.heads, own.width) == (shape.heads, shape.width);
    let is_one = |own: Shape| own.elements() == 1;
    let joined = step.inputs.iter().all(|&node| is_whole(of(node)) || is_one(of(node)));
    let variables = step.inputs.iter().map(|&node| {
        let own = of(node);
        let (per_head, per_element) = match joined {
            true => (true, is_whole(own)),
            false => (own.heads == shape.heads, own.width == shape.width),
        };
        Variable { node, view: View::new(graph, node), per_head, per_element }
    });
    let variables = variables.collect();
    if joined {
        shape = Shape { heads: 1, width: shape.elements(), ..shape };
    }
    (shape, variables)
}

/// Returns the result of the operation `base`, if the variables that are parts of it cover it once, and can
/// be read there.
fn in_place(
    b: &Builder,
    variables: &[Variable],
    base: usize,
    shape: Shape,
    tensors: &Tensors,
) -> Option<TensorId> {
    let tensor = tensors.results[base]?;
    let spec = b.spec(tensor);
    let parts = variables.iter().filter(|variable| tensors.results[variable.view.base] == Some(tensor));
    let fits = |variable: &Variable| variable.view.is_contiguous() && (variable.per_head || shape.heads == 1);
    let mut spans: Vec<[usize; 2]> =
        parts.clone().map(|v| [v.view.from, v.view.from + v.view.elements()]).collect();
    spans.sort_unstable();
    spans.dedup();
    let end = spans.iter().try_fold(0, |next, &[from, end]| (from == next).then_some(end));
    let covers = end == Some(spec.shape[1..].iter().product());
    let is_read_as_it_is = spec.alloc == spec.shape || spans.len() == 1;
    (covers && is_read_as_it_is && parts.clone().all(fits)).then_some(tensor)
}
