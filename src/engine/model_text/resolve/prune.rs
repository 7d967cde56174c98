//! Removes the operations that no logit depends on.

use crate::model_text::graph::{Graph, Node, Norm, Operation, Parameter};

impl Operation {
    /// Returns the parameters that the operation reads.
    pub fn parameters(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, second) = match *self {
            Self::Embedding { table, .. } => (Some(table), None),
            Self::Linear { weight, bias } => (Some(weight), bias),
            Self::Norm(Norm { weight, bias, .. }) => (bias, weight),
            Self::Vector(vector) => (Some(vector), None),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }
}

/// Returns the last statement that computes with a parameter in the parameter's block: where its trace ends,
/// if no logit depends on it.
pub(super) fn last_reader(graph: &Graph, parameter: usize) -> usize {
    let Parameter { block, statement, .. } = graph.parameters[parameter];
    let mut depends = vec![false; graph.nodes.len()];
    let mut last = statement;
    for (index, node) in graph.nodes.iter().enumerate() {
        depends[index] = node.operation.parameters().any(|own| own == parameter)
            || node.inputs.iter().any(|&input| depends[input]);
        if depends[index] && node.block == block {
            last = node.statement;
        }
    }
    last
}

/// Returns the graph without operations that no logit depends on.
///
/// # Errors
/// Fails with the index of the first parameter that no logit depends on, and the graph.
pub(super) fn pruned(graph: Graph) -> Result<Graph, (usize, Graph)> {
    let mut needed = vec![false; graph.nodes.len()];
    let mut read = vec![false; graph.parameters.len()];
    needed[graph.logits] = true;
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        if needed[index] {
            node.inputs.iter().for_each(|&input| needed[input] = true);
            node.operation.parameters().for_each(|parameter| read[parameter] = true);
        }
    }
    if let Some(unread) = read.iter().position(|read| !read) {
        return Err((unread, graph));
    }
    // New index of each operation: the number of kept operations before it.
    let kept_before = needed.iter().scan(0, |kept, &needed| {
        let before = *kept;
        *kept += usize::from(needed);
        Some(before)
    });
    let to: Vec<usize> = kept_before.collect();
    let kept = graph.nodes.into_iter().zip(&needed).filter(|(_, needed)| **needed);
    let moved = |(node, _): (Node, _)| {
        let inputs = node.inputs.iter().map(|&input| to[input]).collect();
        Node { inputs, ..node }
    };
    Ok(Graph { nodes: kept.map(moved).collect(), logits: to[graph.logits], ..graph })
}
