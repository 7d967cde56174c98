//! The special tokens of a tokenizer: which token ends a document, and which one a text begins with. A
//! tokenizer.json does not say which token ends a document. Files beside it do, so both are stored, hashed
//! and compared together.

use crate::data::END_OF_TEXT;
use crate::error::{Error, Result};
use crate::regular;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The settings of a tokenizer, which name its special tokens. They are stored beside every tokenizer.json.
pub const SETTINGS: &str = "tokenizer_config.json";

/// Names special tokens. Has precedence over [`SETTINGS`] without a list of added tokens, as in transformers.
pub const TOKEN_MAP: &str = "special_tokens_map.json";

/// Names added tokens with their ids, beside [`SETTINGS`] without a list of them.
pub const ADDED_TOKENS: &str = "added_tokens.json";

/// Largest file of settings that is read. Settings with long lists of added tokens stay below 4 MiB.
pub const MAX_SETTINGS_BYTES: u64 = 16 << 20;

/// The key of the tokens that settings list with their ids and flags.
pub(super) const DECODER: &str = "added_tokens_decoder";

/// Keys of further special tokens: a list of tokens, or an object of them.
pub(super) const FURTHER: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The key of the end token in both files.
const EOS: &str = "eos_token";

/// Common names of end tokens, tried in order if no file beside the tokenizer.json names one.
pub(super) const END_TOKENS: [&str; 7] =
    [END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<|im_end|>"];

/// What a text begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// The end token, which separates the documents of a stream.
    #[default]
    End,
    /// A token of its own, which stands before every document.
    Token(u32),
    /// Nothing: a prompt begins with its own first token. In a stream the end token separates documents.
    Nothing,
}

/// What the files beside a tokenizer.json say.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    /// The text of [`SETTINGS`], if the file exists.
    text: Option<String>,
    /// The fields of [`SETTINGS`] with the special tokens of [`TOKEN_MAP`].
    pub fields: Map<String, Value>,
    /// The entries of [`ADDED_TOKENS`], if they count.
    pub added: Map<String, Value>,
    /// The file that names the end token.
    named_by: &'static str,
}

impl Settings {
    /// Reads the settings beside a tokenizer.json.
    ///
    /// # Errors
    /// If a file cannot be read, is too large, or is not a JSON object.
    pub fn beside(tokenizer: &Path) -> Result<Self> {
        let read = |name: &str| read(&tokenizer.with_file_name(name));
        let text = read(SETTINGS)?;
        let (fields, named_by) = merged(text.as_deref(), read(TOKEN_MAP)?.as_deref())?;
        let added = match read(ADDED_TOKENS)? {
            Some(text) if !fields.contains_key(DECODER) => {
                object(&text).map_err(|e| e.context(ADDED_TOKENS))?
            }
            _ => Map::new(),
        };
        Ok(Self { text, fields, added, named_by })
    }

    /// Returns the name of the end token; `None` if no file names one.
    ///
    /// # Errors
    /// If it is neither text nor an object with `content`.
    pub fn end(&self) -> Result<Option<(String, &'static str)>> {
        let Some(value) = self.fields.get(EOS).filter(|value| !value.is_null()) else { return Ok(None) };
        match token_text(value) {
            Some(name) => Ok(Some((name, self.named_by))),
            None => Err(Error::usage(format!(
                "{EOS:?} in {} is neither text nor an object with \"content\"; name one token there",
                self.named_by
            ))),
        }
    }

    /// Returns the settings to store: as they were read, if they name this end token, or with its name added.
    pub fn with_end(&self, end: &str) -> String {
        if let Some(text) = &self.text
            && self.named_by == SETTINGS
            && self.fields.get(EOS).and_then(token_text).as_deref() == Some(end)
        {
            return text.clone();
        }
        let mut fields = self.fields.clone();
        if fields.is_empty() {
            // Documents open with the end token, so texts begin with it.
            fields.insert("bos_token".to_owned(), end.into());
            fields.insert("add_bos_token".to_owned(), true.into());
        }
        fields.insert(EOS.to_owned(), end.into());
        format!("{:#}\n", Value::Object(fields))
    }
}

/// Returns the settings of a tokenizer that has no others, which name its end token.
pub fn settings_with_end(end: &str) -> String {
    Settings::default().with_end(end)
}

/// Returns the fields of [`SETTINGS`] with the special tokens of [`TOKEN_MAP`], whose texts are given, and
/// the file that names the end token. As in transformers, settings that list their added tokens have
/// precedence, and otherwise the map has.
///
/// # Errors
/// If a text is not a JSON object.
fn merged(settings: Option<&str>, map: Option<&str>) -> Result<(Map<String, Value>, &'static str)> {
    let parsed = |text: Option<&str>, name: &'static str| match text {
        Some(text) => object(text).map_err(|e| e.context(name)),
        None => Ok(Map::new()),
    };
    let (mut fields, map) = (parsed(settings, SETTINGS)?, parsed(map, TOKEN_MAP)?);
    let lists_tokens = fields.contains_key(DECODER);
    let mut named_by = SETTINGS;
    for (key, value) in map {
        let own = fields.get(&key).filter(|own| !own.is_null());
        let is_same = |own: &Value| token_text(own).is_some() && token_text(own) == token_text(&value);
        let is_kept = own.is_some_and(|own| lists_tokens || is_same(own));
        let is_named = key.ends_with("_token") || FURTHER.contains(&key.as_str());
        if is_named && !value.is_null() && !is_kept {
            if key == EOS {
                named_by = TOKEN_MAP;
            }
            fields.insert(key, value);
        }
    }
    Ok((fields, named_by))
}

/// Returns the special tokens by the names that chat templates have for them, such as `bos_token`, from the
/// texts of [`SETTINGS`] and [`TOKEN_MAP`].
///
/// # Errors
/// If a text is not a JSON object.
pub fn special_tokens(settings: Option<&str>, map: Option<&str>) -> Result<BTreeMap<String, String>> {
    let (fields, _) = merged(settings, map)?;
    // A list of them gives them no names.
    let further = FURTHER.iter().filter_map(|key| fields.get(*key)?.as_object()).flatten();
    let named = fields.iter().filter(|(key, _)| key.ends_with("_token"));
    let all = named.chain(further);
    Ok(all.filter_map(|(key, token)| Some((key.clone(), token_text(token)?))).collect())
}

/// Returns the end token that a tokenizer.json implies by itself, if no file names one.
pub(super) fn implied_end(id: impl Fn(&str) -> Option<u32>) -> Option<u32> {
    END_TOKENS.iter().find_map(|name| id(name))
}

/// Returns the token that transformers puts before a text, by the tokenizer.json; `None` if it puts nothing
/// there. Only the post-processor decides: transformers 5 reads `add_bos_token` in the settings only where
/// there is no tokenizer.json.
pub fn begin_token(json: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Processor {
        #[serde(default)]
        post_processor: Value,
    }
    added_before(&serde_json::from_str::<Processor>(json).ok()?.post_processor)
}

/// Returns a tokenizer.json whose post-processor puts a token, by id and name, or nothing before a text. It
/// is the given one, unless that puts something else there.
///
/// # Errors
/// If it is not a JSON object.
pub fn json_beginning_with(json: &str, token: Option<(u32, &str)>) -> Result<String> {
    if begin_token(json).as_deref() == token.map(|(_, name)| name) {
        return Ok(json.to_owned());
    }
    let mut document = object(json).map_err(|e| e.context("tokenizer.json"))?;
    let processor = token.map_or(Value::Null, |(id, name)| {
        let special = |part: u8| json!({"SpecialToken": {"id": name, "type_id": part}});
        let text = |text: &str, part: u8| json!({"Sequence": {"id": text, "type_id": part}});
        let mut tokens = Map::new();
        tokens.insert(name.to_owned(), json!({"id": name, "ids": [id], "tokens": [name]}));
        json!({
            "type": "TemplateProcessing",
            "single": [special(0), text("A", 0)],
            "pair": [special(0), text("A", 0), special(1), text("B", 1)],
            "special_tokens": tokens,
        })
    });
    document.insert("post_processor".to_owned(), processor);
    Ok(format!("{:#}\n", Value::Object(document)))
}

/// Returns the token that a post-processor adds before a text.
fn added_before(processor: &Value) -> Option<String> {
    match processor["type"].as_str()? {
        "TemplateProcessing" => {
            let first = processor["single"].as_array()?.first()?;
            let id = first["SpecialToken"]["id"].as_str()?;
            let token = processor["special_tokens"][id]["tokens"][0].as_str();
            Some(token.unwrap_or(id).to_owned())
        }
        "BertProcessing" | "RobertaProcessing" => processor["cls"][0].as_str().map(str::to_owned),
        "Sequence" => processor["processors"].as_array()?.iter().find_map(added_before),
        _ => None,
    }
}

/// Returns a token in the settings: either a string, or an object with `content`.
pub fn token_text(token: &Value) -> Option<String> {
    token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
}

fn object(text: &str) -> Result<Map<String, Value>> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Error::usage("it is not a JSON object")),
        Err(e) => Err(Error::usage(e.to_string())),
    }
}

/// Returns the text of a file of settings; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<String>> {
    if !path.is_file() {
        return Ok(None);
    }
    let bytes = regular::read_through_link(path, MAX_SETTINGS_BYTES)?;
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|e| Error::usage(format!("{}: not UTF-8: {}", path.display(), e.utf8_error())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `special_tokens_map` of an `AutoTokenizer` of transformers 5.24 is.
    #[test]
    fn the_map_has_precedence_unless_settings_list_their_tokens() {
        let (a, b) = (json!({"eos_token": "a", "bos_token": {"content": "x"}}), json!({"eos_token": "b"}));
        let listing = json!({"eos_token": "a", "added_tokens_decoder": {}});
        for (settings, map, eos, named_by) in [
            (Some(&a), None, Some("a"), SETTINGS),
            (Some(&a), Some(&b), Some("b"), TOKEN_MAP),
            (Some(&a), Some(&a), Some("a"), SETTINGS),
            (Some(&listing), Some(&b), Some("a"), SETTINGS),
            (Some(&json!({"eos_token": null})), Some(&b), Some("b"), TOKEN_MAP),
            (Some(&a), Some(&json!({"eos_token": null})), Some("a"), SETTINGS),
            (None, Some(&b), Some("b"), TOKEN_MAP),
            (None, None, None, SETTINGS),
        ] {
            let [settings, map] = [settings, map].map(|json| json.map(Value::to_string));
            let (fields, by) = merged(settings.as_deref(), map.as_deref()).unwrap();
            assert_eq!(
                (fields.get(EOS).and_then(token_text).as_deref(), by),
                (eos, named_by),
                "{settings:?} {map:?}"
            );
        }
        let settings = json!({"unk_token": "u", "extra_special_tokens": {"image_token": "i"}, "pad_token": null,
            "add_bos_token": true, "additional_special_tokens": ["n"], "model_max_length": 3});
        let tokens = special_tokens(Some(&settings.to_string()), Some(&a.to_string())).unwrap();
        let expected = [("bos_token", "x"), ("eos_token", "a"), ("image_token", "i"), ("unk_token", "u")];
        assert_eq!(tokens, expected.map(|(key, token)| (key.to_owned(), token.to_owned())).into());
    }

    /// What `AutoTokenizer` of transformers 5.24 puts before a text.
    #[test]
    fn a_text_begins_as_the_post_processor_says() {
        let template = |single: Value| {
            json!({"type": "TemplateProcessing", "single": single, "pair": [],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}})
        };
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let special = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
        let before = template(json!([special, text]));
        let byte_level = json!({"type": "ByteLevel"});
        for (processor, begin) in [
            (before.clone(), Some("<s>")),
            (json!({"type": "Sequence", "processors": [byte_level, before]}), Some("<s>")),
            (template(json!([text, special])), None),
            (byte_level.clone(), None),
            (Value::Null, None),
            (json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}), Some("<s>")),
        ] {
            let json = json!({"post_processor": processor, "model": {"b": 1, "a": 2}}).to_string();
            assert_eq!(begin_token(&json).as_deref(), begin, "{json}");
            for token in [None, Some((1, "<s>")), Some((7, "\"q\""))] {
                let made = json_beginning_with(&json, token).unwrap();
                assert_eq!(begin_token(&made).as_deref(), token.map(|(_, name)| name), "{json}");
                assert_eq!(made == json, begin == token.map(|(_, name)| name), "{json}");
            }
        }
    }
}
