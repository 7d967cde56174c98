//! A graph with the readers of every operation.

use super::step::WeightedNorm;
use crate::model_text::{Elementwise, Graph, Norm, NormKind, Operation};
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

    /// Returns the norm that gives an operation's result, the value that it normalizes, and the operations on
    /// the way. A norm by root mean square without a weight has one if its result is multiplied by a trained
    /// vector, to which a number may be added.
    pub fn norm(&self, root: usize) -> Option<(WeightedNorm, usize, Vec<usize>)> {
        if let (&Operation::Norm(norm), &[of]) = (self.operation(root), self.inputs(root)) {
            return Some((WeightedNorm { norm, weight_offset: 0.0 }, of, Vec::new()));
        }
        let (Operation::Elementwise(Elementwise::Multiply), &[a, b]) =
            (self.operation(root), self.inputs(root))
        else {
            return None;
        };
        [(a, b), (b, a)].into_iter().find_map(|(inner, factor)| {
            let (&Operation::Norm(norm), &[of]) = (self.operation(inner), self.inputs(inner)) else {
                return None;
            };
            let (weight, weight_offset) = self.vector_plus_number(factor)?;
            let [shape, of_factor] = [inner, factor].map(|node| self.graph.nodes[node].shape);
            let is_plain = norm.kind == NormKind::Rms && norm.weight.is_none();
            let fits = (of_factor.heads, of_factor.width) == (1, shape.width);
            let norm = WeightedNorm { norm: Norm { weight: Some(weight), ..norm }, weight_offset };
            (is_plain && fits).then(|| (norm, of, vec![inner]))
        })
    }

    /// Returns the parameter of a trained vector, and the number that is added to it.
    fn vector_plus_number(&self, node: usize) -> Option<(usize, f64)> {
        match (self.operation(node), self.inputs(node)) {
            (&Operation::Vector(parameter), _) => Some((parameter, 0.0)),
            (Operation::Elementwise(Elementwise::Add), &[a, b]) => {
                match (self.operation(a), self.operation(b)) {
                    (&Operation::Constant(number), &Operation::Vector(parameter))
                    | (&Operation::Vector(parameter), &Operation::Constant(number)) => {
                        Some((parameter, number))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
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
