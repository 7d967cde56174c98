//! Finds the class of a model or a configuration.

use super::class::{Class, config_json};
use super::fields::is_harmless;
use super::gpt2::Gpt2;
use super::keys::Keys;
use super::lacks::UnsupportedKeys;
use super::llama::Llama;
use super::nanochat::NanoChat;
use super::qwen3::Qwen3;
use super::resolve::{is_read, resolve};
use super::rope;
use super::tensor::{HfFacts, HfModel};
use crate::error::{Error, Result};
use crate::hugging_face::Config;
use crate::plan::Model;
use serde_json::Value;

/// The classes. A model that several of them can express gets the first.
pub(super) static CLASSES: [&dyn Class; 4] = [&Qwen3, &Llama, &Gpt2, &NanoChat];

/// Returns the model in the form of the first class that can express it.
///
/// # Errors
/// If no class can express it, with the unsupported keys of each class; or if products of sizes overflow.
pub fn express(m: &Model, facts: &HfFacts) -> Result<HfModel> {
    let class = class_of(m)?;
    Ok(HfModel { class: class.name(), config: config_json(class, m, facts), tensors: class.tensors(m) })
}

/// Returns the first class that can express a model.
///
/// # Errors
/// If none can, with the unsupported keys of each class; or if products of sizes overflow.
pub(super) fn class_of(m: &Model) -> Result<&'static dyn Class> {
    if m.definition.is_some() {
        return Err(Error::usage(
            "a model with a text of its own (model.definition) has no class in HuggingFace's transformers; models that \
             the other keys of [model] describe can be exported",
        ));
    }
    check_sizes(m)?;
    let mut refusals = Vec::new();
    for class in CLASSES {
        let UnsupportedKeys(lacks) = class.unsupported_keys(m);
        if lacks.is_empty() {
            return Ok(class);
        }
        refusals.push(format!("\n  {}: {}", class.name(), lacks.join("; ")));
    }
    Err(Error::usage(format!(
        "no class of HuggingFace's transformers that xrun knows can express this model, so it cannot be loaded there:{}\ntrain \
         with keys that one of them supports to export",
        refusals.concat()
    )))
}

/// Returns the class of a configuration.
///
/// # Errors
/// With a usage error for other classes, for quantized weights, and for models defined by code in their
/// folder.
pub(super) fn class_for(config: &Config) -> Result<&'static dyn Class> {
    for (key, reason) in [
        (
            "quantization_config",
            "xrun reads only fp32, bf16 and fp16 weights; use the folder before quantization",
        ),
        ("auto_map", "code of a folder is not run; use a folder whose class is part of transformers"),
    ] {
        if config.get(key).is_some() {
            return Err(config.refuse(key, reason));
        }
    }
    let kind = config.word("model_type", None)?;
    let names = || CLASSES.map(|class| class.name()).join(", ");
    let Some(class) = CLASSES.into_iter().find(|class| class.model_type() == kind) else {
        return Err(config.refuse("model_type", &format!("xrun has models of {}", names())));
    };
    let known = |name: &str| name == class.name() || name == class.bare_name();
    let fits = match config.get("architectures") {
        None => true,
        Some(Value::String(name)) => known(name),
        Some(_) => config
            .words("architectures")?
            .is_none_or(|names| names.is_empty() || names.iter().any(|name| known(name))),
    };
    if fits {
        return Ok(class);
    }
    let instead = format!("for {kind} xrun has {} and {}", class.name(), class.bare_name());
    Err(config.refuse("architectures", &instead))
}

/// Translates a configuration into recipe keys.
///
/// # Errors
/// With a usage error that names a configuration key for which xrun has no model.
pub fn keys(config: &Config) -> Result<Keys> {
    let class = class_for(config)?;
    class.keys(&resolve(class, config)?)
}

/// Leaves a key out of a configuration, or `TABLE.KEY` of a table in it.
///
/// # Errors
/// With a usage error if there is no such key, or if its effect is known.
pub fn ignore(config: &mut Config, path: &str) -> Result<()> {
    let class = class_for(config)?;
    let wrong = |text: &str| Error::usage(format!("--ignore {path}: {text}"));
    let known = match path.split_once('.') {
        Some((_, key)) if !config.has(path) => rope::is_known(key),
        _ => is_harmless(path) || is_read(class, path),
    };
    if known {
        return Err(wrong("xrun knows what this key means, so it is not left out; change it in the file"));
    }
    match config.remove(path) {
        Some(_) => Ok(()),
        None => Err(wrong(&format!("{} has no such key", config.place()))),
    }
}

/// Rejects sizes whose products overflow.
fn check_sizes(m: &Model) -> Result<()> {
    let heads = m.n_kv_heads.checked_mul(2).and_then(|kv| kv.checked_add(m.n_heads));
    let elements = [
        heads.and_then(|h| h.checked_mul(m.head_dim)).and_then(|rows| rows.checked_mul(m.dim)),
        m.vocab_size.checked_mul(m.dim),
        m.learned_positions.checked_mul(m.dim),
        m.ffn_dim.checked_mul(2).and_then(|rows| rows.checked_mul(m.dim)),
    ];
    if elements.iter().any(|n| n.and_then(|n| n.checked_mul(4)).is_none()) {
        return Err(Error::usage("the model's sizes are too large to address"));
    }
    Ok(())
}
