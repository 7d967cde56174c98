//! The names of the tensors that show how large a model's activations are.

use super::names::names;
use crate::ir::{Role, Sublayer};
use crate::model::parameters::roles;
use crate::model::purpose::ActivationKind;
use crate::model_text::{Graph, Node, Operation, Part};

/// Returns the tensors of an evaluation whose size shows whether a parametrization holds across widths, each
/// with its kind. Kinds within blocks have one tensor per block.
pub fn activations(graph: &Graph) -> Vec<(ActivationKind, String)> {
    let (names, roles) = (names(graph), roles(graph));
    // Evaluations drop no elements, so the tensor is the one before.
    let name = |mut node: usize| {
        while let (Operation::Dropout(_), [input]) =
            (&graph.nodes[node].operation, &graph.nodes[node].inputs[..])
        {
            node = *input;
        }
        names[node].clone()
    };
    let part = |node: usize| graph.statements[graph.nodes[node].statement].part;
    let rows = |node: &usize| graph.nodes[*node].shape.rows;
    let embedding = (0..graph.nodes.len()).filter(rows).rfind(|&node| part(node) == Part::Embed);
    let mut activations: Vec<(ActivationKind, String)> = Vec::new();
    activations.extend(embedding.map(|node| (ActivationKind::Embedding, name(node))));
    // The last products of the sublayers of every block.
    for (index, node) in graph.nodes.iter().enumerate() {
        let &Operation::Linear { weight, .. } = &node.operation else { continue };
        let kind = match roles[weight] {
            Role::Matrix(Sublayer::Attention) => ActivationKind::Attention,
            Role::Matrix(Sublayer::FeedForward) => ActivationKind::FeedForward,
            _ => continue,
        };
        let is_alike = |later: &Node| match later.operation {
            Operation::Linear { weight: other, .. } => roles[other] == roles[weight],
            _ => false,
        };
        let mut later = graph.nodes[index + 1..].iter().take_while(|later| later.block == node.block);
        let is_last = !later.any(is_alike);
        if is_last && node.block.is_some() {
            activations.push((kind, name(index)));
        }
    }
    let stream = head_input(graph);
    activations.push((ActivationKind::Residual, name(stream)));
    activations.push((ActivationKind::HeadProducts, "head.logits.1".to_owned()));
    activations
}

/// Returns the last value that the part `head` reads of the blocks.
fn head_input(graph: &Graph) -> usize {
    let is_outside = |node: &usize| graph.statements[graph.nodes[*node].statement].part != Part::Head;
    let of_head = graph.nodes.iter().filter(|node| graph.statements[node.statement].part == Part::Head);
    of_head.flat_map(|node| node.inputs.iter().copied()).filter(is_outside).max().unwrap_or(graph.logits)
}
