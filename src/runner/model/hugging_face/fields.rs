//! Lists of the keys of `config.json`: those that classes read, with the defaults of their configuration
//! classes in transformers 5.24; those of which one value is read; and those without effect on what a model
//! computes. A key in none of these lists is refused, because it may change the model.

use serde_json::{Value, json};

/// What an absent key means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Absent {
    Count(u64),
    Number(f64),
    Flag(bool),
    Word(&'static str),
    /// Follows from other keys, which the class knows.
    Derived,
}

/// A key that a class reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub key: &'static str,
    pub absent: Absent,
    /// True if the configuration class accepts `null`. It then has a meaning of its own, which need not be
    /// the default. transformers refuses other nulls.
    pub nullable: bool,
}

impl Field {
    pub(super) const fn new(key: &'static str, absent: Absent) -> Self {
        Self { key, absent, nullable: false }
    }

    pub(super) const fn count(key: &'static str, default: u64) -> Self {
        Self::new(key, Absent::Count(default))
    }

    pub(super) const fn number(key: &'static str, default: f64) -> Self {
        Self::new(key, Absent::Number(default))
    }

    pub(super) const fn flag(key: &'static str, default: bool) -> Self {
        Self::new(key, Absent::Flag(default))
    }

    pub(super) const fn word(key: &'static str, default: &'static str) -> Self {
        Self::new(key, Absent::Word(default))
    }

    pub(super) const fn derived(key: &'static str) -> Self {
        Self::new(key, Absent::Derived)
    }

    pub(super) const fn or_null(self) -> Self {
        Self { nullable: true, ..self }
    }

    /// Returns the default, unless it follows from other keys.
    pub(super) fn default(&self) -> Option<Value> {
        match self.absent {
            Absent::Count(n) => Some(n.into()),
            Absent::Number(x) => Some(x.into()),
            Absent::Flag(flag) => Some(flag.into()),
            Absent::Word(word) => Some(word.into()),
            Absent::Derived => None,
        }
    }
}

/// Keys of the rotary embedding, which `rope` reads.
pub(super) const ROPE: [Field; 5] = [
    Field::derived("rope_scaling").or_null(),
    Field::derived("rope_parameters").or_null(),
    Field::derived("rope_theta").or_null(),
    Field::derived("partial_rotary_factor").or_null(),
    Field::derived("original_max_position_embeddings").or_null(),
];

/// Keys that no class has, or that mean the same in all, each with the only value that is read and the
/// reason. `null` is as good as absent.
pub(super) fn fixed() -> [(&'static str, Value, &'static str); 12] {
    let decoder = "xrun's models are only decoders: false";
    [
        ("is_causal", json!(true), "no token of xrun's models attends to later ones: true"),
        ("is_encoder_decoder", json!(false), decoder),
        ("tie_encoder_decoder", json!(false), decoder),
        ("add_cross_attention", json!(false), decoder),
        ("pruned_heads", json!({}), "xrun's models have all heads: {}"),
        ("per_layer_config", json!({}), "all layers of xrun's models have the same sizes: {}"),
        ("rope_interleaved", json!(false), "xrun rotates the halves of a head: false"),
        ("use_sliding_window", json!(false), "the class has no window: false"),
        ("attention_bias", json!(false), "the class has no biases: false"),
        ("mlp_bias", json!(false), "the class has no such biases: false"),
        ("alibi", json!(false), "xrun's models have no such biases of positions: false"),
        ("parallel_attn", json!(false), "the layers of the class follow one another: false"),
    ]
}

/// Keys that do not change what a model computes: how it was trained, initialized, saved or run, and how
/// texts are generated with it. The first five are read elsewhere.
pub(super) const HARMLESS: &[&str] = &[
    "architectures",
    "model_type",
    "auto_map",
    "quantization_config",
    "layer_types",
    // The format of the weights is in their files.
    "dtype",
    "torch_dtype",
    "use_bfloat16",
    // Versions and names.
    "transformers_version",
    "transformers.js_config",
    "adapters",
    "name_or_path",
    "_name_or_path",
    "_commit_hash",
    "is_llama_config",
    "unsloth_fixed",
    "unsloth_version",
    // Execution.
    "use_cache",
    "pretraining_tp",
    "chunk_size_feed_forward",
    "reorder_and_upcast_attn",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    "experts_implementation",
    "gradient_checkpointing",
    "torchscript",
    "tf_legacy_loss",
    "return_dict",
    "use_return_dict",
    "output_attentions",
    "output_hidden_states",
    "keys_to_ignore_at_inference",
    "is_decoder",
    "cross_attention_hidden_size",
    // Training.
    "attention_dropout",
    "attn_pdrop",
    "classifier_dropout",
    "embd_pdrop",
    "hidden_dropout",
    "resid_dropout",
    "resid_pdrop",
    "initializer_range",
    "router_aux_loss_coef",
    // Heads of other tasks.
    "num_labels",
    "id2label",
    "label2id",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    // Tokenizer and context.
    "n_ctx",
    "model_max_length",
    "max_sequence_length",
    "prefix",
    "tokenizer_class",
    // Generation: `GenerationConfig._get_default_generation_params`.
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "no_repeat_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "target_lookbehind",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];

/// Returns true for the id of a special token, such as `eos_token_id`.
pub(super) fn is_token_id(key: &str) -> bool {
    key.ends_with("_token_id") || key.ends_with("_token_ids")
}

/// Returns true for keys that do not change what a model computes.
pub(super) fn is_harmless(key: &str) -> bool {
    is_token_id(key) || HARMLESS.contains(&key)
}

/// Returns what to do about an unknown key.
pub(super) fn way_on(path: &str) -> String {
    format!("if it does not, `xrun import --ignore {path}` leaves it out, or remove it from the file")
}
