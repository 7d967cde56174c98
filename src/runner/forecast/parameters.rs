//! Counts parameters by part.

use crate::ir::{Role, State, Sublayer};
use crate::plan::Model;
use serde::Serialize;

/// A model is called mostly embedding from this fraction on.
const MOSTLY_EMBEDDING: f64 = 0.4;

/// Parameters by part, without padding. With adapters, both these and the weights that they leave as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// The token and position embeddings.
    pub embedding: usize,
    /// The projection to the vocabulary; 0 if it is tied to the embedding.
    pub head: usize,
    /// Query, key, value and output projections, and their biases.
    pub attention: usize,
    /// The feed-forward layers, with their biases.
    pub ffn: usize,
    /// All norms.
    pub norms: usize,
    /// *Core parameters*: all but embedding and head.
    pub core: usize,
    /// All parameters.
    pub total: usize,
    /// Those that are trained.
    pub trained: usize,
}

impl Parameters {
    /// Counts the parameters of a state by their roles.
    pub fn new(state: &State) -> Self {
        let (core, total) = (state.core_parameter_count(), state.parameter_count());
        let mut parts = Self { core, total, trained: state.trained_count(), ..Self::default() };
        for (role, count) in state.roles() {
            let part = match role {
                Role::Embedding | Role::Positions => &mut parts.embedding,
                Role::Head => &mut parts.head,
                Role::Matrix(Sublayer::Attention) | Role::Bias(Sublayer::Attention) => &mut parts.attention,
                Role::Matrix(Sublayer::FeedForward) | Role::Bias(Sublayer::FeedForward) => &mut parts.ffn,
                Role::Vector => &mut parts.norms,
            };
            *part += count;
        }
        parts
    }

    /// Returns the fraction of the parameters in embedding and head.
    pub fn vocabulary_share(&self) -> f64 {
        (self.embedding + self.head) as f64 / self.total.max(1) as f64
    }

    /// Returns a sentence if most of the model is its vocabulary.
    pub fn remark(&self, model: &Model) -> Option<String> {
        let fraction = self.vocabulary_share();
        (fraction >= MOSTLY_EMBEDDING).then(|| {
            format!(
                "{:.0} % of the parameters are embedding and head: a small model on a vocabulary of {} is mostly \
                 embedding",
                100.0 * fraction,
                crate::format::thousands(model.vocab_size)
            )
        })
    }
}
