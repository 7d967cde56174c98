//! The dimensions of a model.

use crate::policy::Norm;
use crate::recipe::{self, Recipe, derived};

/// Matrix products are fastest on multiples of this; vocabulary and FFN width are padded to it in memory.
pub const PADDING: usize = 64;

/// The model's dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Vocabulary size of the tokenizer.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// Blocks.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the gated feed-forward layer.
    pub ffn_dim: usize,
    /// Dropout probability, the same at every site.
    pub dropout: f64,
    /// Norm of the residual stream.
    pub norm: Norm,
    /// Normalize queries and keys per head.
    pub qk_norm: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square inside RMSNorm, or to the variance inside LayerNorm.
    pub norm_eps: f64,
    /// Standard deviation of the initial values of matrices; `None` for that of each matrix's own width.
    pub init_std: Option<f64>,
    /// Use the embedding matrix as the head.
    pub tie_embeddings: bool,
}

impl Model {
    /// Returns the dimensions that a recipe gives, with a tokenizer's vocabulary.
    pub fn from_recipe(recipe: &Recipe, vocab_size: usize) -> Self {
        let m = &recipe.values().model;
        let n_heads = derived::n_heads(m);
        Self {
            vocab_size,
            dim: m.dim,
            n_layers: m.n_layers,
            n_heads,
            n_kv_heads: m.n_kv_heads.unwrap_or(n_heads),
            head_dim: derived::head_dim(m),
            ffn_dim: derived::ffn_dim(m),
            dropout: m.dropout,
            norm: m.norm,
            qk_norm: m.qk_norm,
            rope_theta: m.rope_theta,
            norm_eps: m.norm_eps,
            init_std: m.init_std,
            tie_embeddings: m.tie_embeddings,
        }
    }

    /// Returns a sentence about each width that does not fit that of the stream.
    pub fn remarks(&self) -> Vec<String> {
        let (dim, heads) = (self.dim, self.n_heads * self.head_dim);
        let mut remarks = Vec::new();
        if self.ffn_dim < dim {
            remarks.push(format!(
                "the feed-forward layer ({} wide) is narrower than the stream ({dim}); usual are 3 to 4 times its width: \
                 leave model.ffn_dim unset, and it is {}",
                self.ffn_dim,
                derived::ffn_dim(&recipe::Model { dim, ffn_dim: None, ..recipe::Model::default() })
            ));
        }
        if heads != dim {
            remarks.push(format!(
                "{} heads of {} elements attend to {heads} elements, and the stream has {dim}: see model.n_heads and \
                 model.head_dim",
                self.n_heads, self.head_dim
            ));
        }
        remarks
    }

    /// Returns the vocabulary size in memory, with padding.
    pub fn padded_vocab(&self) -> usize {
        self.vocab_size.next_multiple_of(PADDING)
    }

    /// Returns the FFN width in memory, with padding.
    pub fn padded_ffn(&self) -> usize {
        self.ffn_dim.next_multiple_of(PADDING)
    }

    /// Returns the width of a packed row of queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }
}
