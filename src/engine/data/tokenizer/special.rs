//! The special tokens of a tokenizer: which token ends a document, and which one a text begins with. A
//! tokenizer.json does not say which token ends a document. Files beside it do, so both are stored, hashed
//! and compared together.

use crate::data::END_OF_TEXT;
use crate::error::{Error, Result};
use crate::regular;
use serde_json::{Map, Value};
use std::path::Path;

/// The settings of a tokenizer, which name its special tokens. They are stored beside every tokenizer.json.
pub const SETTINGS: &str = "tokenizer_config.json";

/// Names the special tokens where [`SETTINGS`] does not.
const TOKEN_MAP: &str = "special_tokens_map.json";

/// Largest file of settings that is read. Settings with long lists of added tokens stay below 4 MiB.
pub const MAX_SETTINGS_BYTES: u64 = 16 << 20;

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
    /// The fields of [`SETTINGS`]; those that it lacks are from [`TOKEN_MAP`].
    fields: Map<String, Value>,
    /// The file that names the end token.
    named_by: &'static str,
}

impl Settings {
    /// Reads the settings beside a tokenizer.json.
    ///
    /// # Errors
    /// If a file cannot be read, is too large, or is not a JSON object.
    pub fn beside(tokenizer: &Path) -> Result<Self> {
        let text = read(&tokenizer.with_file_name(SETTINGS))?;
        let mut settings = Self { named_by: SETTINGS, ..Self::default() };
        if let Some(text) = text {
            settings.fields = object(&text).map_err(|e| e.context(SETTINGS))?;
            settings.text = Some(text);
        }
        if let Some(text) = read(&tokenizer.with_file_name(TOKEN_MAP))? {
            let map = object(&text).map_err(|e| e.context(TOKEN_MAP))?;
            for (key, value) in map {
                let is_unset = settings.fields.get(&key).is_none_or(Value::is_null);
                if is_unset && key.ends_with("_token") && !value.is_null() {
                    if key == EOS {
                        settings.named_by = TOKEN_MAP;
                    }
                    settings.fields.insert(key, value);
                }
            }
        }
        Ok(settings)
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

/// Returns the end token that a tokenizer.json implies by itself, if no file names one.
pub(super) fn implied_end(id: impl Fn(&str) -> Option<u32>) -> Option<u32> {
    END_TOKENS.iter().find_map(|name| id(name))
}

/// Returns the token that transformers puts before a text, by the tokenizer.json and its settings; `None` if
/// it puts nothing there. A post-processor decides. If there is none, `add_bos_token` in the settings does.
pub fn begin_token(json: &str, settings: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Processor {
        #[serde(default)]
        post_processor: Value,
    }
    let settings: Value = serde_json::from_str(settings).unwrap_or_default();
    let processor = serde_json::from_str::<Processor>(json).ok()?.post_processor;
    if processor.is_null() {
        let adds = settings["add_bos_token"] == true;
        return token_text(&settings["bos_token"]).filter(|_| adds);
    }
    added_before(&processor)
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
    use serde_json::json;

    /// What `AutoTokenizer` of transformers 5 puts before a text, by post-processor and settings.
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
        for (processor, settings, begin) in [
            (before.clone(), json!({}), Some("<s>")),
            (before.clone(), json!({"add_bos_token": false, "bos_token": "<s>"}), Some("<s>")),
            (json!({"type": "Sequence", "processors": [byte_level, before]}), json!({}), Some("<s>")),
            (template(json!([text, special])), json!({}), None),
            (byte_level.clone(), json!({"add_bos_token": true, "bos_token": "<s>"}), None),
            (Value::Null, json!({"add_bos_token": true, "bos_token": {"content": "<s>"}}), Some("<s>")),
            (Value::Null, json!({"bos_token": "<s>"}), None),
            (
                json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}),
                json!({}),
                Some("<s>"),
            ),
        ] {
            let json = json!({"post_processor": processor}).to_string();
            assert_eq!(begin_token(&json, &settings.to_string()).as_deref(), begin, "{json} {settings}");
        }
    }
}
