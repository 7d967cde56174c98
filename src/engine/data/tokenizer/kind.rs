//! Says what a file is that is not a tokenizer.json, and what is wrong with one, without names of Rust types.

use serde_json::{Map, Value};

/// Says what JSON is if it is not a tokenizer.json; `None` if it may be one.
pub(super) fn other_file(json: &str) -> Option<String> {
    let Ok(value) = serde_json::from_str::<Shape>(json) else { return None };
    let said = match value {
        Shape::Object(keys) => {
            let has = |key: &str| keys.0.iter().any(|(name, _)| name == key);
            if has("model") {
                return None;
            }
            let numbers = keys.0.iter().filter(|(_, is_number)| *is_number).count();
            if has("vocab") && has("config") {
                "it is a tekken.json, the vocabulary of Mistral's own library"
            } else if has("tokenizer_class") || has("added_tokens_decoder") || has("chat_template") {
                "it is a tokenizer_config.json, the settings of a tokenizer"
            } else if has("model_type") || has("architectures") {
                "it is a config.json, the configuration of a model"
            } else if !keys.0.is_empty()
                && keys
                    .0
                    .iter()
                    .all(|(name, _)| name.ends_with("_token") || name == "additional_special_tokens")
            {
                "it is a special_tokens_map.json, the names of special tokens"
            } else if keys.0.len() > 1 && numbers == keys.0.len() {
                "it is a vocabulary (encoder.json or vocab.json), which has entries but not the rules that split text"
            } else {
                "it has no \"model\""
            }
        }
        Shape::Other => "it is not a JSON object",
    };
    Some(format!(
        "{said}. Name the tokenizer.json that `save_pretrained` of a fast tokenizer in HuggingFace's transformers \
         writes; it is usually in the same folder"
    ))
}

/// The outermost form of JSON.
enum Shape {
    Object(Keys),
    Other,
}

/// The keys of an object, each with whether its value is a number.
struct Keys(Vec<(String, bool)>);

impl<'de> serde::Deserialize<'de> for Shape {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // A vocabulary has a few hundred thousand keys, whose values are small.
        Ok(match Value::deserialize(from)? {
            Value::Object(fields) => Self::Object(Keys(keys(fields))),
            _ => Self::Other,
        })
    }
}

fn keys(fields: Map<String, Value>) -> Vec<(String, bool)> {
    fields.into_iter().map(|(key, value)| (key, value.is_number())).collect()
}

/// Says what is wrong in an error of the library or of serde, without names of Rust types.
pub(super) fn in_words(error: &str) -> String {
    const UNTAGGED: &str = "data did not match any variant of untagged enum ";
    if let Some(at) = error.find(UNTAGGED) {
        let rest = &error[at + UNTAGGED.len()..];
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
        let part = match name.as_str() {
            name if name.starts_with("Normalizer") => "its normalizer",
            name if name.starts_with("PreTokenizer") => "its pre_tokenizer",
            name if name.starts_with("PostProcessor") => "its post_processor",
            name if name.starts_with("Decoder") => "its decoder",
            name if name.starts_with("Model") => "its model",
            _ => "a part of it",
        };
        return format!(
            "{part} is of a kind that the tokenizers library does not know, or has wrong fields{}",
            &rest[name.len()..]
        );
    }
    let mut words = Vec::new();
    let mut rest = error.split(' ').peekable();
    while let Some(word) = rest.next() {
        let names_type = |next: &str| next.chars().next().is_some_and(char::is_uppercase);
        match word {
            "tuple" | "unit" if matches!(rest.peek(), Some(&"struct" | &"variant")) => {}
            "struct" | "enum" | "variant" if rest.peek().is_some_and(|next| names_type(next)) => {
                let name = rest.next().unwrap_or_default();
                let tail = name.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
                words.push(format!("an object{tail}"));
            }
            word => words.push(word.to_owned()),
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_file_of_a_tokenizer_is_named() {
        for (json, says) in [
            (r#"{"a": 0, "b": 1}"#, "encoder.json"),
            (r#"{"config": {"pattern": ""}, "vocab": []}"#, "tekken.json"),
            (r#"{"add_bos_token": false, "tokenizer_class": "Qwen2Tokenizer"}"#, "tokenizer_config.json"),
            (r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}}"#, "special_tokens_map.json"),
            (r#"{"architectures": ["LlamaForCausalLM"]}"#, "config.json"),
            ("[]", "not a JSON object"),
            ("3", "not a JSON object"),
            ("{}", "no \"model\""),
        ] {
            let said = other_file(json).expect(json);
            assert!(said.contains(says), "{json}: {said}");
        }
        assert_eq!(other_file(r#"{"model": {}}"#), None);
    }

    #[test]
    fn errors_name_no_types() {
        assert_eq!(
            in_words("invalid type: sequence, expected struct Probe at line 1 column 0"),
            "invalid type: sequence, expected an object at line 1 column 0"
        );
        assert_eq!(in_words("expected tuple struct Id, got 3"), "expected an object, got 3");
        let said =
            in_words("data did not match any variant of untagged enum ModelWrapper at line 3 column 4");
        assert!(
            said.starts_with("its model is of a kind") && said.ends_with(" at line 3 column 4"),
            "{said}"
        );
    }
}
