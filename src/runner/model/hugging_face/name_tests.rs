//! Tensor names with and without prefixes and wrappers, and tied embeddings in either place.

use super::keys;
use super::tests::{Stored, config, imported, model_from, small, tensors, with};
use crate::model::{Weights, parameters_of_model};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn stored(config_json: &Value) -> Vec<Stored> {
    tensors(&model_from(&keys(&config(config_json)).unwrap()))
}

fn renamed(stored: &[Stored], rename: impl Fn(&str) -> String) -> Vec<Stored> {
    stored
        .iter()
        .map(|(name, dtype, shape, bytes)| (rename(name), *dtype, shape.clone(), bytes.clone()))
        .collect()
}

fn values(config_json: &Value, stored: &[Stored]) -> (BTreeMap<String, Vec<u8>>, Vec<String>) {
    let weights = imported(config_json, stored).unwrap();
    let model = model_from(&keys(&config(config_json)).unwrap());
    let values = parameters_of_model(&model)
        .unwrap()
        .into_iter()
        .map(|p| (p.name.clone(), weights.read(&p.name, &p.shape).unwrap()));
    (values.collect(), weights.notes.clone())
}

#[test]
fn prefixes_and_wrappers_do_not_change_the_weights() {
    let whole = stored(&small());
    let (expected, notes) = values(&small(), &whole);
    assert!(notes.is_empty());
    let bare = |name: &str| name.trim_start_matches("model.").to_owned();
    for (rename, wrapped) in [
        (&(|name: &str| bare(name)) as &dyn Fn(&str) -> String, false),
        (&|name: &str| if name.contains("norm") { bare(name) } else { name.to_owned() }, false),
        (&|name: &str| format!("_orig_mod.{name}"), true),
        (&|name: &str| format!("module.{name}"), true),
        (&|name: &str| format!("module._orig_mod.{name}"), true),
        (&|name: &str| format!("_orig_mod.module.{name}"), true),
        (&|name: &str| format!("_orig_mod.{}", bare(name)), true),
        (&|name: &str| name.replace("layers.0.", "layers.0._orig_mod."), true),
    ] {
        let names = renamed(&whole, rename);
        let (found, notes) = values(&small(), &names);
        assert_eq!(found, expected, "{}", names[0].0);
        assert_eq!(notes.len(), usize::from(wrapped), "{notes:?}");
    }
    for architectures in [json!(["LlamaModel"]), json!([]), json!(null), json!("LlamaForCausalLM")] {
        let config_json = with(small(), json!({"architectures": architectures}));
        assert_eq!(values(&config_json, &renamed(&whole, bare)).0, expected);
    }
}

#[test]
fn tied_embeddings_may_be_stored_as_the_head() {
    let whole = stored(&small());
    let (expected, _) = values(&small(), &whole);
    let as_head = renamed(&whole, |name| name.replace("model.embed_tokens.weight", "lm_head.weight"));
    assert_eq!(values(&small(), &as_head).0, expected);
    let untied = with(small(), json!({"tie_word_embeddings": false}));
    for (config_json, stored, says) in [
        (&untied, whole.clone(), "tie_word_embeddings is false in config.json, so the model needs a head"),
        (&untied, as_head, "there is no tensor model.embed_tokens.weight"),
        (
            &small(),
            whole[1..].to_vec(),
            "the folder has 10 tensors, such as model.layers.0.input_layernorm.weight",
        ),
        (
            &small(),
            [&whole[..], &renamed(&whole[..1], |name| name.replace("model.", ""))].concat(),
            "are names of the same tensor",
        ),
        (
            &small(),
            [&whole[..], &renamed(&whole[..1], |name| format!("_orig_mod.{name}"))].concat(),
            "are names of the same tensor",
        ),
    ] {
        let error = imported(config_json, &stored).unwrap_err();
        assert!(error.message().contains(says), "{says}: {error}");
    }
}
