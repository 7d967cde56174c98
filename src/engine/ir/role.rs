//! The role of a trained tensor in its model. Optimizers, forecasts and counts use roles, not names.

/// Role of a trained tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The table of token vectors.
    Embedding,
    /// The table of position vectors.
    Positions,
    /// The projection to the vocabulary. A model that ties its head to the embedding has no parameter with
    /// this role.
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

/// What a model says about the updates of a tensor, other than what follows from its role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateOverride {
    /// The optimizer groups the tensor with those of this role.
    pub role: Option<Role>,
    /// Whether weight decay applies.
    pub decay: Option<bool>,
}

impl Role {
    /// Returns true if products or lookups read the tensor, in the format of activations. Ops read the
    /// masters of vectors and biases.
    pub fn is_matrix(self) -> bool {
        !matches!(self, Self::Vector | Self::Bias(_))
    }

    /// Returns true if the tensor counts as a *core parameter*: it belongs neither to the embeddings (tokens
    /// or positions) nor to the head.
    pub fn is_core(self) -> bool {
        !matches!(self, Self::Embedding | Self::Positions | Self::Head)
    }
}
