//! The steps of a program: operations of a graph that are recorded together.

use crate::model_text::Norm;
use crate::ops::attention::Heads;
use crate::ops::formula::Function;

/// Operations that are recorded together, as one op or as few.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::model) struct Step {
    /// What it computes.
    pub kind: StepKind,
    /// The operations whose results it reads.
    pub inputs: Vec<usize>,
    /// The operations whose results it gives.
    pub outputs: Vec<usize>,
    /// The operation in whose block it is recorded.
    pub at: usize,
}

/// What a step computes. Parameters are indices of [`Graph::parameters`].
#[derive(Clone, Debug, PartialEq)]
pub(in crate::model) enum StepKind {
    /// Rows of a table, of tokens or of positions.
    Embedding {
        /// The table.
        table: usize,
        /// Look up positions in place of tokens.
        positions: bool,
    },
    /// The product with a matrix, and its bias.
    Product {
        /// The matrix.
        weight: usize,
        /// Added to the product.
        bias: Option<usize>,
    },
    /// The norm of whole rows.
    Norm(Norm),
    /// A sum of rows (output 0), and the norm of the sum (output 1).
    ResidualNorm(Norm),
    /// Attention, from packed queries, keys and values.
    Attention(PackedAttention),
    /// Dropout with this probability; the index of its site.
    Dropout(f64, u32),
    /// A function of two halves of a row.
    Gated(Function),
    /// A function of every element.
    Activated(Function),
    /// Rows times a number.
    Scaled(f64),
    /// The sum of two rows.
    Sum,
    /// The product of two rows, element by element.
    ProductOfRows,
}

/// Attention of queries, keys and values that are parts of one row, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct PackedAttention {
    /// The heads.
    pub heads: Heads,
    /// Norms of the heads of queries and keys, by root mean square.
    pub norm: Option<HeadNorm>,
    /// Rotation of the heads of queries and keys.
    pub rotation: Option<Rotation>,
    /// Normalize after the rotation.
    pub rotates_first: bool,
    /// Most keys that a query sees, its own included.
    pub window: Option<usize>,
    /// Soft cap of the scores.
    pub cap: Option<f64>,
    /// Dropout of the probabilities, and the index of its site.
    pub dropout: Option<(f64, u32)>,
}

/// Norms of the heads of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct HeadNorm {
    /// Added to the mean square.
    pub eps: f64,
    /// Weights of the queries' norm and of the keys'.
    pub weights: Option<[usize; 2]>,
}

/// The rotation of a head by position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct Rotation {
    /// Base of the frequencies.
    pub theta: f64,
    /// Elements that are rotated, the first of each head.
    pub width: usize,
    /// Rotate in the negative direction.
    pub reversed: bool,
}

/// The head: the product that gives the logits, and what is done to them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// The operation that gives the rows that it reads.
    pub rows: usize,
    /// The matrix.
    pub weight: usize,
    /// The factor of the products.
    pub logit_scale: f64,
    /// Soft cap of the logits.
    pub logit_cap: Option<f64>,
}

impl Head {
    /// Returns the logit for a product: multiplied by the factor, then capped.
    pub fn logit(&self, product: f64) -> f64 {
        let scaled = self.logit_scale * product;
        self.logit_cap.map_or(scaled, |cap| cap * (scaled / cap).tanh())
    }
}
