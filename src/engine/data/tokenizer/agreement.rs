//! Checks that the files beside a tokenizer.json describe the same tokenizer. transformers changes what the
//! tokenizer.json says by them: it adds tokens that they name, and gives tokens their flags.

use super::guarded::GuardedTokenizer;
use super::special::{ADDED_TOKENS, DECODER, FURTHER, SETTINGS, Settings, token_text};
use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// How to make files agree.
const WAY_ON: &str = "the files are of different tokenizers: write all of them anew with transformers, \
                      `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)`, or correct the one that is wrong";

/// Refuses settings that name tokens without an entry, give a token other flags than the tokenizer.json, or
/// say otherwise whether a text begins with a space. `end` is the id of the end token, which is special
/// whatever its flags are.
///
/// # Errors
/// The usage error names the file, the token and both values.
pub(super) fn check(settings: &Settings, json: &str, tokenizer: &GuardedTokenizer, end: u32) -> Result<()> {
    let listed = settings.fields.get(DECODER).and_then(Value::as_object);
    let further = FURTHER.iter().filter_map(|key| settings.fields.get(*key).map(|tokens| (*key, tokens)));
    let further = further.flat_map(|(key, tokens)| named(tokens).map(move |name| (key, name)));
    let in_settings =
        listed.into_iter().flatten().filter_map(|(_, token)| Some((DECODER, token_text(token)?)));
    let in_file = settings.added.keys().map(|name| (ADDED_TOKENS, name.clone()));
    for (place, name) in in_settings.chain(further).chain(in_file) {
        if tokenizer.token_to_id(&name).is_none() {
            let place =
                if place == ADDED_TOKENS { place.to_owned() } else { format!("{place} in {SETTINGS}") };
            return Err(Error::usage(format!(
                "it has no entry {name:?}, though {place} names it, and transformers adds it; {WAY_ON}"
            )));
        }
    }
    if let Some(listed) = listed {
        check_flags(listed, tokenizer, end)?;
    }
    check_prefix_space(&settings.fields, json)
}

/// Returns the texts of tokens in a list or in an object.
fn named(tokens: &Value) -> Box<dyn Iterator<Item = String> + '_> {
    match tokens {
        Value::Array(tokens) => Box::new(tokens.iter().filter_map(token_text)),
        Value::Object(tokens) => Box::new(tokens.values().filter_map(token_text)),
        _ => Box::new(std::iter::empty()),
    }
}

/// Refuses flags of added tokens that differ: they decide where a token is found in a text.
fn check_flags(listed: &Map<String, Value>, tokenizer: &GuardedTokenizer, end: u32) -> Result<()> {
    let added = tokenizer.added_tokens()?;
    for token in listed.values() {
        let Some(name) = token_text(token) else { continue };
        let Some((id, own)) = added.iter().find(|(_, own)| own.content == name) else { continue };
        let flags = [
            ("lstrip", own.lstrip),
            ("rstrip", own.rstrip),
            ("single_word", own.single_word),
            ("normalized", own.normalized),
            ("special", own.special || *id == end),
        ];
        for (flag, own) in flags {
            let theirs = token[flag].as_bool().map(|theirs| theirs || flag == "special" && *id == end);
            if theirs.is_some_and(|theirs| theirs != own) {
                return Err(Error::usage(format!(
                    "{flag} of token {name:?} is {own} in it and {} in {SETTINGS}; {WAY_ON}",
                    !own
                )));
            }
        }
    }
    Ok(())
}

/// Refuses an `add_prefix_space` that differs from the one of a byte-level pre-tokenizer.
fn check_prefix_space(settings: &Map<String, Value>, json: &str) -> Result<()> {
    const KEY: &str = "add_prefix_space";
    #[derive(serde::Deserialize)]
    struct Parts {
        #[serde(default)]
        pre_tokenizer: Value,
    }
    let Some(theirs) = settings.get(KEY).and_then(Value::as_bool) else { return Ok(()) };
    let Ok(Parts { pre_tokenizer }) = serde_json::from_str::<Parts>(json) else { return Ok(()) };
    let parts = pre_tokenizer["pretokenizers"].as_array();
    let mut parts = parts.into_iter().flatten().chain(std::iter::once(&pre_tokenizer));
    let own = parts.find(|part| part["type"] == "ByteLevel").and_then(|part| part[KEY].as_bool());
    match own {
        Some(own) if own != theirs => Err(Error::usage(format!(
            "{KEY} of its pre-tokenizer is {own}, but {KEY} in {SETTINGS} is {theirs}, so texts would begin \
             differently; {WAY_ON}"
        ))),
        _ => Ok(()),
    }
}
