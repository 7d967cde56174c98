//! The roles by which recipes group parameters.

use crate::ir::{Role, Sublayer};

/// Role of parameters as recipes group them: the tables of `[optimizer.groups]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupRole {
    /// The table of token vectors.
    Embedding,
    /// The table of position vectors.
    Positions,
    /// The projection to the vocabulary.
    Head,
    /// Matrices in blocks.
    Matrix,
    /// Weights and biases of norms, and biases of products.
    Vector,
}

impl GroupRole {
    /// Every role, in the order of groups.
    pub const ALL: [Self; 5] = [Self::Embedding, Self::Positions, Self::Head, Self::Matrix, Self::Vector];

    /// Returns the role that a parameter counts as.
    pub fn from_role(role: Role) -> Self {
        match role {
            Role::Embedding => Self::Embedding,
            Role::Positions => Self::Positions,
            Role::Head => Self::Head,
            Role::Matrix(_) => Self::Matrix,
            Role::Bias(_) | Role::Vector => Self::Vector,
        }
    }

    /// Returns a role of this group. A matrix counts as one of the feed-forward layer.
    pub const fn role(self) -> Role {
        match self {
            Self::Embedding => Role::Embedding,
            Self::Positions => Role::Positions,
            Self::Head => Role::Head,
            Self::Matrix => Role::Matrix(Sublayer::FeedForward),
            Self::Vector => Role::Vector,
        }
    }

    /// Returns the word for the role in recipes.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Positions => "positions",
            Self::Head => "head",
            Self::Matrix => "matrix",
            Self::Vector => "vector",
        }
    }

    /// Returns the role for a recipe's word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.word() == word)
    }

    /// Returns true if weight decay applies to this role by default.
    pub fn decays(self) -> bool {
        self != Self::Vector
    }
}
