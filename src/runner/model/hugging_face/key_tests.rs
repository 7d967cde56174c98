//! Every key of the configuration classes of transformers, absent, `null`, with its default and with another
//! value: it changes the model, is refused by name, or is known not to matter.

use super::class::Class;
use super::classes::{CLASSES, ignore};
use super::fields::{Absent, Field, HARMLESS, fixed, is_harmless};
use super::keys as read_keys;
use super::keys::Keys;
use super::tests::{config, with};
use crate::error::Result;
use serde_json::{Value, json};

/// Fields of `PreTrainedConfig` in transformers 5.24, and keys that earlier versions wrote.
const OF_ALL: [&str; 40] = [
    "transformers_version",
    "architectures",
    "output_hidden_states",
    "return_dict",
    "dtype",
    "chunk_size_feed_forward",
    "is_encoder_decoder",
    "id2label",
    "label2id",
    "problem_type",
    "torch_dtype",
    "output_attentions",
    "pruned_heads",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "is_decoder",
    "cross_attention_hidden_size",
    "tie_encoder_decoder",
    "finetuning_task",
    "task_specific_params",
    "num_labels",
    "prefix",
    "tokenizer_class",
    "_name_or_path",
    "name_or_path",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "use_cache",
    "initializer_range",
    "attn_implementation",
    "_commit_hash",
    "is_causal",
    "per_layer_config",
    "temperature",
    "top_k",
    "max_length",
];

/// Fields of the configuration class of each class in transformers 5.24, and keys that only its models have.
fn fields_in_transformers(class: &dyn Class) -> Vec<&'static str> {
    let rotary = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "hidden_act",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
        "rope_parameters",
        "attention_bias",
        "attention_dropout",
        "head_dim",
        "rope_scaling",
        "rope_theta",
        "partial_rotary_factor",
        "original_max_position_embeddings",
    ];
    let own: &[&str] = match class.model_type() {
        "llama" => &["pretraining_tp", "mlp_bias", "rope_interleaved", "is_llama_config"],
        "qwen3" => &["use_sliding_window", "sliding_window", "max_window_layers", "layer_types"],
        "nanochat" => &["final_logit_softcapping"],
        _ => &[
            "vocab_size",
            "n_positions",
            "n_embd",
            "n_layer",
            "n_head",
            "n_inner",
            "activation_function",
            "resid_pdrop",
            "embd_pdrop",
            "attn_pdrop",
            "layer_norm_epsilon",
            "summary_type",
            "summary_use_proj",
            "summary_activation",
            "summary_proj_to_labels",
            "summary_first_dropout",
            "scale_attn_weights",
            "scale_attn_by_inverse_layer_idx",
            "reorder_and_upcast_attn",
            "add_cross_attention",
            "tie_word_embeddings",
            "n_ctx",
            "hidden_size",
            "max_position_embeddings",
            "num_attention_heads",
            "num_hidden_layers",
        ],
    };
    let rotary = if class.model_type() == "gpt2" { &[][..] } else { &rotary[..] };
    [&OF_ALL[..], rotary, own].concat()
}

/// A value of a field that makes another model.
fn changed(field: &Field) -> Value {
    match (field.absent, field.key) {
        (Absent::Count(_), "max_window_layers") => 0.into(),
        (Absent::Count(n), _) => (2 * n).into(),
        (Absent::Number(x), _) => (2.0 * x).into(),
        (Absent::Flag(flag), _) => (!flag).into(),
        (Absent::Word(_), _) => "gelu".into(),
        (Absent::Derived, "rope_scaling") => json!({"type": "linear", "factor": 2.0}),
        (Absent::Derived, "rope_parameters") => json!({"rope_theta": 777.0}),
        (Absent::Derived, "rope_theta") => 777.0.into(),
        (Absent::Derived, "partial_rotary_factor") => 0.5.into(),
        (Absent::Derived, "layer_types") => json!(vec!["full_attention"; 32]),
        (Absent::Derived, _) => 16.into(),
    }
}

/// A configuration in which the field has an effect.
fn base(class: &dyn Class, key: &str) -> Value {
    let base = json!({"model_type": class.model_type()});
    match key {
        "original_max_position_embeddings" => {
            with(base, json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}))
        }
        "use_sliding_window" => with(base, json!({"max_window_layers": 0})),
        "max_window_layers" => with(base, json!({"use_sliding_window": true, "num_hidden_layers": 20})),
        "sliding_window" | "layer_types" => {
            with(base, json!({"use_sliding_window": true, "max_window_layers": 0}))
        }
        _ => base,
    }
}

/// What decides the model.
fn model(config_json: &Value) -> Result<(String, usize)> {
    let keys: Keys = read_keys(&config(config_json))?;
    Ok((keys.to_toml(), keys.context))
}

/// The model with a key set to a value.
fn model_with(base: &Value, key: &str, value: &Value) -> Result<(String, usize)> {
    let mut changes = serde_json::Map::new();
    changes.insert(key.to_owned(), value.clone());
    model(&with(base.clone(), changes.into()))
}

fn refuses(what: &Result<(String, usize)>, key: &str) -> bool {
    what.as_ref().is_err_and(|e| e.message().contains(key) && e.message().contains("config.json"))
}

#[test]
fn every_key_changes_the_model_or_is_refused_or_is_harmless() {
    for class in CLASSES {
        for key in fields_in_transformers(class) {
            let at = format!("{} {key}", class.name());
            let base = base(class, key);
            let absent = model(&base).unwrap();
            let null = model_with(&base, key, &Value::Null);
            let field = class.fields().iter().find(|field| field.key == key);
            let alias = class.aliases().iter().find(|(alias, _)| *alias == key);
            if let Some(field) = field {
                assert!(!is_harmless(key) || key == "layer_types", "{at}");
                if let Some(default) = field.default() {
                    assert_eq!(model_with(&base, key, &default).unwrap(), absent, "{at}: default");
                }
                assert!(field.nullable || refuses(&null, &format!("{key} is null")), "{at}: null");
                let other = model_with(&base, key, &changed(field));
                assert!(refuses(&other, key) || other.is_ok_and(|other| other != absent), "{at}: changed");
            } else if let Some((_, key)) = alias {
                assert!(refuses(&null, key), "{at}: null");
                assert_ne!(model_with(&base, alias.unwrap().0, &24.into()).unwrap(), absent, "{at}: changed");
            } else if let Some((_, value, _)) = fixed().iter().find(|(fixed, ..)| *fixed == key) {
                assert_eq!(model_with(&base, key, value).unwrap(), absent, "{at}: default");
                assert_eq!(null.unwrap(), absent, "{at}: null");
                for other in [json!(7), json!(!value.as_bool().unwrap_or_default()), json!({"0": 1})] {
                    assert!(refuses(&model_with(&base, key, &other), key), "{at}: {other}");
                }
            } else {
                assert!(is_harmless(key), "{at} is in no list");
                assert_eq!(null.unwrap(), absent, "{at}: null");
                if key != "architectures" {
                    for other in [json!(7), json!("gelu"), json!(true), json!({"0": 1}), json!([1])] {
                        assert_eq!(model_with(&base, key, &other).unwrap(), absent, "{at}: {other}");
                    }
                }
            }
        }
    }
}

/// `null` is not the default where the configuration class derives it from other keys.
#[test]
fn null_has_its_own_meaning() {
    for (model_type, key, null, same_as) in [
        (
            "qwen3",
            "num_key_value_heads",
            json!({"num_attention_heads": 16}),
            json!({"num_key_value_heads": 16}),
        ),
        (
            "qwen3",
            "sliding_window",
            json!({"use_sliding_window": true, "max_window_layers": 0}),
            json!({"use_sliding_window": false}),
        ),
        ("llama", "head_dim", json!({"hidden_size": 2048}), json!({"head_dim": 64})),
        ("nanochat", "final_logit_softcapping", json!({"model_type": "nanochat"}), json!({})),
        ("gpt2", "n_inner", json!({"n_embd": 96}), json!({"n_inner": 384})),
        (
            "llama",
            "rope_scaling",
            json!({"rope_parameters": {"rope_theta": 777.0}}),
            json!({"rope_theta": 777.0}),
        ),
    ] {
        let base = with(json!({"model_type": model_type}), null);
        let with_null = model_with(&base, key, &Value::Null).unwrap();
        if key == "final_logit_softcapping" {
            assert!(!with_null.0.contains("logit_cap"), "{}", with_null.0);
        } else {
            let mut base = base;
            base.as_object_mut().unwrap().retain(|key, _| key != "rope_parameters");
            assert_eq!(with_null, model(&with(base, same_as)).unwrap(), "{key}");
        }
    }
}

#[test]
fn values_of_other_types_are_refused_and_numbers_may_be_whole() {
    for class in CLASSES {
        for field in class.fields() {
            let base = base(class, field.key);
            let (wrong, also_right) = match field.absent {
                Absent::Count(n) => {
                    (vec![json!(n as f64), json!(n.to_string()), json!(true), json!(-1)], None)
                }
                Absent::Number(_) => {
                    (vec![json!("1e-6"), json!(true), json!([])], Some((json!(1.0), json!(1))))
                }
                Absent::Flag(_) => (vec![json!(1), json!("true"), json!("")], None),
                Absent::Word(_) => (vec![json!(1), json!(["silu"]), json!("SiLU")], None),
                Absent::Derived => continue,
            };
            // Fewer layers than zero have a window.
            for wrong in wrong.iter().filter(|wrong| field.key != "max_window_layers" || **wrong != json!(-1))
            {
                let result = model_with(&base, field.key, wrong);
                assert!(refuses(&result, field.key), "{} {}: {wrong}", class.name(), field.key);
            }
            if let Some((float, whole)) = also_right {
                let both = [float, whole].map(|value| model_with(&base, field.key, &value).unwrap());
                assert_eq!(both[0], both[1], "{}", field.key);
            }
        }
    }
}

/// Either name of the table, and theta inside or beside it.
#[test]
fn the_rotation_is_read_in_every_form() {
    let base = |changes: Value| with(json!({"model_type": "llama"}), changes);
    let linear =
        model(&base(json!({"rope_theta": 5.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})))
            .unwrap();
    for same in [
        json!({"rope_theta": 5, "rope_scaling": {"type": "linear", "factor": 2}}),
        json!({"rope_theta": 5, "rope_scaling": null, "rope_parameters": {"type": "linear", "factor": 2}}),
        json!({"rope_scaling": {}, "rope_parameters": {"type": "linear", "factor": 2, "rope_theta": 5}}),
        json!({"rope_theta": 3, "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5}}),
        json!({"rope_theta": null, "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5}}),
        json!({"rope_theta": 5, "rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2}}),
        json!({"rope_theta": 5, "rope_scaling": {"rope_type": "proportional", "factor": 2}}),
        // A table that says anything replaces the other whole.
        json!({"rope_theta": 5, "rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 7}}),
    ] {
        assert_eq!(model(&base(same.clone())).unwrap(), linear, "{same}");
    }
    let plain = model(&base(json!({"rope_theta": 5}))).unwrap();
    for same in [
        json!({"rope_parameters": {"rope_theta": 5}}),
        json!({"rope_parameters": {"rope_theta": 5, "rope_type": "default"}}),
        json!({"rope_theta": 5, "rope_scaling": false, "rope_parameters": {}}),
        json!({"rope_theta": 5, "rope_scaling": {"rope_type": "proportional"}}),
        json!({"rope_theta": 5, "partial_rotary_factor": null}),
        json!({"rope_theta": 5, "partial_rotary_factor": 1}),
    ] {
        assert_eq!(model(&base(same.clone())).unwrap(), plain, "{same}");
    }
    assert_eq!(
        model(&base(json!({"rope_scaling": {}, "rope_parameters": null}))).unwrap(),
        model(&base(json!({}))).unwrap()
    );
    for (wrong, says) in [
        (json!({"rope_scaling": {"rope_type": null}}), "rope_scaling: rope_type is null"),
        (json!({"rope_scaling": {"rope_theta": null, "type": "linear", "factor": 2}}), "rope_theta is null"),
        (json!({"rope_scaling": {"type": "linear", "factor": null}}), "factor is null"),
        (json!({"rope_scaling": {"type": "linear"}}), "there is no factor"),
        (json!({"rope_scaling": {"type": "yarn"}}), "there is no factor"),
        (json!({"rope_scaling": {"type": "yarn", "factor": 2, "truncate": null}}), "truncate is null"),
        (json!({"rope_scaling": "linear"}), "rope_scaling is \"linear\", and an object"),
        (
            json!({"rope_scaling": {"full_attention": {"rope_type": "default"}}}),
            "rope_scaling: full_attention is",
        ),
        (
            json!({"original_max_position_embeddings": null, "rope_scaling": {"type": "yarn", "factor": 2}}),
            "original_max_position_embeddings is null",
        ),
    ] {
        let result = model(&base(wrong.clone()));
        assert!(refuses(&result, says), "{wrong}: {result:?}");
    }
}

/// Every key in a table of every type: it changes the rotation, is refused, or is said to have no effect.
#[test]
fn every_key_of_a_table_has_an_effect_or_is_said_to_have_none() {
    let known = [
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "low_freq_factor",
        "high_freq_factor",
        "mrope_section",
        "short_factor",
        "long_factor",
    ];
    for table in [
        json!({"rope_type": "default"}),
        json!({"rope_type": "linear", "factor": 2.0}),
        json!({"rope_type": "yarn", "factor": 2.0, "mscale": 0.5, "mscale_all_dim": 0.75}),
        json!({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    ] {
        let keys_with = |key: &str, value: Value| {
            let mut table = table.clone();
            table[key] = value;
            read_keys(&config(&json!({"model_type": "llama", "rope_scaling": table})))
        };
        let before = read_keys(&config(&json!({"model_type": "llama", "rope_scaling": table}))).unwrap();
        assert!(before.notes.is_empty());
        for key in known {
            let value = if key == "truncate" { json!(false) } else { json!(3) };
            let said = format!("rope_scaling.{key} has no effect");
            match keys_with(key, value) {
                Ok(keys) => assert!(
                    (keys.to_toml() != before.to_toml())
                        != keys.notes.iter().any(|note| note.contains(&said)),
                    "{table} {key}: {:?}",
                    keys.notes
                ),
                Err(e) => assert!(e.message().contains(key), "{e}"),
            }
        }
        let unknown = keys_with("ntk_alpha", json!(3)).unwrap_err();
        assert!(
            unknown.message().contains("rope_scaling: ntk_alpha is 3, and transformers has no such key"),
            "{unknown}"
        );
        assert!(unknown.message().contains("--ignore rope_scaling.ntk_alpha"), "{unknown}");
        assert_eq!(keys_with("ntk_alpha", Value::Null).unwrap().to_toml(), before.to_toml());
    }
}

#[test]
fn unknown_keys_are_refused_unless_they_are_ignored() {
    for class in CLASSES {
        let base = json!({"model_type": class.model_type()});
        let plain = model(&base).unwrap();
        let unknown =
            with(base, json!({"attention_multiplier": 0.5, "logits_scaling": 2, "x\u{1b}": 1, "none": null}));
        let error = read_keys(&config(&unknown)).unwrap_err();
        for says in [
            "attention_multiplier is 0.5",
            "--ignore attention_multiplier",
            "2 more like it: logits_scaling, x\\u{1b}",
        ] {
            assert!(error.message().contains(says), "{error}");
        }
        let mut left = config(&unknown);
        for key in ["attention_multiplier", "logits_scaling", "x\u{1b}"] {
            ignore(&mut left, key).unwrap();
        }
        let keys = read_keys(&left).unwrap();
        assert_eq!((keys.to_toml(), keys.context), plain);
        for (key, says) in
            [("attention_multiplier", "has no such key"), ("vocab_size", "knows what this key means")]
        {
            let error = ignore(&mut left, key).unwrap_err();
            assert!(error.message().contains(says), "{error}");
        }
    }
    assert!(HARMLESS.iter().all(|key| {
        CLASSES
            .iter()
            .all(|class| class.fields().iter().all(|field| field.key != *key || *key == "layer_types"))
    }));
}
