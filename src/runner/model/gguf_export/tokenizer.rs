//! A tokenizer in llama.cpp's form: entries by id with their types, merges, and the name of what splits text.

use super::pre_tokenizer;
use crate::data::tokenizer::{GuardedTokenizer, byte_chars};
use crate::error::{Error, Result};
use crate::model::hf_export::Export;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// An entry that text is merged into.
const NORMAL: i32 = 1;
/// A special token, which text becomes only if the caller asks for it.
const CONTROL: i32 = 3;
/// An added token, which text becomes before it is split.
const USER_DEFINED: i32 = 4;
/// A row without an entry.
const UNUSED: i32 = 5;

/// A tokenizer in llama.cpp's form.
#[derive(Debug, PartialEq)]
pub(super) struct Tokenizer {
    /// The name of what splits text.
    pub pre: &'static str,
    /// The entries, one for each row of the embedding.
    pub tokens: Vec<String>,
    /// Their types.
    pub types: Vec<i32>,
    /// The merges by rank, each as two entries with a space between.
    pub merges: Vec<String>,
    /// What llama.cpp does differently.
    pub remarks: Vec<String>,
}

impl Tokenizer {
    /// Translates a tokenizer.json. Rows of the embedding without an entry become entries of their own that
    /// no text has, named as llama.cpp's converter names them.
    ///
    /// # Errors
    /// A usage error that says what llama.cpp cannot express.
    pub fn new(export: &Export, json: &str) -> Result<Self> {
        let document: Value =
            serde_json::from_str(json).map_err(|e| Error::usage(format!("tokenizer.json is wrong: {e}")))?;
        let parsed = GuardedTokenizer::parse(json).map_err(|e| e.context("tokenizer.json is wrong"))?;
        let model = &document["model"];
        check_kind(&document)?;
        let vocab: BTreeMap<u32, String> =
            parsed.vocab()?.into_iter().map(|(token, id)| (id, token)).collect();
        let alphabet: BTreeSet<char> = byte_chars().into_iter().collect();
        check_bytes(&vocab, model)?;
        let merges = merges(&model["merges"])?;
        let ignore_merges = model["ignore_merges"] == true;
        let pre = pre_tokenizer::name(&document["pre_tokenizer"], ignore_merges, !merges.is_empty())?;

        let added = parsed.added_tokens()?;
        let special = |id: u32| id == export.end_token_id || export.begin_token_id() == Some(id);
        let mut tokens = Vec::with_capacity(export.model.vocab_size);
        let mut types = Vec::with_capacity(export.model.vocab_size);
        for id in (0..export.model.vocab_size).map(|id| id as u32) {
            let (token, kind) = match (vocab.get(&id), added.get(&id)) {
                (None, _) => (format!("[PAD{id}]"), UNUSED),
                (Some(token), Some(added)) => {
                    if added.lstrip || added.rstrip || added.single_word {
                        return Err(refused(&format!(
                            "the added token {token:?} takes white space beside it, or only whole words \
                             (lstrip, rstrip, single_word)"
                        )));
                    }
                    let kind = if added.special || special(id) { CONTROL } else { USER_DEFINED };
                    (token.clone(), kind)
                }
                (Some(token), None) if special(id) => (token.clone(), CONTROL),
                (Some(token), None) => {
                    if !token.chars().all(|c| alphabet.contains(&c)) {
                        return Err(refused(&format!(
                            "the entry {token:?} is not written in characters of bytes"
                        )));
                    }
                    (token.clone(), NORMAL)
                }
            };
            tokens.push(token);
            types.push(kind);
        }
        check_names(&tokens)?;
        check_overlaps(&tokens, &types)?;
        let remarks = normalization(&document["normalizer"])?.into_iter().collect();
        Ok(Self { pre, tokens, types, merges, remarks })
    }
}

fn refused(what: &str) -> Error {
    Error::usage(format!(
        "llama.cpp cannot express this tokenizer exactly: {what}. Export a folder with --format hf"
    ))
}

/// Rejects tokenizers other than byte-level BPE.
fn check_kind(document: &Value) -> Result<()> {
    let model = &document["model"];
    let kind = model["type"].as_str().unwrap_or("BPE");
    if kind != "BPE" || !model["merges"].is_array() {
        return Err(refused(&format!("its model is {kind}, and xrun writes byte-level BPE")));
    }
    if document["decoder"]["type"] != "ByteLevel" {
        return Err(refused(&format!("its decoder is {}, not ByteLevel", document["decoder"]["type"])));
    }
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[key].as_str().is_some_and(|text| !text.is_empty()) {
            return Err(refused(&format!("its {key} is {}", model[key])));
        }
    }
    match model["byte_fallback"] == true {
        true => Err(refused("its byte_fallback is true")),
        false => Ok(()),
    }
}

/// Rejects a tokenizer whose unknown token may stand for a byte, which llama.cpp leaves out.
fn check_bytes(vocab: &BTreeMap<u32, String>, model: &Value) -> Result<()> {
    let entries: HashSet<&str> = vocab.values().map(String::as_str).collect();
    let missing = byte_chars().iter().position(|c| !entries.contains(c.to_string().as_str()));
    match missing.filter(|_| !model["unk_token"].is_null()) {
        Some(byte) => Err(refused(&format!(
            "it has no entry for the byte {byte:#04x}, which becomes {}",
            model["unk_token"]
        ))),
        None => Ok(()),
    }
}

/// Returns the merges, each as two entries with a space between.
fn merges(merges: &Value) -> Result<Vec<String>> {
    let mut seen = HashSet::new();
    let merge = |merge: &Value| {
        let joined = match (merge.as_str(), merge.as_array().map(Vec::as_slice)) {
            (Some(both), _) => Some(both.to_owned()),
            (None, Some([Value::String(left), Value::String(right)])) => Some(format!("{left} {right}")),
            _ => None,
        };
        // Neither part can have a space, because the characters of bytes have none.
        let joined = joined.filter(|both| both.matches(' ').count() == 1);
        let joined = joined.ok_or_else(|| refused(&format!("the merge {merge} is not of two entries")))?;
        match seen.insert(joined.clone()) {
            true => Ok(joined),
            false => Err(refused(&format!("the merge {merge} is there twice"))),
        }
    };
    merges.as_array().into_iter().flatten().map(merge).collect()
}

/// Rejects entries without a name, and two with one name, at which llama.cpp refuses a file.
fn check_names(tokens: &[String]) -> Result<()> {
    let mut seen = HashSet::new();
    match tokens.iter().find(|token| token.is_empty() || !seen.insert(token.as_str())) {
        Some(token) => Err(refused(&format!("two entries are {token:?}, or one has no name"))),
        None => Ok(()),
    }
}

/// Rejects added tokens that text may hold in two ways. The library takes the first one in a text, and
/// llama.cpp the longest.
fn check_overlaps(tokens: &[String], types: &[i32]) -> Result<()> {
    let of = |wanted: &'static [i32]| {
        tokens
            .iter()
            .zip(types)
            .filter(move |(_, kind)| wanted.contains(kind))
            .map(|(token, _)| token.as_str())
    };
    // Others are found in a text only if the caller asks for it.
    for first in of(&[USER_DEFINED]) {
        for second in of(&[USER_DEFINED]).filter(|second| second.len() >= first.len() && *second != first) {
            let inside = |at: usize| first.get(at..).is_some_and(|end| second.starts_with(end));
            // Of a run of one character, both take the longest token first.
            let is_run = first.chars().chain(second.chars()).all(|c| first.starts_with(c));
            if (1..first.len()).any(inside) && !is_run {
                return Err(refused(&format!(
                    "the added token {second:?} can begin inside of {first:?}, and llama.cpp looks for the longer one \
                     first"
                )));
            }
        }
    }
    Ok(())
}

/// Returns what llama.cpp leaves out of a normalizer. NFC is so common that files without it are of use.
///
/// # Errors
/// A usage error for any other normalizer.
fn normalization(normalizer: &Value) -> Result<Option<String>> {
    let parts = match normalizer["normalizers"].as_array() {
        Some(parts) => parts.as_slice(),
        None if normalizer.is_null() => &[],
        None => std::slice::from_ref(normalizer),
    };
    if let Some(other) = parts.iter().find(|part| part["type"] != "NFC") {
        return Err(refused(&format!("its normalizer is {}", other["type"])));
    }
    Ok((!parts.is_empty()).then(|| {
        "llama.cpp leaves out the tokenizer's normalization to NFC: text in another form becomes other tokens \
         there"
            .to_owned()
    }))
}
