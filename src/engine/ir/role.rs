//! The role of a trained tensor in its model: what counts, forecasts and optimizers look at instead of names.

/// Role of a trained tensor. Optimizers group parameters by it, and forecasts count by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The table of token vectors.
    Embedding,
    /// The table of the vectors of positions.
    Positions,
    /// The projection to the vocabulary. A model whose head is its embedding has no parameter of this role.
    Head,
    /// A weight matrix inside a block, possibly several stacked in one tensor.
    Matrix(Sublayer),
    /// Bias of a product inside a block.
    Bias(Sublayer),
    /// Weight or bias of a norm: one number per feature.
    Vector,
}

/// Sublayer of a block that a matrix or a bias belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sublayer {
    /// Query, key, value and output projections.
    Attention,
    /// The feed-forward layer.
    FeedForward,
}

impl Role {
    /// Returns true if products or lookups read the tensor, in the format of activations. Vectors and biases
    /// are read as masters.
    pub fn is_matrix(self) -> bool {
        !matches!(self, Self::Vector | Self::Bias(_))
    }

    /// Returns true if the tensor counts as a *core parameter*: one that is neither in the embedding, of
    /// tokens or of positions, nor in the head.
    pub fn is_core(self) -> bool {
        !matches!(self, Self::Embedding | Self::Positions | Self::Head)
    }
}
