//! The trait of a transformers class.

use super::fields::Field;
use super::keys::Keys;
use super::lacks::UnsupportedKeys;
use super::tensor::{HfFacts, HfTensor};
use crate::error::Result;
use crate::hugging_face::Config;
use crate::plan::Model;
use serde_json::{Map, Value, json};

/// A class of transformers that corresponds to some of xrun's models.
pub(super) trait Class: Sync {
    /// Returns the name of the class.
    fn name(&self) -> &'static str;

    /// Returns the `model_type` of its configurations.
    fn model_type(&self) -> &'static str;

    /// Returns the name of the class without a head.
    fn bare_name(&self) -> &'static str;

    /// Returns the keys of its configurations that this class reads.
    fn fields(&self) -> &'static [Field];

    /// Returns other names of keys, each with the key. They have precedence over the keys.
    fn aliases(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Returns the prefix of its tensor names. Files of a bare model, without a head, omit it.
    fn prefix(&self) -> &'static str {
        "model."
    }

    /// Returns the model keys whose values the class does not support; empty if the class can express the
    /// model.
    fn unsupported_keys(&self, m: &Model) -> UnsupportedKeys;

    /// Returns the sizes in `config.json` for a model that the class can express.
    fn sizes(&self, m: &Model) -> Value {
        json!({
            "hidden_size": m.dim,
            "intermediate_size": m.ffn_dim,
            "num_hidden_layers": m.n_layers,
            "num_attention_heads": m.n_heads,
            "num_key_value_heads": m.n_kv_heads,
        })
    }

    /// Returns the keys in `config.json` that only this class has or names so, after the sizes.
    fn config(&self, m: &Model, facts: &HfFacts) -> Value;

    /// Returns further keys of this class, which are last in `config.json`.
    fn last_config(&self, _m: &Model) -> Value {
        json!({})
    }

    /// Returns every tensor of a model that the class can express, in the order of the file.
    fn tensors(&self, m: &Model) -> Vec<HfTensor>;

    /// Returns the recipe keys that correspond to a configuration of the class, whose absent keys have been
    /// set to their defaults ([`super::resolve::resolve`]).
    ///
    /// # Errors
    /// With a usage error that names a configuration key for which xrun has no model.
    fn keys(&self, config: &Config) -> Result<Keys>;

    /// Returns true for tensors without weights, such as masks, which older versions saved.
    fn is_buffer(&self, name: &str) -> bool {
        name.ends_with("rotary_emb.inv_freq")
    }
}

/// Returns `config.json` for a model that a class can express.
pub(super) fn config_json(class: &dyn Class, m: &Model, facts: &HfFacts) -> Value {
    let first = json!({
        "architectures": [class.name()],
        "model_type": class.model_type(),
        "torch_dtype": facts.torch_dtype,
        "vocab_size": m.vocab_size,
    });
    let common = json!({
        "tie_word_embeddings": m.tie_embeddings,
        "use_cache": true,
        "bos_token_id": facts.begin_token_id,
        "eos_token_id": facts.end_token_id,
    });
    // In the order of the file.
    let groups = [first, class.sizes(m), class.config(m, facts), common, class.last_config(m)];
    let keys = |group| if let Value::Object(keys) = group { keys } else { Map::default() };
    groups.into_iter().flat_map(keys).collect()
}
