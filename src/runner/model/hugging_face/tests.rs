//! Every class in both directions, and configurations of published models.

use super::import::{ImportedWeights, check_parameters};
use super::keys::Keys;
use super::tensor::{HfFacts, HfModel};
use super::{express, keys};
use crate::checkpoint::{DiskFs, TensorView, tensor_file};
use crate::error::Result;
use crate::hugging_face::{Config, Folder};
use crate::machine::Machine;
use crate::model::{Weights, parameters_of_model};
use crate::plan::Model;
use crate::policy::Position;
use crate::recipe;
use insta::assert_snapshot;
use safetensors::Dtype;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub(super) fn config(value: &Value) -> Config {
    Config::parse(Path::new("config.json"), value.to_string().as_bytes()).unwrap()
}

fn recipe_toml(value: &Value) -> String {
    let keys = keys(&config(value)).unwrap();
    format!("# {}, {} tokens\n{}", keys.class, keys.context, keys.to_toml())
}

fn refusal(value: &Value) -> String {
    keys(&config(value)).unwrap_err().message().to_owned()
}

pub(super) fn model_from(keys: &Keys) -> Model {
    let recipe =
        recipe::load_str(Path::new("r.toml"), &keys.to_toml(), &[], std::iter::empty(), &Machine::none())
            .unwrap();
    with_positions(Model::from_keys(&recipe.values().model, keys.vocab_size), keys.context)
}

/// Adds a table of `context` positions, if the model learns positions.
fn with_positions(model: Model, context: usize) -> Model {
    let learned_positions = if model.position == Position::Learned { context } else { 0 };
    Model { learned_positions, ..model }
}

/// `openai-community/gpt2`.
pub(super) fn gpt2() -> Value {
    json!({
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "vocab_size": 50257,
        "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
    })
}

/// `HuggingFaceTB/SmolLM2-135M`.
pub(super) fn smollm2() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 0,
        "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "model_type": "llama",
        "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1,
        "rms_norm_eps": 1e-5, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 49152,
    })
}

/// `Qwen/Qwen3-0.6B`.
pub(super) fn qwen3() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_scaling": null, "rope_theta": 1000000,
        "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 151936,
    })
}

/// `NanoChatConfig`, as transformers 5.23 saves it.
pub(super) fn nanochat() -> Value {
    json!({
        "architectures": ["NanoChatForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 0,
        "eos_token_id": 1, "final_logit_softcapping": 15.0, "hidden_act": "relu2", "hidden_size": 768,
        "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 2048,
        "model_type": "nanochat", "num_attention_heads": 6, "num_hidden_layers": 12, "num_key_value_heads": 6,
        "pad_token_id": 1, "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": false, "use_cache": true, "vocab_size": 50304,
    })
}

pub(super) fn with(mut value: Value, changes: Value) -> Value {
    for (key, change) in changes.as_object().unwrap() {
        value[key] = change.clone();
    }
    value
}

#[test]
fn configurations_of_others_are_recipes() {
    assert_snapshot!(recipe_toml(&gpt2()), @r#"
    # GPT2LMHeadModel, 1024 tokens
    [model]
    vocab_size = 50257
    dim = 768
    n_layers = 12
    n_heads = 12
    ffn_dim = 3072
    activation = "gelu_tanh"
    bias = true
    norm = "layer_norm"
    norm_eps = 1e-5
    position = "learned"
    qk_norm = false
    tie_embeddings = true
    "#);
    assert_snapshot!(recipe_toml(&smollm2()), @r#"
    # LlamaForCausalLM, 8192 tokens
    [model]
    vocab_size = 49152
    dim = 576
    n_layers = 30
    n_heads = 9
    n_kv_heads = 3
    head_dim = 64
    ffn_dim = 1536
    activation = "swiglu"
    bias = false
    qk_norm = false
    norm_eps = 1e-5
    rope_theta = 100000.0
    tie_embeddings = true
    "#);
    assert_snapshot!(recipe_toml(&qwen3()), @r#"
    # Qwen3ForCausalLM, 40960 tokens
    [model]
    vocab_size = 151936
    dim = 1024
    n_layers = 28
    n_heads = 16
    n_kv_heads = 8
    head_dim = 128
    ffn_dim = 3072
    activation = "swiglu"
    norm_eps = 1e-6
    rope_theta = 1000000.0
    tie_embeddings = true
    "#);
    assert_snapshot!(recipe_toml(&nanochat()), @r#"
    # NanoChatForCausalLM, 2048 tokens
    [model]
    vocab_size = 50304
    dim = 768
    n_layers = 12
    n_heads = 6
    n_kv_heads = 6
    head_dim = 128
    ffn_dim = 8192
    activation = "relu2"
    norm_weight = false
    embedding_norm = true
    norm_eps = 1e-6
    qk_norm = true
    qk_norm_place = "after_rope"
    qk_norm_weight = false
    rope_direction = "negative"
    rope_theta = 10000.0
    logit_cap = 15.0
    tie_embeddings = false
    "#);
}

/// The shipped recipes of model families match the configurations of their classes.
#[test]
fn family_recipes_match_their_configurations() {
    let nanochat_d12 = json!({"vocab_size": 65536, "intermediate_size": 3072});
    for (name, value) in [
        ("gpt2-124m", gpt2()),
        ("smollm2-135m", smollm2()),
        ("qwen3-0.6b", qwen3()),
        ("nanochat-d12", with(nanochat(), nanochat_d12)),
    ] {
        let keys = keys(&config(&value)).unwrap();
        let (_, text) = recipe::builtin::find(name).unwrap();
        let none = std::iter::empty();
        let recipe = recipe::load_str(Path::new("r.toml"), text, &[], none, &Machine::none()).unwrap();
        let shipped = with_positions(Model::from_keys(&recipe.values().model, keys.vocab_size), keys.context);
        // Initial values are not part of a configuration's model.
        let Model { init_std, residual_init, .. } = shipped;
        assert_eq!(shipped, Model { init_std, residual_init, ..model_from(&keys) }, "{name}");
    }
}

/// Every model that a class can express comes back from its configuration.
#[test]
fn exported_configurations_equal_imported_ones() {
    let yarn = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192,
        "attention_factor": 1.25}});
    let llama3 = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}});
    let layers: Vec<&str> =
        (0..28).map(|i| if i % 4 == 3 { "full_attention" } else { "sliding_attention" }).collect();
    let window = json!({"use_sliding_window": true, "sliding_window": 256, "layer_types": layers});
    let mscale = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192,
        "mscale": 0.7, "mscale_all_dim": 1.3}});
    let all_sliding = json!({"use_sliding_window": true, "sliding_window": 256, "max_window_layers": 0});
    for value in [
        gpt2(),
        with(gpt2(), json!({"activation_function": "gelu", "tie_word_embeddings": false, "n_inner": 100})),
        smollm2(),
        with(smollm2(), json!({"attention_bias": true, "mlp_bias": true, "hidden_act": "gelu"})),
        with(smollm2(), llama3),
        with(smollm2(), json!({"rope_scaling": {"type": "linear", "factor": 2.0}})),
        qwen3(),
        with(qwen3(), yarn),
        with(qwen3(), mscale),
        with(qwen3(), window),
        with(qwen3(), all_sliding),
        nanochat(),
        with(nanochat(), json!({"head_dim": 64})),
        with(gpt2(), json!({"activation_function": "relu"})),
        with(qwen3(), json!({"hidden_act": "quick_gelu"})),
        with(nanochat(), json!({"final_logit_softcapping": null, "tie_word_embeddings": true})),
    ] {
        let before = keys(&config(&value)).unwrap();
        let model = model_from(&before);
        let facts = HfFacts {
            torch_dtype: "float32",
            seq_len: before.context,
            end_token_id: 0,
            begin_token_id: Some(0),
        };
        let HfModel { class, config: exported, tensors } = express(&model, &facts).unwrap();
        assert_eq!(class, before.class);
        assert_eq!(model_from(&keys(&config(&exported)).unwrap()), model, "{value}");
        let names: BTreeSet<_> = tensors.iter().map(|tensor| &tensor.name).collect();
        assert_eq!(names.len(), tensors.len(), "{class}");
        assert!(tensors.iter().all(|tensor| tensor.range().is_some()), "{class}");
    }
}

/// The tensors of a class make up every parameter exactly once.
#[test]
fn every_parameter_has_its_tensors() {
    let biases = json!({"attention_bias": true, "mlp_bias": true});
    let untied = json!({"tie_word_embeddings": false});
    for value in [
        gpt2(),
        with(gpt2(), untied.clone()),
        smollm2(),
        with(smollm2(), biases),
        qwen3(),
        with(qwen3(), untied),
        nanochat(),
    ] {
        let model = model_from(&keys(&config(&value)).unwrap());
        let facts =
            HfFacts { torch_dtype: "float32", seq_len: 1024, end_token_id: 0, begin_token_id: Some(0) };
        let mut parts = BTreeMap::new();
        for tensor in express(&model, &facts).unwrap().tensors {
            parts.entry(tensor.source.clone()).or_insert_with(Vec::new).push(tensor);
        }
        check_parameters(&model, &parts).unwrap();
        let (name, part) = parts.iter_mut().next().unwrap();
        let (name, last) = (name.clone(), part.pop());
        assert!(check_parameters(&model, &parts).unwrap_err().message().contains(&name), "{last:?}");
    }
}

#[test]
fn unsupported_configurations_are_refused_with_key_and_value() {
    for (value, says) in [
        (
            with(qwen3(), json!({"model_type": "mixtral"})),
            "model_type is \"mixtral\", and xrun has models of",
        ),
        (with(qwen3(), json!({"model_type": null})), "model_type is null"),
        (with(qwen3(), json!({"architectures": ["Qwen3ForSequenceClassification"]})), "architectures is ["),
        (with(qwen3(), json!({"auto_map": {"AutoModel": "m.M"}})), "code of a folder is not run"),
        (with(qwen3(), json!({"quantization_config": {"bits": 4}})), "quantization_config is {\"bits\":4}"),
        (with(qwen3(), json!({"attention_bias": true})), "attention_bias is true"),
        (with(qwen3(), json!({"hidden_act": "sigmoid"})), "hidden_act is \"sigmoid\", and xrun has silu"),
        (with(qwen3(), json!({"hidden_size": -3})), "hidden_size is -3"),
        (
            with(qwen3(), json!({"hidden_size": null})),
            "hidden_size is null, and transformers refuses that: set it, or remove the key for the default, 4096",
        ),
        (with(qwen3(), json!({"rms_norm_eps": "small"})), "rms_norm_eps is \"small\", and a number"),
        (with(qwen3(), json!({"rope_scaling": {"rope_type": "longrope"}})), "rope_type is \"longrope\""),
        (with(qwen3(), json!({"rope_scaling": {"rope_type": "linear"}})), "there is no factor"),
        (with(qwen3(), json!({"partial_rotary_factor": 0.5})), "partial_rotary_factor is 0.5"),
        (
            with(
                qwen3(),
                json!({"use_sliding_window": true, "sliding_window": 8, "num_hidden_layers": 1u64 << 60}),
            ),
            "at most 4096 are read",
        ),
        (
            with(qwen3(), json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 21})),
            "max_window_layers is 21, and xrun has one layer of full attention",
        ),
        (with(qwen3(), json!({"layer_types": ["sliding_attention"]})), "num_hidden_layers is 28"),
        (
            with(qwen3(), json!({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})),
            "without use_sliding_window and sliding_window",
        ),
        (
            with(qwen3(), json!({"num_hidden_layers": 1, "layer_types": ["chunked_attention"]})),
            "layer_types is [\"chunked_attention\"], and xrun has",
        ),
        (with(qwen3(), json!({"head_dim": null})), "head_dim is null"),
        (with(qwen3(), json!({"rope_theta": null})), "rope_theta is null, and a number is expected"),
        (
            with(smollm2(), json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}})),
            "type is \"dynamic\", and xrun has",
        ),
        (with(smollm2(), json!({"hidden_size": 577})), "num_attention_heads is 9, and it must divide"),
        (
            with(smollm2(), json!({"attention_multiplier": 0.5})),
            "attention_multiplier is 0.5, and it is not a key of",
        ),
        (with(smollm2(), json!({"mlp_bias": true})), "mlp_bias is true, and attention_bias is false"),
        (
            with(gpt2(), json!({"scale_attn_by_inverse_layer_idx": true})),
            "scale_attn_by_inverse_layer_idx is true",
        ),
        (with(gpt2(), json!({"activation_function": "relu6"})), "activation_function is \"relu6\""),
        (with(nanochat(), json!({"attention_bias": true})), "attention_bias is true"),
    ] {
        let message = refusal(&value);
        assert!(message.contains(says) && message.contains("config.json"), "{says}: {message}");
    }
}

/// A small Llama with tied embeddings.
pub(super) fn small() -> Value {
    with(
        smollm2(),
        json!({"vocab_size": 5, "hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1}),
    )
}

/// A tensor in a file: its name, format, shape and bytes.
pub(super) type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

/// The tensors of the small model. Elements count up across tensors.
pub(super) fn tensors(model: &Model) -> Vec<Stored> {
    let facts = HfFacts { torch_dtype: "float32", seq_len: 8, end_token_id: 0, begin_token_id: Some(0) };
    let mut next = 0u16;
    let mut bytes = |count: usize| -> Vec<u8> {
        let numbers = (next..).take(count).flat_map(|i| f32::from(i).to_le_bytes()).collect();
        next += count as u16;
        numbers
    };
    let tensors = express(model, &facts).unwrap().tensors.into_iter();
    tensors.map(|t| (t.name, Dtype::F32, t.shape.clone(), bytes(t.shape.iter().product()))).collect()
}

pub(super) fn imported(config: &Value, tensors: &[Stored]) -> Result<ImportedWeights> {
    let at = tempfile::tempdir().unwrap();
    std::fs::write(at.path().join("config.json"), config.to_string()).unwrap();
    let view = |(name, dtype, shape, bytes): &Stored| {
        let bytes = bytes.clone();
        TensorView::lazy(name.clone(), *dtype, shape.clone(), move || Ok(Cow::Owned(bytes.clone())))
    };
    let views: Vec<TensorView> = tensors.iter().map(view).collect();
    tensor_file::write(&DiskFs, &at.path().join("model.safetensors"), &views).unwrap();
    let folder = Folder::open(at.path())?;
    let keys = keys(&folder.config)?;
    ImportedWeights::new(folder, &model_from(&keys))
}

#[test]
fn parameters_are_put_together_from_their_tensors() {
    let model = model_from(&keys(&config(&small())).unwrap());
    let stored = tensors(&model);
    let weights = imported(&small(), &stored).unwrap();
    let values = |weights: &ImportedWeights| -> BTreeMap<String, Vec<f32>> {
        parameters_of_model(&model)
            .unwrap()
            .into_iter()
            .map(|p| (p.name.clone(), weights.values(&p.name, &p.shape).unwrap()))
            .collect()
    };
    let expected = values(&weights);
    assert_eq!(weights.names().len(), expected.len());
    let mut all: Vec<f32> = expected.values().flatten().copied().collect();
    all.sort_by(f32::total_cmp);
    let count = all.len() as u16;
    assert_eq!(all, (0..count).map(f32::from).collect::<Vec<_>>(), "every element once");
    // Queries, keys and values are rows of one parameter, in this order, after the norm.
    let first = 5 * 4 + 4;
    assert_eq!(expected["blocks.0.qkv"], (first..first + 32).map(|i| i as f32).collect::<Vec<_>>());
    // Files of a bare model omit the prefix. Older files also hold rotary frequencies and the head of tied
    // embeddings.
    let mut bare = stored.clone();
    bare.iter_mut().for_each(|(name, ..)| *name = name.trim_start_matches("model.").to_owned());
    bare.push(("layers.0.self_attn.rotary_emb.inv_freq".into(), Dtype::I64, vec![1], vec![0; 8]));
    let embedding = stored[0].3.clone();
    bare.push(("lm_head.weight".into(), Dtype::F32, vec![5, 4], embedding));
    assert_eq!(values(&imported(&small(), &bare).unwrap()), expected);
    bare.last_mut().unwrap().3[0] ^= 1;
    let error = imported(&small(), &bare).unwrap().values("embedding", &[5, 4]).unwrap_err();
    assert!(error.message().contains("lm_head.weight is not the embedding"), "{error}");
    assert!(weights.values("embedding", &[4, 5]).is_err() && weights.values("nothing", &[1]).is_err());
}

#[test]
fn tensors_outside_the_model_are_refused() {
    let model = model_from(&keys(&config(&small())).unwrap());
    let stored = tensors(&model);
    let changed = |change: &dyn Fn(&mut Vec<Stored>)| {
        let mut stored = stored.clone();
        change(&mut stored);
        imported(&small(), &stored).unwrap_err().message().to_owned()
    };
    for (message, says) in [
        (
            changed(&|t| drop(t.remove(3))),
            "there is no tensor model.layers.0.self_attn.k_proj.weight, which has shape [2, 4]",
        ),
        (
            changed(&|t| t[0].2 = vec![4, 5]),
            "tensor model.embed_tokens.weight has shape [4, 5], but [5, 4] by config.json",
        ),
        (changed(&|t| t[1].1 = Dtype::I32), "input_layernorm.weight is I32: weights are read in"),
        (
            changed(&|t| t.push(("model.extra".into(), Dtype::F32, vec![1], vec![0; 4]))),
            "tensor model.extra of shape [1] is not part of LlamaForCausalLM",
        ),
    ] {
        assert!(message.contains(says), "{says}: {message}");
    }
    // A model that the class cannot express, because its recipe was not made from the folder.
    let other = Model { bias: false, logit_cap: Some(1.0), ..model.clone() };
    let at = tempfile::tempdir().unwrap();
    std::fs::write(at.path().join("config.json"), small().to_string()).unwrap();
    std::fs::write(at.path().join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let error = ImportedWeights::new(Folder::open(at.path()).unwrap(), &other).unwrap_err();
    assert!(
        error.message().contains("model.logit_cap is 1, but it has none, as LlamaForCausalLM"),
        "{error}"
    );
}
