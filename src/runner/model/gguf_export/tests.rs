//! Every architecture: names, shapes, order of rows, keys, and what is refused.

use super::architecture::Architecture;
use super::ends::Ends;
use super::metadata::metadata;
use super::tensors::tensors;
use super::tokenizer::Tokenizer;
use super::*;
use crate::data::tokenizer::Begin;
use crate::error::{Error, ErrorKind};
use crate::gguf::{Element, Tensor, Value};
use crate::model::hf_export::Dtype;
use crate::model::hugging_face::{Companions, HfModel};
use crate::plan::Model;
use crate::policy::{Activation, Norm, Position, RopeDirection, RopeScaling};
use crate::recipe;
use std::collections::BTreeMap;

/// Odd sizes, so that a swapped dimension shows.
fn keys() -> recipe::Model {
    recipe::Model {
        dim: 12,
        n_layers: 2,
        n_heads: Some(3),
        n_kv_heads: Some(1),
        head_dim: Some(4),
        ffn_dim: Some(5),
        rope_theta: 12345.0,
        norm_eps: 1e-5,
        ..recipe::Model::default()
    }
}

fn llama() -> recipe::Model {
    recipe::Model { qk_norm: false, tie_embeddings: true, ..keys() }
}

fn gpt2() -> recipe::Model {
    recipe::Model {
        norm: Norm::LayerNorm,
        activation: Activation::GeluTanh.into(),
        bias: true,
        position: Position::Learned,
        qk_norm: false,
        tie_embeddings: true,
        n_kv_heads: Some(3),
        ..keys()
    }
}

/// The built-in tokenizer of bytes, whose 257 entries are padded to 320 rows in memory.
fn bytes() -> String {
    crate::data::Tokenizer::open("byte").unwrap().to_json().to_owned()
}

fn export(keys: &recipe::Model) -> Export {
    let mut model = Model::from_keys(keys, 257);
    if model.position == Position::Learned {
        model.learned_positions = 7;
    }
    Export {
        model,
        seq_len: 7,
        end_token_id: 256,
        begin: Begin::End,
        dtype: Dtype::F32,
        reference: None,
        companions: Companions::default(),
        data: None,
    }
}

/// Weights in which every number says its parameter and its element.
struct Numbered(BTreeMap<String, Vec<usize>>);

impl Numbered {
    fn new(export: &Export) -> Self {
        let facts = crate::model::hugging_face::HfFacts {
            torch_dtype: "float32",
            seq_len: 7,
            end_token_id: 256,
            begin_token_id: None,
        };
        let hf = crate::model::hugging_face::express(&export.model, &facts).unwrap();
        Self(hf.tensors.into_iter().map(|t| (t.source, t.source_shape)).collect())
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        let at = self.0.keys().position(|key| key == name).unwrap();
        let count: usize = self.0[name].iter().product();
        (0..count).map(|i| (at * 10_000 + i) as f32 / 16.0).collect()
    }
}

impl Weights for Numbered {
    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        match self.0.get(name).is_some_and(|own| own == shape) {
            true => Ok(self.numbers(name).iter().flat_map(|x| x.to_le_bytes()).collect()),
            false => Err(Error::failed(format!("no {name} of {shape:?}"))),
        }
    }
}

/// An export in parts.
struct Parts {
    export: Export,
    weights: Numbered,
    hf: HfModel,
    architecture: Architecture,
}

impl Parts {
    fn new(keys: &recipe::Model) -> Self {
        let export = export(keys);
        let weights = Numbered::new(&export);
        let hf = hf_export::expressed(&export, &weights).unwrap();
        let architecture = Architecture::new(&hf, &export.model).unwrap();
        Self { export, weights, hf, architecture }
    }

    fn tensors(&self, element: Element) -> Vec<Tensor<'_>> {
        tensors(&self.export.model, self.architecture, &self.hf, element, &self.weights).unwrap()
    }

    fn keys(&self, facts: &Facts) -> BTreeMap<String, Value> {
        let tokenizer = Tokenizer::new(&self.export, &bytes()).unwrap();
        let ends = Ends::new(&self.export, facts, &bytes()).unwrap();
        let all = metadata(&self.export, facts, self.architecture, &self.hf, &tokenizer, &ends).unwrap();
        let count = all.len();
        let keys: BTreeMap<String, Value> = all.into_iter().collect();
        assert_eq!(keys.len(), count, "a key is there twice");
        keys
    }
}

/// Returns names and shapes, with a star where a tensor stays in fp32.
fn listed(tensors: &[Tensor<'_>]) -> Vec<String> {
    let star = |tensor: &Tensor<'_>| if tensor.element == Element::F32 { "*" } else { "" };
    tensors.iter().map(|tensor| format!("{} {:?}{}", tensor.name, tensor.shape, star(tensor))).collect()
}

fn numbers<'t>(tensors: &'t [Tensor<'_>], name: &str) -> Vec<f32> {
    let tensor: &'t Tensor<'_> = tensors.iter().find(|tensor| tensor.name == name).expect(name);
    (tensor.numbers)().unwrap()
}

#[test]
fn llama_has_its_names_and_pairs_of_rows_side_by_side() {
    let parts = Parts::new(&recipe::Model { bias: true, ..llama() });
    let tensors = parts.tensors(Element::F16);
    let expected = [
        "token_embd.weight [257, 12]",
        "blk.0.attn_norm.weight [12]*",
        "blk.0.attn_q.weight [12, 12]",
        "blk.0.attn_q.bias [12]*",
        "blk.0.attn_k.weight [4, 12]",
        "blk.0.attn_k.bias [4]*",
        "blk.0.attn_v.weight [4, 12]",
        "blk.0.attn_v.bias [4]*",
        "blk.0.attn_output.weight [12, 12]",
        "blk.0.attn_output.bias [12]*",
        "blk.0.ffn_norm.weight [12]*",
        "blk.0.ffn_gate.weight [5, 12]",
        "blk.0.ffn_gate.bias [5]*",
        "blk.0.ffn_up.weight [5, 12]",
        "blk.0.ffn_up.bias [5]*",
        "blk.0.ffn_down.weight [12, 5]",
        "blk.0.ffn_down.bias [12]*",
    ];
    assert_eq!(listed(&tensors)[..expected.len()], expected);
    assert_eq!((tensors.len(), listed(&tensors).pop().unwrap()), (34, "output_norm.weight [12]*".to_owned()));

    let (qkv, bias) = (parts.weights.numbers("blocks.1.qkv"), parts.weights.numbers("blocks.1.qkv_bias"));
    let rows = |numbers: &[usize]| -> Vec<f32> {
        numbers.iter().flat_map(|row| qkv[row * 12..(row + 1) * 12].to_vec()).collect()
    };
    assert_eq!(numbers(&tensors, "blk.1.attn_q.weight"), rows(&[0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11]));
    assert_eq!(numbers(&tensors, "blk.1.attn_k.weight"), rows(&[12, 14, 13, 15]));
    assert_eq!(numbers(&tensors, "blk.1.attn_v.weight"), rows(&[16, 17, 18, 19]));
    assert_eq!(numbers(&tensors, "blk.1.attn_k.bias"), [bias[12], bias[14], bias[13], bias[15]]);
    assert_eq!(numbers(&tensors, "blk.1.attn_v.bias"), bias[16..]);
    let gate_up = parts.weights.numbers("blocks.0.gate_up");
    assert_eq!(numbers(&tensors, "blk.0.ffn_gate.weight"), gate_up[..60]);
    assert_eq!(numbers(&tensors, "blk.0.ffn_up.weight"), gate_up[60..]);
}

#[test]
fn qwen3_keeps_the_order_of_rows_and_has_its_own_head() {
    let parts = Parts::new(&keys());
    let tensors = parts.tensors(Element::Bf16);
    let listed = listed(&tensors);
    for name in [
        "blk.1.attn_q_norm.weight [4]*",
        "blk.1.attn_k_norm.weight [4]*",
        "output_norm.weight [12]*",
        "output.weight [257, 12]",
    ] {
        assert!(listed.iter().any(|one| one == name), "{name}: {listed:?}");
    }
    assert_eq!(tensors.len(), 3 + 2 * 11);
    let qkv = parts.weights.numbers("blocks.0.qkv");
    assert_eq!(numbers(&tensors, "blk.0.attn_q.weight"), qkv[..144]);
    assert_eq!(numbers(&tensors, "blk.0.attn_k.weight"), qkv[144..192]);
    assert_eq!(numbers(&tensors, "output.weight"), parts.weights.numbers("head"));
}

#[test]
fn gpt2_has_products_as_xrun_has_them() {
    let parts = Parts::new(&gpt2());
    let tensors = parts.tensors(Element::F16);
    let expected = [
        "token_embd.weight [257, 12]",
        "position_embd.weight [7, 12]*",
        "blk.0.attn_norm.weight [12]*",
        "blk.0.attn_norm.bias [12]*",
        "blk.0.attn_qkv.weight [36, 12]",
        "blk.0.attn_qkv.bias [36]*",
        "blk.0.attn_output.weight [12, 12]",
        "blk.0.attn_output.bias [12]*",
        "blk.0.ffn_norm.weight [12]*",
        "blk.0.ffn_norm.bias [12]*",
        "blk.0.ffn_up.weight [5, 12]",
        "blk.0.ffn_up.bias [5]*",
        "blk.0.ffn_down.weight [12, 5]",
        "blk.0.ffn_down.bias [12]*",
    ];
    assert_eq!(listed(&tensors)[..expected.len()], expected);
    assert_eq!(numbers(&tensors, "blk.1.attn_qkv.weight"), parts.weights.numbers("blocks.1.qkv"));
    assert_eq!(numbers(&tensors, "blk.1.ffn_down.weight"), parts.weights.numbers("blocks.1.down"));
    let keys = parts.keys(&Facts::default());
    assert_eq!(keys["gpt2.attention.layer_norm_epsilon"], Value::F32(1e-5));
    assert_eq!(keys["gpt2.context_length"], Value::U32(7));
    assert!(!keys.keys().any(|key| key.contains("rope")));
}

#[test]
fn keys_say_sizes_rotation_and_tokens() {
    let facts = Facts {
        name: "tiny".to_owned(),
        texts: vec![("a".to_owned(), Some("CC0".to_owned())), ("b".to_owned(), None)],
        ..Facts::default()
    };
    let keys = Parts::new(&llama()).keys(&facts);
    let text = |text: &str| Value::Text(text.to_owned());
    for (key, value) in [
        ("general.architecture", text("llama")),
        ("general.type", text("model")),
        ("general.file_type", Value::U32(0)),
        ("general.name", text("tiny")),
        ("general.dataset.count", Value::U32(2)),
        ("general.dataset.0.name", text("a")),
        ("general.dataset.0.description", text("CC0")),
        ("general.dataset.1.name", text("b")),
        ("llama.block_count", Value::U32(2)),
        ("llama.context_length", Value::U32(7)),
        ("llama.embedding_length", Value::U32(12)),
        ("llama.feed_forward_length", Value::U32(5)),
        ("llama.attention.head_count", Value::U32(3)),
        ("llama.attention.head_count_kv", Value::U32(1)),
        ("llama.attention.key_length", Value::U32(4)),
        ("llama.attention.value_length", Value::U32(4)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.vocab_size", Value::U32(257)),
        ("llama.rope.dimension_count", Value::U32(4)),
        ("llama.rope.freq_base", Value::F32(12345.0)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("gpt-2")),
        ("tokenizer.ggml.merges", Value::Texts(vec![])),
        ("tokenizer.ggml.bos_token_id", Value::U32(256)),
        ("tokenizer.ggml.eos_token_id", Value::U32(256)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
        ("tokenizer.ggml.add_eos_token", Value::Bool(false)),
    ] {
        assert_eq!(keys.get(key), Some(&value), "{key}");
    }
    assert!(!keys.contains_key("general.dataset.1.description"));
    // llama.cpp changes special tokens of models with such a name.
    let phi = Facts { name: "My-Phi-3".to_owned(), ..Facts::default() };
    assert!(!Parts::new(&llama()).keys(&phi).contains_key("general.name"));
}

#[test]
fn scalings_of_the_rotation_are_keys_or_divisors() {
    let scaled = |scaling, keys: recipe::Model| recipe::Model {
        rope_scaling: scaling,
        rope_factor: Some(8.0),
        rope_original_context: Some(64),
        ..keys
    };
    let number = |value| Some(Value::F32(value));
    let found = Parts::new(&scaled(RopeScaling::Linear, llama())).keys(&Facts::default());
    assert_eq!(found.get("llama.rope.scaling.type"), Some(&Value::Text("linear".to_owned())));
    assert_eq!(found.get("llama.rope.scaling.factor").cloned(), number(8.0));
    let found = Parts::new(&scaled(RopeScaling::Yarn, keys())).keys(&Facts::default());
    assert_eq!(found.get("qwen3.rope.scaling.type"), Some(&Value::Text("yarn".to_owned())));
    assert_eq!(found.get("qwen3.rope.scaling.original_context_length"), Some(&Value::U32(64)));
    assert_eq!(found.get("qwen3.rope.scaling.yarn_beta_fast").cloned(), number(32.0));

    // By the definition of Llama 3.1: frequencies of short waves stay, those of long ones are divided.
    let wide = recipe::Model { head_dim: Some(16), ..scaled(RopeScaling::Llama3, llama()) };
    let parts = Parts::new(&wide);
    let divisors = numbers(&parts.tensors(Element::F16), "rope_freqs.weight");
    assert_eq!(listed(&parts.tensors(Element::F16))[0], "rope_freqs.weight [8]*");
    let (low, high) = (parts.export.model.rope.low_freq_factor, parts.export.model.rope.high_freq_factor);
    for (pair, divisor) in divisors.into_iter().enumerate() {
        let wave = std::f64::consts::TAU * 12345f64.powf(pair as f64 / 8.0);
        let smooth = (64.0 / wave - low) / (high - low);
        let expected = match wave {
            wave if wave < 64.0 / high => 1.0,
            wave if wave > 64.0 / low => 8.0,
            _ => 1.0 / ((1.0 - smooth) / 8.0 + smooth),
        };
        assert!((f64::from(divisor) / expected - 1.0).abs() < 1e-6, "{pair}: {divisor} {expected}");
    }
}

#[test]
fn what_llama_cpp_computes_differently_is_refused_by_name() {
    let nanochat = recipe::Model {
        norm_weight: false,
        embedding_norm: true,
        qk_norm_place: crate::policy::QkNormPlace::AfterRope,
        qk_norm_weight: false,
        rope_direction: RopeDirection::Negative,
        activation: Activation::Relu2.into(),
        ..keys()
    };
    let geglu = Activation::Geglu.into();
    let (scaling, rope_factor, rope_original_context) = (RopeScaling::Llama3, Some(8.0), Some(64));
    let scaled = recipe::Model { rope_scaling: scaling, rope_factor, rope_original_context, ..keys() };
    let yarn = |attention_factor| recipe::Model {
        rope_scaling: RopeScaling::Yarn,
        rope_attention_factor: Some(attention_factor),
        ..scaled.clone()
    };
    Parts::new(&yarn(0.1 * 8f64.ln() + 1.0));
    let own_factor = yarn(1.5);
    for (keys, says) in [
        (nanochat, "this model is a NanoChatForCausalLM, which has no architecture in llama.cpp"),
        (
            recipe::Model { activation: geglu, ..llama() },
            "llama cannot express this model: model.activation is \"geglu\"",
        ),
        (
            recipe::Model { activation: Activation::Gelu.into(), ..gpt2() },
            "is \"gelu\", but it has \"gelu_tanh\"",
        ),
        (recipe::Model { window: Some(3), ..keys() }, "model.window is 3"),
        (scaled, "model.rope_scaling is \"llama3\", which it has not"),
        (own_factor, "model.rope_attention_factor is 1.5, but it has 1.207944"),
    ] {
        let export = export(&keys);
        let hf = hf_export::expressed(&export, &Numbered::new(&export)).unwrap();
        let error = Architecture::new(&hf, &export.model).unwrap_err();
        assert!(error.message().contains(says), "{says}: {error}");
        assert!(error.message().ends_with("Export a folder with --format hf"), "{error}");
    }
    let no_class = export(&recipe::Model { parallel_blocks: true, ..llama() });
    let error = hf_export::expressed(&no_class, &Numbered::new(&export(&llama()))).unwrap_err();
    assert!(error.message().contains("model.parallel_blocks is true"), "{error}");
}

#[test]
fn a_file_replaces_a_file_and_a_failure_leaves_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    let parts = Parts::new(&llama());
    let write = |export: &Export| super::write(&path, export, &Facts::default(), &parts.weights, &bytes());
    assert_eq!(write(&parts.export).unwrap(), [""; 0]);
    let first = std::fs::read(&path).unwrap();
    write(&parts.export).unwrap();
    assert!(std::fs::read(&path).unwrap() == first, "the same model gives the same bytes");
    let halves = Export { dtype: Dtype::F16, ..parts.export.clone() };
    assert!(write(&halves).is_ok());
    struct Large<'a>(&'a Numbered);
    impl Weights for Large<'_> {
        fn names(&self) -> Vec<String> {
            self.0.names()
        }

        fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
            let mut bytes = self.0.read(name, shape)?;
            if name == "blocks.1.down" {
                bytes[4..8].copy_from_slice(&70_000f32.to_le_bytes());
            }
            Ok(bytes)
        }
    }
    let before = std::fs::read(&path).unwrap();
    let error =
        super::write(&path, &halves, &Facts::default(), &Large(&parts.weights), &bytes()).unwrap_err();
    let says = "tensor blk.1.ffn_down.weight: element 1 is 70000, and fp16 ends at 65504";
    assert!(error.message().starts_with(says) && error.kind() == ErrorKind::Usage, "{error}");
    assert!(std::fs::read(&path).unwrap() == before && std::fs::read_dir(dir.path()).unwrap().count() == 1);
}
