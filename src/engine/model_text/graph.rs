//! A resolved text: the operations of all layers in order, with their shapes and parameters.

use super::tree::Part;
use crate::expression::Function;
use std::fmt;

/// Most operations in a graph, over all layers.
pub const MAX_GRAPH_NODES: usize = 1 << 18;

/// Most elements in a row.
pub const MAX_WIDTH: usize = 1 << 24;

/// Most elements in a parameter.
pub const MAX_PARAMETER_ELEMENTS: usize = 1 << 40;

/// The operations of a model. Every operation reads only earlier ones, and every parameter is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The operations, in the order of the text.
    pub nodes: Vec<Node>,
    /// The trained tensors, in the order of the text. The bias of a norm comes before its weight.
    pub parameters: Vec<Parameter>,
    /// The operation that gives the logits.
    pub logits: usize,
    /// The statements of the text, and what they give.
    pub statements: Vec<Outcome>,
}

/// A statement and what it gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The part that it stands in.
    pub part: Part,
    /// The name that it gives a value to.
    pub name: Box<str>,
    /// Its line in the text, from 1.
    pub line: usize,
    /// The value in words, of the last block in which the statement exists; empty if it exists in none.
    pub value: String,
    /// Blocks in which the statement exists; 0 outside the blocks.
    pub blocks: usize,
}

/// The shape of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// A row for each token, or the same for all tokens, as a trained vector is.
    pub rows: bool,
    /// Parts of equal width that a row is divided into; 1 if it is not divided.
    pub heads: usize,
    /// Elements of a part.
    pub width: usize,
}

impl Shape {
    /// Returns the number of elements in a row.
    pub fn elements(self) -> usize {
        self.heads * self.width
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rows, self.heads, self.width) {
            (true, 1, width) => write!(f, "rows of {width}"),
            (true, heads, width) => write!(f, "rows of {heads} heads of {width}"),
            (false, 1, 1) => f.write_str("a trained number"),
            (false, 1, width) => write!(f, "a vector of {width}"),
            (false, heads, width) => write!(f, "a vector of {heads} heads of {width}"),
        }
    }
}

/// An operation and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it computes.
    pub operation: Operation,
    /// The operations whose results it reads, by index.
    pub inputs: Vec<usize>,
    /// Shape of the result.
    pub shape: Shape,
    /// Index of its statement in the text.
    pub statement: usize,
    /// Index of its block; `None` outside the blocks.
    pub block: Option<usize>,
}

/// What an operation computes. Parameters are indices of [`Graph::parameters`]. Only [`Attention`] and
/// [`Shift`] read other rows than their own, and only earlier ones of the same document.
///
/// [`Attention`]: Operation::Attention
/// [`Shift`]: Operation::Shift
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Rows of a table: those of the tokens or, with `positions`, of their positions.
    Embedding {
        /// The table.
        table: usize,
        /// Look up positions in place of tokens.
        positions: bool,
    },
    /// The product with a matrix, and its bias.
    Linear {
        /// The matrix.
        weight: usize,
        /// Added to the product.
        bias: Option<usize>,
    },
    /// Normalizes each head of each row.
    Norm(Norm),
    /// Rotates pairs of elements of each head by angles that grow with the position.
    Rope {
        /// Base of the frequencies.
        theta: f64,
        /// Elements that are rotated, the first of each head.
        width: usize,
        /// Rotate in the negative direction.
        reversed: bool,
    },
    /// Causal attention of the queries (input 0) to keys (1) and values (2) of the same document.
    Attention {
        /// Most keys that a query sees, its own included.
        window: Option<usize>,
        /// Soft cap of the scores.
        cap: Option<f64>,
        /// Factor of the products of queries and keys.
        scale: f64,
        /// Dropout of the probabilities.
        dropout: f64,
    },
    /// The rows this many tokens earlier in the same document; zeros where there is none.
    Shift(usize),
    /// Zeroes elements with this probability in training, and scales the others up.
    Dropout(f64),
    /// Divides rows into heads of another width.
    Heads,
    /// Elements `from..to` of each head.
    Slice {
        /// The first element.
        from: usize,
        /// The element after the last.
        to: usize,
    },
    /// Joins the inputs' elements, head by head.
    Concat,
    /// Sum or mean over the width of each head.
    Reduce(Reduction),
    /// A trained vector.
    Vector(usize),
    /// A number.
    Constant(f64),
    /// Element by element, with broadcast of widths and heads of 1.
    Elementwise(Elementwise),
    /// The recipe's `model.activation`, of one input or of a gate and another.
    Activation,
}

/// A norm of heads. Parameters are indices of [`Graph::parameters`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Which norm.
    pub kind: NormKind,
    /// Added to the mean square or the variance.
    pub eps: f64,
    /// Factors of the elements.
    pub weight: Option<usize>,
    /// Added to the elements. There is none without a weight.
    pub bias: Option<usize>,
}

/// What a norm divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// By the root mean square.
    Rms,
    /// By mean and variance.
    Layer,
}

/// A reduction over the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The mean.
    Mean,
}

/// A function of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elementwise {
    /// `-u`.
    Negate,
    /// `u + v`.
    Add,
    /// `u - v`.
    Subtract,
    /// `u · v`.
    Multiply,
    /// `u / v`.
    Divide,
    /// `u ^ v`, as formulas compute it.
    Power,
    /// A function of formulas.
    Function(Function),
}

/// A trained tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name, with the block's before it: `blocks.3.qkv`.
    pub name: String,
    /// Shape, outputs first.
    pub shape: Vec<usize>,
    /// What it is.
    pub kind: ParameterKind,
    /// Rows of each matrix, if matrices of several widths are stored together; empty otherwise.
    pub stacked: Vec<usize>,
    /// Initial values.
    pub initial: Initial,
    /// The optimizer's group, if the text sets it.
    pub role: Option<String>,
    /// Weight decay, if the text sets it.
    pub decay: Option<bool>,
    /// Index of its block; `None` outside the blocks.
    pub block: Option<usize>,
    /// Index of the statement that creates it.
    pub statement: usize,
}

/// What a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// A table of token vectors.
    Tokens,
    /// A table of position vectors.
    Positions,
    /// The matrix of a product, outputs by inputs.
    Matrix,
    /// The bias of a product.
    Bias,
    /// Weight or bias of a norm, or a vector of the text.
    Vector,
}

/// The initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// By the recipe's keys, as fits the kind of the parameter.
    ByKeys,
    /// By `model.residual_init`, as fits products that write the residual stream.
    Residual,
    /// All the same.
    Constant(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
}

impl Operation {
    /// Returns the probability with which the operation drops elements in training; 0 if it drops none.
    pub fn dropout(&self) -> f64 {
        match *self {
            Self::Dropout(p) | Self::Attention { dropout: p, .. } => p,
            _ => 0.0,
        }
    }
}

impl Parameter {
    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}
