//! The tensors of a model: those that are trained, those that are not, and requests to lay them out.

use super::{Role, SlotId, Spec, UpdateOverride};
use std::ops::Range;

/// Initialization of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal with this standard deviation.
    Normal(f64),
    /// All the same: 1 for the weights of norms, 0 for biases.
    Constant(f64),
}

/// A trained tensor, and where its master, gradient and compute copy lie.
#[derive(Clone, Debug)]
pub struct Param {
    /// Name, such as `blocks.0.qkv`.
    pub name: String,
    /// Shape and padding, in the master format.
    pub spec: Spec,
    /// Initialization.
    pub init: Init,
    /// Role in the model.
    pub role: Role,
    /// What the model says about its updates.
    pub update: UpdateOverride,
    /// Rows of each matrix stacked in it; see [`ParamRequest::stacked`].
    pub stacked: Vec<usize>,
    /// Index of the parameter's block, counted from the input; `None` outside the blocks.
    pub block: Option<usize>,
    /// First element in each flat buffer.
    pub start: usize,
    /// The slot that ops read: the compute copy for matrices in a mixed-precision program, else the master.
    pub read: SlotId,
    /// The gradient.
    pub grad: SlotId,
}

impl Param {
    /// Returns the role by which the optimizer groups the parameter.
    pub fn update_role(&self) -> Role {
        self.update.role.unwrap_or(self.role)
    }

    /// Returns the parameter's elements in the flat buffers, padding included.
    pub fn flat(&self) -> Range<usize> {
        self.start..self.start + self.spec.elements()
    }

    /// Returns the *logical matrices* stored in the parameter, such as the query, key and value projections,
    /// in order; none for a vector.
    pub fn matrices(&self) -> Vec<LogicalMatrix> {
        let (shape, alloc) = (&self.spec.shape, &self.spec.alloc);
        // Logical rows and rows in memory.
        let parts: Vec<[usize; 2]> = match (shape.len(), &self.stacked[..]) {
            (0 | 1, _) => Vec::new(),
            (2, []) => vec![[shape[0], alloc[0]]],
            (2, stacked) => stacked.iter().map(|&rows| [rows, rows]).collect(),
            (dimensions, _) => {
                let rows = [shape[dimensions - 2], alloc[dimensions - 2]];
                vec![rows; alloc[..dimensions - 2].iter().product()]
            }
        };
        let (columns, width, mut start) = (shape.last().copied().unwrap_or(1), self.spec.width(), self.start);
        let matrix = |[rows, in_memory]: [usize; 2]| {
            let alloc = [in_memory, width];
            let matrix = LogicalMatrix { shape: [rows, columns], alloc, start };
            start += in_memory * width;
            matrix
        };
        parts.into_iter().map(matrix).collect()
    }
}

/// A tensor that ops read and nothing trains, such as a weight of a model that has an adapter. It has neither
/// a master nor a gradient.
#[derive(Clone, Debug)]
pub struct FrozenParam {
    /// Name, such as `blocks.0.qkv`.
    pub name: String,
    /// Shape and padding, in the format in which ops read it.
    pub spec: Spec,
    /// Role in the model.
    pub role: Role,
    /// The slot that ops read.
    pub read: SlotId,
}

/// A matrix of a model: it maps the rows of one product's input to its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogicalMatrix {
    /// Numbers of outputs and inputs.
    pub shape: [usize; 2],
    /// The same in memory, padding included.
    pub alloc: [usize; 2],
    /// First element in each flat buffer.
    pub start: usize,
}

/// Request to lay out a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamRequest {
    /// Name.
    pub name: String,
    /// Logical shape.
    pub shape: Vec<usize>,
    /// Shape in memory.
    pub alloc: Vec<usize>,
    /// Initialization.
    pub init: Init,
    /// Role in the model. Matrices are read in the format of activations, vectors as masters.
    pub role: Role,
    /// What the model says about its updates.
    pub update: UpdateOverride,
    /// Rows of each matrix, if several are stacked one below the other; empty if the parameter is one matrix
    /// or has its matrices side by side in a dimension of their own.
    pub stacked: Vec<usize>,
    /// Index of the parameter's block, counted from the input; `None` outside the blocks.
    pub block: Option<usize>,
}

impl ParamRequest {
    /// Returns the role by which the optimizer groups the parameter.
    pub fn update_role(&self) -> Role {
        self.update.role.unwrap_or(self.role)
    }
}
