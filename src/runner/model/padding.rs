//! The widths that are padded in memory, since matrix products are fastest on multiples of
//! [`PADDING`](crate::plan::PADDING): the vocabulary, and widths between two products.

use crate::expression::Function;
use crate::ir::Role;
use crate::model_text::{Elementwise, Graph, Node, Operation, ParameterKind};
use crate::plan::Model;
use std::collections::BTreeSet;

/// Returns the padded dimensions of every parameter.
///
/// Padding is zero and must stay zero. So the width of a product is padded only if all that is computed from
/// it, up to the products that read it, keeps zeros.
pub(super) fn padded_widths(m: &Model, graph: &Graph, roles: &[Role]) -> Vec<BTreeSet<usize>> {
    let products = hidden_products(m, graph, roles);
    let mut padded = vec![BTreeSet::new(); graph.parameters.len()];
    for (role, padded) in roles.iter().zip(&mut padded) {
        padded.extend(matches!(role, Role::Embedding | Role::Head).then_some(0));
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let Operation::Linear { weight, bias } = node.operation else { continue };
        let outputs = graph.parameters[weight].shape.len() - 1;
        if products[index] == Some(index) {
            padded[weight].insert(outputs - 1);
        }
        if padded[weight].contains(&(outputs - 1)) {
            bias.iter().for_each(|&bias| _ = padded[bias].insert(outputs - 1));
        }
        if products[node.inputs[0]].is_some() {
            padded[weight].insert(outputs);
        }
    }
    padded
}

/// Returns, for every operation, the product whose padded width it has; `None` if it has none.
fn hidden_products(m: &Model, graph: &Graph, roles: &[Role]) -> Vec<Option<usize>> {
    let mut product_of: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        product_of[index] = match node.operation {
            Operation::Linear { weight, .. } => {
                let parameter = &graph.parameters[weight];
                let is_one = parameter.kind == ParameterKind::Matrix && parameter.stacked.is_empty();
                (is_one && parameter.shape.len() == 2 || is_stack_of_two(graph, weight)).then_some(index)
            }
            _ if keeps_zeros(m, graph, node) => common(graph, &product_of, &node.inputs),
            Operation::Slice { from, .. } => half(graph, &product_of, node, from),
            _ => None,
        };
    }
    // Something else reads it.
    let mut refused = BTreeSet::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let is_product = matches!(node.operation, Operation::Linear { .. });
        for &input in node.inputs.iter().filter(|_| !is_product) {
            refused.extend(product_of[input].filter(|_| product_of[index] != product_of[input]));
        }
        // The halves of a stack are padded each, so it is taken apart before a product reads it.
        // The rows that the head reads are kept without padding.
        let is_head = matches!(node.operation, Operation::Linear { weight, .. }
            if matches!(roles[weight], Role::Head | Role::Embedding));
        for &input in node.inputs.iter().filter(|_| is_product) {
            refused.extend(product_of[input].filter(|_| is_head));
            refused.extend(product_of[input].filter(|&product| {
                let is_whole = graph.nodes[input].shape.elements() == graph.nodes[product].shape.elements();
                let stack = matches!(graph.nodes[product].operation, Operation::Linear { weight, .. }
                    if graph.parameters[weight].shape.len() == 3);
                is_whole && stack
            }));
        }
    }
    refused.extend(product_of[graph.logits]);
    product_of.iter_mut().for_each(|product| *product = product.filter(|product| !refused.contains(product)));
    product_of
}

fn is_stack_of_two(graph: &Graph, weight: usize) -> bool {
    matches!(graph.parameters[weight].shape[..], [2, _, _])
}

/// Returns the product that a half of it belongs to.
fn half(graph: &Graph, product_of: &[Option<usize>], node: &Node, from: usize) -> Option<usize> {
    let product = node.inputs[0];
    let Operation::Linear { weight, .. } = graph.nodes[product].operation else { return None };
    let &[2, width, _] = &graph.parameters[weight].shape[..] else { return None };
    (node.shape.width == width && from.is_multiple_of(width)).then_some(product_of[product]?)
}

/// Returns the product that all inputs with rows belong to.
fn common(graph: &Graph, product_of: &[Option<usize>], inputs: &[usize]) -> Option<usize> {
    let mut rows = inputs.iter().filter(|&&input| graph.nodes[input].shape.rows);
    let first = product_of[*rows.next()?]?;
    rows.all(|&input| product_of[input] == Some(first)).then_some(first)
}

/// Returns true if an operation gives 0 where its inputs with rows are 0, with a finite slope.
fn keeps_zeros(m: &Model, graph: &Graph, node: &Node) -> bool {
    use Function::{Abs, Erf, Gelu, GeluTanh, Max, Min, Relu, Sign, Silu, Sin, Tanh};
    let number = |input: usize| match graph.nodes[input].operation {
        Operation::Constant(number) => Some(number),
        _ => None,
    };
    let rows_alone = node.inputs.iter().all(|&input| graph.nodes[input].shape.rows);
    match node.operation {
        Operation::Dropout(_) => true,
        Operation::Activation => m.activation_keeps_zeros(),
        Operation::Elementwise(Elementwise::Negate) => true,
        Operation::Elementwise(Elementwise::Add | Elementwise::Subtract) => rows_alone,
        Operation::Elementwise(Elementwise::Multiply) => {
            rows_alone || node.inputs.iter().any(|&input| number(input).is_some())
        }
        Operation::Elementwise(Elementwise::Divide) => number(node.inputs[1]).is_some_and(|by| by != 0.0),
        Operation::Elementwise(Elementwise::Power) => {
            number(node.inputs[1]).is_some_and(|power| power >= 1.0)
        }
        Operation::Elementwise(Elementwise::Function(
            Abs | Erf | Gelu | GeluTanh | Relu | Sign | Silu | Sin | Tanh,
        )) => true,
        Operation::Elementwise(Elementwise::Function(Max | Min)) => rows_alone,
        _ => false,
    }
}
