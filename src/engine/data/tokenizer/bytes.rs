//! The bytes of text behind each token, for tokenizers whose tokens always stand for the same bytes.

use super::builtin::byte_chars;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;

/// The parts of a tokenizer.json that decide whether tokens stand for fixed bytes.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    model: Model,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: String,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

/// Returns the number of text bytes of every token, by id, for a byte-level BPE that keeps each byte of a
/// text. Such a tokenizer has no normalizer, adds no space before words, removes nothing, and has an entry
/// for every byte. Special tokens, including the end token, are not text and count 0. Returns `None` for
/// other tokenizers: their tokens may stand for different bytes in different places.
pub(super) fn token_byte_counts(json: &str, vocab: &HashMap<String, u32>) -> Option<Vec<u32>> {
    let parts: Parts = serde_json::from_str(json).ok()?;
    let is_kind = |value: &Value, kind: &str| value["type"] == kind;
    let affixes = [&parts.model.continuing_subword_prefix, &parts.model.end_of_word_suffix];
    let is_plain = parts.model.kind == "BPE"
        && affixes.into_iter().flatten().all(String::is_empty)
        && parts.normalizer.is_null()
        && is_kind(&parts.decoder, "ByteLevel")
        && keeps_bytes(&parts.pre_tokenizer)
        && parts.added_tokens.iter().all(|token| token.special || !(token.lstrip || token.rstrip));
    let chars = byte_chars();
    if !is_plain || chars.iter().any(|c| !vocab.contains_key(c.encode_utf8(&mut [0; 4]) as &str)) {
        return None;
    }
    let mut bytes = vec![0; vocab.len()];
    for (entry, &id) in vocab {
        // Each character of an entry represents one byte.
        *bytes.get_mut(id as usize)? = entry.chars().count() as u32;
    }
    for token in &parts.added_tokens {
        let text = if token.special { 0 } else { token.content.len() as u32 };
        *bytes.get_mut(token.id as usize)? = text;
    }
    Some(bytes)
}

/// Returns true if a pre-tokenizer maps text to the byte level and neither adds nor removes anything.
fn keeps_bytes(pre_tokenizer: &Value) -> bool {
    let one = |part: &Value| match part["type"].as_str() {
        Some("ByteLevel") => part["add_prefix_space"] == false,
        Some("Split" | "Punctuation") => part["behavior"] != "Removed",
        Some("Digits") => true,
        _ => false,
    };
    let parts = match &pre_tokenizer["pretokenizers"] {
        Value::Array(parts) => parts.as_slice(),
        _ => std::slice::from_ref(pre_tokenizer),
    };
    parts.iter().all(one) && parts.iter().filter(|part| part["type"] == "ByteLevel").count() == 1
}
