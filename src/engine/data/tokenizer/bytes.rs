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
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

/// The bytes of text behind each token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenBytes {
    /// By token id.
    pub counts: Vec<u32>,
    /// True if every byte has an entry. Otherwise a byte without one is behind no token.
    pub is_complete: bool,
}

/// Returns the number of text bytes of every token, for a byte-level BPE whose tokens keep the bytes that
/// they stand for. Such a tokenizer has no normalizer, adds no space before words and removes nothing.
/// Special tokens, the end token and the unknown token are not text and count 0. Returns `None` for other
/// tokenizers: their tokens may stand for different bytes in different places. `ids` is the number of token
/// ids.
pub(super) fn token_bytes(
    json: &str,
    vocab: &HashMap<String, u32>,
    ids: usize,
    end: u32,
) -> Option<TokenBytes> {
    let parts: Parts = serde_json::from_str(json).ok()?;
    let is_kind = |value: &Value, kind: &str| value["type"] == kind;
    let affixes = [&parts.model.continuing_subword_prefix, &parts.model.end_of_word_suffix];
    let is_plain = parts.model.kind == "BPE"
        && affixes.into_iter().flatten().all(String::is_empty)
        && parts.normalizer.is_null()
        && is_kind(&parts.decoder, "ByteLevel")
        && keeps_bytes(&parts.pre_tokenizer)
        && parts.added_tokens.iter().all(|token| token.special || !(token.lstrip || token.rstrip));
    if !is_plain {
        return None;
    }
    let mut counts = vec![0; ids];
    for (entry, &id) in vocab {
        // Each character of an entry represents one byte.
        *counts.get_mut(id as usize)? = entry.chars().count() as u32;
    }
    for token in &parts.added_tokens {
        let text = if token.special { 0 } else { token.content.len() as u32 };
        *counts.get_mut(token.id as usize)? = text;
    }
    let unknown = parts.model.unk_token.as_ref().and_then(|name| vocab.get(name));
    for id in unknown.into_iter().chain([&end]) {
        *counts.get_mut(*id as usize)? = 0;
    }
    let is_complete = byte_chars().iter().all(|c| vocab.contains_key(c.encode_utf8(&mut [0; 4]) as &str));
    Some(TokenBytes { counts, is_complete })
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
