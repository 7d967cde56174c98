//! Where values lie that are parts of other values: slices, and rows divided into heads.

use crate::model_text::{Graph, Operation};
use crate::ops::arrange::Piece;

/// Where the elements of a value lie in the result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// The operation.
    pub base: usize,
    /// The first element in a row of its result.
    pub from: usize,
    /// Number of heads.
    pub heads: usize,
    /// The distance from a head to the next.
    pub stride: usize,
    /// Elements of a head.
    pub width: usize,
}

impl View {
    /// Returns where the elements of a value lie.
    pub fn new(graph: &Graph, node: usize) -> Self {
        let shape = graph.nodes[node].shape;
        let inner = || Self::new(graph, graph.nodes[node].inputs[0]);
        match graph.nodes[node].operation {
            Operation::Heads => {
                let mut inner = inner();
                if !inner.is_contiguous() {
                    inner = Self::whole(graph, graph.nodes[node].inputs[0]);
                }
                Self { heads: shape.heads, stride: shape.width, width: shape.width, ..inner }
            }
            Operation::Slice { from, to } => {
                let inner = inner();
                Self { from: inner.from + from, width: to - from, ..inner }
            }
            _ => Self::whole(graph, node),
        }
    }

    /// Returns the whole result of an operation.
    pub fn whole(graph: &Graph, base: usize) -> Self {
        let shape = graph.nodes[base].shape;
        Self { base, from: 0, heads: shape.heads, stride: shape.width, width: shape.width }
    }

    /// Returns true if its elements follow each other without a gap.
    pub fn is_contiguous(&self) -> bool {
        self.heads == 1 || self.stride == self.width
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.heads * self.width
    }

    /// Returns a piece of the heads of another row; all of these get the same elements if the view has one
    /// head.
    pub fn piece(&self, input: usize) -> Piece {
        let stride = if self.heads == 1 { 0 } else { self.stride };
        Piece { input: Some(input), from: self.from, stride, width: self.width }
    }
}
