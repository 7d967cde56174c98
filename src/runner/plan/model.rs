//! The dimensions and parts of a model.

use crate::error::Result;
use crate::model_text::ModelText;
use crate::policy::{
    Activation, HeadInit, Norm, NormPlacement, OrFormula, Parametrization, Position, QkNormPlace,
    ResidualInit, RopeDirection, RopeScaling,
};
use crate::recipe::{self, Recipe, derived};
use std::sync::Arc;

/// Matrix products are fastest on multiples of this, so the vocabulary and FFN width are padded to it in
/// memory.
pub const PADDING: usize = 64;

/// The rotary position embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeOptions {
    /// Base of the frequencies.
    pub theta: f64,
    /// Share of a head that is rotated.
    pub fraction: f64,
    /// Sense of the rotation.
    pub direction: RopeDirection,
    /// How the frequencies change for a longer context.
    pub scaling: RopeScaling,
    /// How many times longer the context is than the original one; set if the frequencies change.
    pub factor: Option<f64>,
    /// Length of the context that the frequencies were chosen for, in tokens.
    pub original_context: Option<usize>,
    /// Turns within the original context above which YaRN keeps a frequency.
    pub beta_fast: f64,
    /// Turns within the original context below which YaRN divides a frequency by the factor.
    pub beta_slow: f64,
    /// Factor of the cosines and sines with YaRN; `None` derives it from `factor`.
    pub attention_factor: Option<f64>,
    /// Llama 3's divisor of the original context for the longest wavelength that is ramped.
    pub low_freq_factor: f64,
    /// Llama 3's divisor of the original context for the shortest wavelength that is ramped.
    pub high_freq_factor: f64,
}

/// The norms of queries and keys, per head, by root mean square.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QkNormOptions {
    /// Before or after the rotation.
    pub place: QkNormPlace,
    /// Multiply by trained weights.
    pub weight: bool,
}

/// The model's dimensions and parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The text of the architecture; `None` for the decoder that the other fields describe.
    pub definition: Option<Arc<ModelText>>,
    /// Rows of the embedding and of the head: the tokenizer's entries, and possibly more that never occur.
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
    /// Hidden width of the feed-forward layer.
    pub ffn_dim: usize,
    /// Dropout probability, the same at every site.
    pub dropout: f64,
    /// Norm of the residual stream.
    pub norm: Norm,
    /// True if the norms of the residual stream have weights.
    pub norm_weight: bool,
    /// True if the norms of the residual stream have biases.
    pub norm_bias: bool,
    /// Position of the norms in a block.
    pub norm_placement: NormPlacement,
    /// Normalize the rows of the embedding.
    pub embedding_norm: bool,
    /// True if attention and feed-forward layer read the same normalized rows.
    pub parallel_blocks: bool,
    /// Activation of the feed-forward layer.
    pub activation: OrFormula<Activation>,
    /// True if the products of blocks have biases.
    pub bias: bool,
    /// How the model knows the positions of tokens.
    pub position: Position,
    /// Rows in the table of learned positions: the tokens of the longest sequence; 0 without such a table.
    pub learned_positions: usize,
    /// Norms of queries and keys; `None` if there are none.
    pub qk_norm: Option<QkNormOptions>,
    /// The rotary embedding; used only if `position` is `Rope`.
    pub rope: RopeOptions,
    /// Most keys that a query attends to in blocks that are not global.
    pub window: Option<usize>,
    /// With a window, the last of every this many blocks is global.
    pub global_interval: Option<usize>,
    /// Soft cap of attention scores.
    pub score_cap: Option<f64>,
    /// Soft cap of logits.
    pub logit_cap: Option<f64>,
    /// Factor of the logits, applied before their cap: the recipe's, divided by the width ratio.
    pub logit_scale: f64,
    /// Factor of the rows of the embedding.
    pub embedding_scale: f64,
    /// Added to the mean square inside RMSNorm, or to the variance inside LayerNorm.
    pub norm_eps: f64,
    /// Standard deviation of the initial values of matrices; `None` derives it from each matrix's own width.
    pub init_std: Option<f64>,
    /// Initial values of the products that write the residual stream.
    pub residual_init: ResidualInit,
    /// Initial values of the head.
    pub head_init: HeadInit,
    /// Base width of the maximal update parametrization; `None` in the standard one.
    pub base_dim: Option<usize>,
    /// Use the embedding matrix as the head.
    pub tie_embeddings: bool,
}

impl Model {
    /// Returns the model that a recipe describes, for a tokenizer with `vocab_size` entries.
    ///
    /// # Errors
    /// A usage error that points at the recipe if keys contradict each other.
    pub fn from_recipe(recipe: &Recipe, vocab_size: usize) -> Result<Self> {
        if let Some(rows) = recipe.values().model.vocab_size.filter(|&rows| rows < vocab_size) {
            return Err(recipe.error(
                &["model.vocab_size", "data.tokenizer"],
                format!("the tokenizer has {vocab_size} tokens, and model.vocab_size is {rows}"),
                "leave it unset, or name the tokenizer that it is for",
            ));
        }
        let mut model = Self::from_keys(&recipe.values().model, vocab_size);
        if let Some(text) = &model.definition
            && model.base_dim.is_some()
            && !text.keys().contains("logit_scale")
        {
            return Err(recipe.error(
                &["model.parametrization", "model.definition"],
                "muP divides the logits by the ratio of the widths, and the text of the model does not scale its logits",
                "write logits = model.logit_scale * linear(…) in the part head",
            ));
        }
        if let Some((reason, help)) = model.padding_fault() {
            return Err(recipe.error(&["model.activation", "model.ffn_dim"], reason, help));
        }
        if model.position == Position::Learned {
            model.learned_positions = recipe.values().training.seq_len;
        }
        Ok(model)
    }

    /// Returns the model that the keys describe, for a tokenizer with `vocab_size` entries, without a table
    /// of positions. Checks nothing.
    pub fn from_keys(m: &recipe::Model, vocab_size: usize) -> Self {
        let n_heads = derived::n_heads(m);
        let base_dim = m.base_dim.filter(|_| m.parametrization == Parametrization::Mup);
        let text = |text: &String| ModelText::parse(text).expect("recipes hold texts that were parsed");
        Self {
            definition: m.definition.as_ref().map(|definition| Arc::new(text(definition))),
            vocab_size: m.vocab_size.unwrap_or(vocab_size),
            dim: m.dim,
            n_layers: m.n_layers,
            n_heads,
            n_kv_heads: m.n_kv_heads.unwrap_or(n_heads),
            head_dim: derived::head_dim(m),
            ffn_dim: derived::ffn_dim(m),
            dropout: m.dropout,
            norm: m.norm,
            norm_weight: m.norm_weight,
            norm_bias: m.norm_bias.unwrap_or(m.norm == Norm::LayerNorm && m.norm_weight),
            norm_placement: m.norm_placement,
            embedding_norm: m.embedding_norm,
            parallel_blocks: m.parallel_blocks,
            activation: m.activation.clone(),
            bias: m.bias,
            position: m.position,
            learned_positions: 0,
            qk_norm: m.qk_norm.then_some(QkNormOptions { place: m.qk_norm_place, weight: m.qk_norm_weight }),
            rope: RopeOptions {
                theta: m.rope_theta,
                fraction: m.rope_fraction,
                direction: m.rope_direction,
                scaling: m.rope_scaling,
                factor: m.rope_factor,
                original_context: m.rope_original_context,
                beta_fast: m.rope_beta_fast,
                beta_slow: m.rope_beta_slow,
                attention_factor: m.rope_attention_factor,
                low_freq_factor: m.rope_low_freq_factor,
                high_freq_factor: m.rope_high_freq_factor,
            },
            window: m.window,
            global_interval: m.global_interval,
            score_cap: m.score_cap,
            logit_cap: m.logit_cap,
            logit_scale: m.logit_scale / width_ratio(m.dim, base_dim),
            embedding_scale: m.embedding_scale,
            norm_eps: m.norm_eps,
            init_std: m.init_std,
            residual_init: m.residual_init,
            head_init: m.head_init,
            base_dim,
            tie_embeddings: m.tie_embeddings,
        }
    }

    /// Returns the model with one form for each function: a formula of a built-in activation as its word, a
    /// window that no block has as none, and the factor of YaRN spelled out.
    #[must_use]
    pub fn canonical(&self) -> Self {
        let mut model = self.clone();
        if let Some(word) = self.activation.built_in() {
            model.activation = word.into();
        }
        let globals = (0..self.n_layers).filter(|i| self.is_global(*i)).count();
        if globals == self.n_layers {
            (model.window, model.global_interval) = (None, None);
        } else if globals == 0 {
            model.global_interval = None;
        }
        if self.rope.scaling == RopeScaling::Yarn && self.rope.attention_factor.is_none() {
            model.rope.attention_factor = self.rope.factor.map(|factor| 0.1 * factor.ln() + 1.0);
        }
        model
    }

    /// Returns the width divided by the base width, which determines the whole maximal update
    /// parametrization; 1 in the standard one.
    pub fn width_ratio(&self) -> f64 {
        width_ratio(self.dim, self.base_dim)
    }

    /// Returns true if the queries of block `i` attend to all keys before them.
    pub fn is_global(&self, i: usize) -> bool {
        self.window.is_none() || self.global_interval.is_some_and(|interval| (i + 1).is_multiple_of(interval))
    }

    /// Returns why the formula cannot be the activation at this width, and the next step. Padding is zero
    /// before the activation and must stay zero after it, and the slopes at zero must be finite so that zero
    /// gradients stay zero.
    fn padding_fault(&self) -> Option<(String, String)> {
        let OrFormula::Formula(formula) = &self.activation else { return None };
        if self.definition.is_some() {
            // Such a width is not padded.
            return None;
        }
        let padding = self.padded_ffn() - self.ffn_dim;
        let zeros = vec![0.0; formula.variables().len()];
        let what = if formula.value(&zeros) == 0.0 { "has no finite slope" } else { "is not 0" };
        (padding > 0 && !self.activation_keeps_zeros()).then(|| {
            (
                format!(
                    "{formula} {what} at 0, the value of the {padding} columns that pad {} to {}",
                    self.ffn_dim,
                    self.padded_ffn()
                ),
                format!("set model.ffn_dim to a multiple of {PADDING}"),
            )
        })
    }

    /// Returns true if the activation is 0 with a finite slope where its inputs are 0.
    pub fn activation_keeps_zeros(&self) -> bool {
        let OrFormula::Formula(formula) = &self.activation else { return true };
        let at_zero = formula.steps_with_slopes().evaluate(&vec![0.0; formula.variables().len()]);
        at_zero[0] == 0.0 && at_zero.iter().all(|number| number.is_finite())
    }

    /// Returns a sentence about each width that does not fit the width of the residual stream, or about each
    /// statement of the model's text that may not be meant so, in sequences of `seq_len` tokens.
    pub fn remarks(&self, seq_len: usize) -> Vec<String> {
        let (dim, heads) = (self.dim, self.n_heads * self.head_dim);
        let mut remarks = Vec::new();
        // A text uses these widths as it likes.
        if let Some(text) = &self.definition {
            let found = text.remarks(&self.keys(seq_len)).into_iter();
            return found
                .map(|remark| format!("model text, {}: {}", remark.statement, remark.text))
                .collect();
        }
        if self.ffn_dim < dim {
            remarks.push(format!(
                "the feed-forward layer ({} wide) is narrower than the stream ({dim}); 3 to 4 times its width is usual: \
                 leave model.ffn_dim unset, and it is {}",
                self.ffn_dim,
                derived::ffn_dim(&recipe::Model { dim, activation: self.activation.clone(), ..recipe::Model::default() })
            ));
        }
        if heads != dim {
            remarks.push(format!(
                "{} heads of {} elements attend to {heads} elements, but the stream has {dim}: see model.n_heads and \
                 model.head_dim",
                self.n_heads, self.head_dim
            ));
        }
        remarks
    }

    /// Returns the number of elements of a head that the rotary embedding rotates.
    pub fn rotated_dim(&self) -> usize {
        derived::rotated_dim(self.head_dim, self.rope.fraction)
    }

    /// Returns the vocabulary size in memory, including padding.
    pub fn padded_vocab(&self) -> usize {
        self.vocab_size.next_multiple_of(PADDING)
    }

    /// Returns the FFN width in memory, including padding.
    pub fn padded_ffn(&self) -> usize {
        self.ffn_dim.next_multiple_of(PADDING)
    }

    /// Returns the width of a row that packs queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }
}

/// Returns the width divided by the base width; 1 without a base width.
fn width_ratio(dim: usize, base_dim: Option<usize>) -> f64 {
    base_dim.map_or(1.0, |base_dim| dim as f64 / base_dim as f64)
}
