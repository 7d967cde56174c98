//! The keys of a file.

use super::architecture::Architecture;
use super::ends::Ends;
use super::facts::Facts;
use super::rope;
use super::tokenizer::Tokenizer;
use crate::error::Result;
use crate::gguf::Value;
use crate::model::hf_export::{Dtype, Export};
use crate::model::hugging_face::HfModel;

/// Names for which llama.cpp changes special tokens, because models of these names need it.
const CHANGING: [&str; 3] = ["phi-3", "phi3", "modern-bert"];

/// Returns the keys of a file, in order.
///
/// # Errors
/// If the configuration that the run began with is not JSON.
pub(super) fn metadata(
    export: &Export,
    facts: &Facts,
    architecture: Architecture,
    hf: &HfModel,
    tokenizer: &Tokenizer,
    ends: &Ends,
) -> Result<Vec<(String, Value)>> {
    let mut keys = general(export, facts, architecture);
    let sizes = sizes(export, architecture, context(export, hf)?);
    let rotation = if architecture == Architecture::Gpt2 { vec![] } else { rope::keys(&export.model) };
    let own = sizes.into_iter().chain(rotation);
    keys.extend(own.map(|(key, value)| (format!("{}.{key}", architecture.name()), value)));
    keys.extend(tokens(tokenizer, ends).map(|(key, value)| (key.to_owned(), value)));
    let template = facts.chat_template.clone().map(Value::Text);
    keys.extend(template.map(|template| ("tokenizer.chat_template".to_owned(), template)));
    Ok(keys)
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn count(count: usize) -> Value {
    // Sizes that fit in memory fit in 32 bits; `express` has rejected others.
    Value::U32(u32::try_from(count).unwrap_or(u32::MAX))
}

fn general(export: &Export, facts: &Facts, architecture: Architecture) -> Vec<(String, Value)> {
    // `enum llama_ftype`.
    let file_type = match export.dtype {
        Dtype::F32 => 0,
        Dtype::F16 => 1,
        Dtype::Bf16 => 32,
    };
    let mut keys = vec![
        ("general.architecture".to_owned(), text(architecture.name())),
        ("general.type".to_owned(), text("model")),
        ("general.file_type".to_owned(), Value::U32(file_type)),
        // `GGML_QNT_VERSION`.
        ("general.quantization_version".to_owned(), Value::U32(2)),
    ];
    let lower = facts.name.to_lowercase();
    if !facts.name.is_empty() && !CHANGING.iter().any(|name| lower.contains(name)) {
        keys.push(("general.name".to_owned(), text(&facts.name)));
    }
    if !facts.texts.is_empty() {
        keys.push(("general.dataset.count".to_owned(), count(facts.texts.len())));
    }
    for (i, (name, card)) in facts.texts.iter().enumerate() {
        keys.push((format!("general.dataset.{i}.name"), text(name)));
        keys.extend(card.iter().map(|card| (format!("general.dataset.{i}.description"), text(card))));
    }
    keys
}

/// Returns the context of the model in tokens, as an exported configuration has it: training on shorter
/// sequences does not shorten the context of a model that came in.
fn context(export: &Export, hf: &HfModel) -> Result<usize> {
    let config = export.companions.restore(hf.config.clone())?;
    let found = ["max_position_embeddings", "n_positions"].iter().find_map(|key| config[key].as_u64());
    Ok(found.map_or(export.seq_len, |tokens| tokens as usize))
}

/// Returns the sizes of the model, without the prefix of the architecture.
fn sizes(export: &Export, architecture: Architecture, context: usize) -> Vec<(&'static str, Value)> {
    let m = &export.model;
    let eps = match architecture {
        Architecture::Llama | Architecture::Qwen3 => "attention.layer_norm_rms_epsilon",
        Architecture::Gpt2 => "attention.layer_norm_epsilon",
    };
    vec![
        ("block_count", count(m.n_layers)),
        ("context_length", count(context)),
        ("embedding_length", count(m.dim)),
        ("feed_forward_length", count(m.ffn_dim)),
        ("attention.head_count", count(m.n_heads)),
        ("attention.head_count_kv", count(m.n_kv_heads)),
        ("attention.key_length", count(m.head_dim)),
        ("attention.value_length", count(m.head_dim)),
        (eps, Value::F32(m.norm_eps as f32)),
        ("vocab_size", count(m.vocab_size)),
    ]
}

fn tokens(tokenizer: &Tokenizer, ends: &Ends) -> impl Iterator<Item = (&'static str, Value)> {
    let id = |(key, id): &(&'static str, u32)| (*key, Value::U32(*id));
    let mut keys = vec![
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text(tokenizer.pre)),
        ("tokenizer.ggml.tokens", Value::Texts(tokenizer.tokens.clone())),
        ("tokenizer.ggml.token_type", Value::I32s(tokenizer.types.clone())),
        ("tokenizer.ggml.merges", Value::Texts(tokenizer.merges.clone())),
        ("tokenizer.ggml.bos_token_id", Value::U32(ends.bos)),
        ("tokenizer.ggml.eos_token_id", Value::U32(ends.eos)),
    ];
    keys.extend(ends.turns.iter().chain(&ends.others).map(id));
    keys.push(("tokenizer.ggml.add_bos_token", Value::Bool(ends.add_bos)));
    keys.push(("tokenizer.ggml.add_eos_token", Value::Bool(false)));
    keys.into_iter()
}
