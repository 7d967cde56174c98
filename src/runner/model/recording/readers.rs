//! A graph with the readers of every operation.

use crate::model_text::{Elementwise, Graph, Operation};
use crate::ops::formula::Function;

/// A graph with the readers of every operation.
pub(super) struct Readers<'a> {
    pub graph: &'a Graph,
    /// The function of [`Operation::Activation`].
    pub activation: Function,
    /// For every operation, those that read it.
    pub readers: Vec<Vec<usize>>,
    /// For every operation that drops elements, the index of its site.
    sites: Vec<u32>,
}

impl<'a> Readers<'a> {
    pub fn new(graph: &'a Graph, activation: Function) -> Self {
        let mut readers = vec![Vec::new(); graph.nodes.len()];
        let mut sites = Vec::with_capacity(graph.nodes.len());
        let mut next = 0;
        for (index, node) in graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|&input| readers[input].push(index));
            sites.push(next);
            next += u32::from(node.operation.dropout() > 0.0);
        }
        Self { graph, activation, readers, sites }
    }

    /// Returns the operation.
    pub fn operation(&self, node: usize) -> &'a Operation {
        &self.graph.nodes[node].operation
    }

    /// Returns the inputs of an operation.
    pub fn inputs(&self, node: usize) -> &'a [usize] {
        &self.graph.nodes[node].inputs
    }

    /// Returns the index of the site of an operation that drops elements.
    pub fn site(&self, node: usize) -> u32 {
        self.sites[node]
    }

    /// Returns the factor and the other value of a product with a number.
    pub fn times_number(&self, node: usize) -> Option<(f64, usize)> {
        let (Operation::Elementwise(Elementwise::Multiply), &[a, b]) =
            (self.operation(node), self.inputs(node))
        else {
            return None;
        };
        match (self.operation(a), self.operation(b)) {
            (&Operation::Constant(factor), _) => Some((factor, b)),
            (_, &Operation::Constant(factor)) => Some((factor, a)),
            _ => None,
        }
    }
}
