//! What a class of transformers does not support.

use super::activations;
use crate::plan::Model;
use crate::policy::{Norm, NormPlacement, Position};
use std::fmt;

/// The model keys whose values a class does not support, each in a sentence.
#[derive(Debug, Default)]
pub(super) struct UnsupportedKeys(pub Vec<String>);

impl UnsupportedKeys {
    /// Starts with the keys that no class supports.
    pub(super) fn common(m: &Model) -> Self {
        let mut lacks = Self::default();
        lacks.require(
            "model.norm_placement",
            m.norm_placement == NormPlacement::Pre,
            word(m.norm_placement),
            "\"pre\"",
        );
        lacks.require("model.parallel_blocks", !m.parallel_blocks, true, "false");
        lacks.require("model.score_cap", m.score_cap.is_none(), or_unset(m.score_cap), "none");
        lacks.require("model.logit_scale", m.logit_scale == 1.0, m.logit_scale, "1");
        lacks.require("model.embedding_scale", m.embedding_scale == 1.0, m.embedding_scale, "1");
        let shared = m.n_kv_heads > 0 && m.n_heads.is_multiple_of(m.n_kv_heads);
        lacks.require(
            "model.n_kv_heads",
            shared,
            m.n_kv_heads,
            &format!("divisors of {} query heads", m.n_heads),
        );
        lacks
    }

    /// Starts with the keys that classes with RMSNorm and a rotary embedding do not support.
    pub(super) fn rotary(m: &Model) -> Self {
        let mut lacks = Self::common(m);
        lacks.require("model.norm", m.norm == Norm::RmsNorm, word(m.norm), "\"rms_norm\"");
        lacks.require("model.norm_bias", !m.norm_bias, true, "false");
        lacks.require("model.position", m.position == Position::Rope, word(m.position), "\"rope\"");
        lacks.require("model.rope_fraction", m.rope.fraction == 1.0, m.rope.fraction, "1");
        lacks
    }

    /// Adds the activation unless transformers has it in a layer with or without a gate.
    pub(super) fn require_activation(&mut self, m: &Model, gated: bool) {
        let has = if gated { "gated ones" } else { "those without a gate" };
        self.require("model.activation", activations::has(&m.activation, gated), word(&m.activation), has);
    }

    /// Adds a key unless its value is `ok`.
    pub(super) fn require(&mut self, key: &str, ok: bool, value: impl fmt::Display, has: &str) {
        if !ok {
            self.0.push(format!("{key} is {value}, but it has {has}"));
        }
    }
}

/// Quotes a word as in recipes.
pub(super) fn word(word: impl fmt::Display) -> String {
    format!("\"{word}\"")
}

/// Returns a value, or "unset".
pub(super) fn or_unset<T: fmt::Display>(value: Option<T>) -> String {
    value.map_or("unset".to_owned(), |value| value.to_string())
}
