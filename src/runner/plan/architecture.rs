//! The architecture of a model: the text that describes it, resolved for the keys of a recipe.

use super::Model;
use crate::error::{Error, Result};
use crate::model_text::{BUILT_IN, Graph, KeyValue, Keys, Mistake, ModelText, resolve};
use crate::policy::{
    HeadInit, Norm, NormPlacement, Parametrization, Position, QkNormPlace, ResidualInit, RopeDirection,
    RopeScaling,
};
use crate::recipe::model_text_error;
use std::path::Path;
use std::sync::LazyLock;

/// The text that the keys of `[model]` parametrize.
static DECODER: LazyLock<ModelText> =
    LazyLock::new(|| ModelText::parse(BUILT_IN[0].1).expect("a built-in text is valid"));

impl Model {
    /// Returns the text of the model: that of `model.definition`, or the one that the other keys parametrize.
    pub fn text(&self) -> &ModelText {
        self.definition.as_deref().unwrap_or(&DECODER)
    }

    /// Returns the operations of the model for sequences of `seq_len` tokens.
    ///
    /// # Errors
    /// A usage error if the text of `model.definition` describes no model for these keys, with the place in
    /// the text, or if the model is larger than any machine can hold.
    pub fn graph(&self, seq_len: usize) -> Result<Graph> {
        resolve(self.text(), &self.keys(seq_len)).map_err(|mistake| match &self.definition {
            Some(text) => {
                let mut help = mistake.help.clone();
                help += if help.is_empty() { "" } else { "; " };
                help += "lines count the canonical text, and `xrun model check TEXT --recipe RECIPE` those of a file";
                let mistake = Mistake { help, ..mistake };
                model_text_error(Path::new("model.definition"), text.text(), mistake)
            }
            None => Error::usage(format!("[model]: {}; {}", mistake.label, mistake.help)),
        })
    }

    /// Returns the keys of a model for sequences of `seq_len` tokens. Keys that are unset have the values
    /// that the plan derives, and muP's division of `model.logit_scale` by the width is done.
    pub fn keys(&self, seq_len: usize) -> Keys {
        let m = self;
        let whole = |value: usize| KeyValue::Number(value as f64);
        let some = |value: Option<f64>| value.map_or(KeyValue::None, KeyValue::Number);
        let count = |value: Option<usize>| some(value.map(|value| value as f64));
        let word = |word: &'static str, words| KeyValue::Word { word: word.into(), words };
        let (number, flag) = (KeyValue::Number, KeyValue::Bool);
        let parametrization = match m.base_dim {
            Some(_) => Parametrization::Mup,
            None => Parametrization::Standard,
        };
        let place = m.qk_norm.map_or(QkNormPlace::BeforeRope, |norm| norm.place);
        let rope = &m.rope;
        let model = [
            ("dim", whole(m.dim)),
            ("vocab_size", whole(m.vocab_size)),
            ("n_layers", whole(m.n_layers)),
            ("n_heads", whole(m.n_heads)),
            ("n_kv_heads", whole(m.n_kv_heads)),
            ("head_dim", whole(m.head_dim)),
            ("ffn_dim", whole(m.ffn_dim)),
            ("dropout", number(m.dropout)),
            ("norm", word(m.norm.word(), Norm::WORDS)),
            ("norm_weight", flag(m.norm_weight)),
            ("norm_bias", flag(m.norm_bias)),
            ("norm_placement", word(m.norm_placement.word(), NormPlacement::WORDS)),
            ("embedding_norm", flag(m.embedding_norm)),
            ("parallel_blocks", flag(m.parallel_blocks)),
            ("activation", KeyValue::Word { word: m.activation.to_string().into(), words: &[] }),
            ("gated", flag(m.activation.is_gated())),
            ("bias", flag(m.bias)),
            ("position", word(m.position.word(), Position::WORDS)),
            ("qk_norm", flag(m.qk_norm.is_some())),
            ("qk_norm_place", word(place.word(), QkNormPlace::WORDS)),
            ("qk_norm_weight", flag(m.qk_norm.is_none_or(|norm| norm.weight))),
            ("rope_theta", number(rope.theta)),
            ("rope_fraction", number(rope.fraction)),
            ("rope_direction", word(rope.direction.word(), RopeDirection::WORDS)),
            ("rope_scaling", word(rope.scaling.word(), RopeScaling::WORDS)),
            ("rope_factor", some(rope.factor)),
            ("rope_original_context", count(rope.original_context)),
            ("rope_beta_fast", number(rope.beta_fast)),
            ("rope_beta_slow", number(rope.beta_slow)),
            ("rope_attention_factor", some(rope.attention_factor)),
            ("rope_low_freq_factor", number(rope.low_freq_factor)),
            ("rope_high_freq_factor", number(rope.high_freq_factor)),
            ("window", count(m.window)),
            ("global_interval", count(m.global_interval)),
            ("score_cap", some(m.score_cap)),
            ("logit_cap", some(m.logit_cap)),
            ("logit_scale", number(m.logit_scale)),
            ("embedding_scale", number(m.embedding_scale)),
            ("norm_eps", number(m.norm_eps)),
            ("init_std", some(m.init_std)),
            ("residual_init", word(m.residual_init.word(), ResidualInit::WORDS)),
            ("head_init", word(m.head_init.word(), HeadInit::WORDS)),
            ("parametrization", word(parametrization.word(), Parametrization::WORDS)),
            ("base_dim", count(m.base_dim)),
            ("tie_embeddings", flag(m.tie_embeddings)),
        ];
        let named = [
            m.n_layers as f64,
            m.dim as f64,
            m.n_heads as f64,
            m.n_kv_heads as f64,
            m.head_dim as f64,
            m.ffn_dim as f64,
            m.vocab_size as f64,
            m.norm_eps,
            seq_len as f64,
        ];
        Keys::new(named, model, m.activation.is_gated())
    }
}
