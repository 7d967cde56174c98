//! The steps of a program: operations of a graph that are recorded together.

use crate::expression::Formula;
use crate::model_text::Norm;
use crate::ops::activation::Activation;
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

/// Operations that have the form of a step.
pub(super) struct Match {
    /// The step.
    pub step: Step,
    /// What the step computes on the way; nothing else may read it.
    pub inner: Vec<usize>,
}

/// Returns the step of an operation alone.
pub(super) fn alone(root: usize, kind: StepKind, inputs: Vec<usize>) -> Option<Match> {
    Some(Match { step: Step { kind, inputs, outputs: vec![root], at: root }, inner: Vec::new() })
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
    Norm(WeightedNorm),
    /// A sum of rows (output 0), and the norm of the sum (output 1).
    ResidualNorm(WeightedNorm),
    /// Attention, from packed queries, keys and values.
    Attention(PackedAttention),
    /// Attention, from queries (input 0), keys (1) and values (2), which are packed first; the width of
    /// queries and keys, and that of values.
    UnpackedAttention(PackedAttention, [usize; 2]),
    /// Dropout with this probability; the index of its site.
    Dropout(f64, u32),
    /// A function of two halves of a row.
    Gated(Function),
    /// A function of every element.
    Activated(Function),
    /// The same of the product of a row with a matrix, and a bias.
    ActivatedProduct {
        /// The function.
        function: Activation,
        /// The operation that gives the product with its bias.
        product: usize,
        /// The matrix.
        weight: usize,
        /// Added to the product.
        bias: usize,
    },
    /// Rows times a number.
    Scaled(f64),
    /// The sum of two rows.
    Sum,
    /// A row (input 0) plus the product of another (1) with a matrix.
    SumWithProduct {
        /// The matrix.
        weight: usize,
    },
    /// The product of two rows, element by element.
    ProductOfRows,
    /// A function of rows and vectors, with broadcast.
    Pointwise(Formula),
    /// Values side by side, in this many heads.
    Concat(usize),
    /// The sums of this many heads, times a factor.
    HeadSum(usize, f64),
    /// Norms of this many heads.
    HeadNorm(WeightedNorm, usize),
    /// The rotation of this many heads.
    Rotate(Rotation, usize),
    /// The rows this many tokens earlier.
    Shift(usize),
}

/// A norm. A number may be added to its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct WeightedNorm {
    /// The norm.
    pub norm: Norm,
    /// Added to the weight.
    pub weight_offset: f64,
}

/// Attention of queries, keys and values that are parts of one row, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct PackedAttention {
    /// The heads.
    pub heads: Heads,
    /// Elements of the heads of values that may differ from zero, as [`Heads::value_dim`] rounds them.
    pub value_dim: usize,
    /// Norms of the heads of queries and keys, by root mean square.
    pub norm: Option<HeadNorm>,
    /// Rotation of the heads of queries and keys.
    pub rotation: Option<Rotation>,
    /// Normalize after the rotation.
    pub rotates_first: bool,
    /// Factor of the products of queries and keys.
    pub scale: f64,
    /// Most keys that a query sees, its own included.
    pub window: Option<usize>,
    /// Soft cap of the scores.
    pub cap: Option<f64>,
    /// Dropout of the probabilities, and the index of its site.
    pub dropout: Option<(f64, u32)>,
    /// The vector of the query heads' sinks.
    pub sinks: Option<usize>,
}

/// Returns the heads of packed rows for queries and keys of `widths[0]` elements and values of `widths[1]`.
pub(in crate::model) fn packed_heads([query, kv]: [usize; 2], widths: [usize; 2]) -> Heads {
    /// Narrower heads are padded to a multiple of this, for which there are fast kernels.
    const MULTIPLE: usize = 32;
    let [of_keys, of_values] = widths;
    let dim = if of_keys == of_values { of_keys } else { of_keys.max(of_values).next_multiple_of(MULTIPLE) };
    Heads { query, kv, dim }
}

/// Norms of the heads of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct HeadNorm {
    /// Added to the mean square.
    pub eps: f64,
    /// Weights of the queries' norm and of the keys'.
    pub weights: Option<[usize; 2]>,
    /// Added to both weights.
    pub weight_offset: f64,
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

/// The head: the product that gives the logits, and what is done to them. One op computes the losses of a
/// product with a factor and a cap. With a bias or another function, the logits are a tensor of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// The operation that gives the rows that it reads.
    pub rows: usize,
    /// The matrix.
    pub weight: usize,
    /// Added to the products.
    pub bias: Option<usize>,
    /// Another function of the products and their bias than a factor and a cap.
    pub function: Option<Function>,
    /// The factor of the products.
    pub logit_scale: f64,
    /// Soft cap of the logits.
    pub logit_cap: Option<f64>,
}

impl Head {
    /// Returns true if one op computes the losses of the products.
    pub(super) fn is_fused(&self) -> bool {
        self.bias.is_none() && self.function.is_none()
    }

    /// Returns the logit for what the head's programs keep: a product is multiplied by the factor, then
    /// capped. With a bias or another function, the logits are kept.
    pub fn logit(&self, product: f64) -> f64 {
        let scaled = self.logit_scale * product;
        self.logit_cap.map_or(scaled, |cap| cap * (scaled / cap).tanh())
    }
}
