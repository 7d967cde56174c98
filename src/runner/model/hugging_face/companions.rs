//! The files beside the weights and the tokenizer of the folder that a run began with. They say which tokens
//! are special and how a conversation is written, so an export has them as they came in.

use super::classes::{class_for, keys};
use super::fields::{is_harmless, is_token_id};
use super::resolve::without_unknown;
use crate::error::{Error, Result};
use crate::hugging_face::Config;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// File name of a configuration.
pub const CONFIG: &str = "config.json";
/// File name of settings of generation.
pub const GENERATION: &str = "generation_config.json";
/// File name of the settings of a tokenizer.
pub const SETTINGS: &str = "tokenizer_config.json";
/// File name of a list of special tokens, which older tokenizers have beside their settings.
pub const TOKEN_MAP: &str = "special_tokens_map.json";
pub use crate::data::chat::CHAT_TEMPLATE;

/// The files of the model.
pub const OF_MODEL: [&str; 2] = [CONFIG, GENERATION];
/// The files of the tokenizer, besides tokenizer.json.
pub const OF_TOKENIZER: [&str; 3] = [SETTINGS, TOKEN_MAP, CHAT_TEMPLATE];

/// Most bytes of a file. Settings with long lists of added tokens stay below 4 MiB.
pub const MAX_COMPANION_BYTES: u64 = 16 << 20;

/// Keys that say how a file was written. The export has its own.
const OF_THE_FILE: [&str; 10] = [
    "architectures",
    "model_type",
    "dtype",
    "torch_dtype",
    "use_bfloat16",
    "transformers_version",
    "name_or_path",
    "_name_or_path",
    "_commit_hash",
    "layer_types",
];

/// The standard deviation of initial values.
const INITIALIZER: &str = "initializer_range";

/// The key of the tokens that end a text.
const EOS: &str = "eos_token_id";

/// Files by name, whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Companions(pub BTreeMap<String, String>);

impl Companions {
    /// Returns the text of a file.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns true if the weights came from a folder, too.
    pub fn has_model(&self) -> bool {
        self.0.contains_key(CONFIG)
    }

    /// Returns the content for a file of the run.
    ///
    /// # Errors
    /// Never, with text that JSON can hold.
    pub fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(&self.0);
        text.map(|text| text + "\n").map_err(|e| Error::failed(format!("cannot encode companions: {e}")))
    }

    /// Parses the file of a run at `path`. Other names than those of companions are left out.
    ///
    /// # Errors
    /// A usage error if it is not an object of texts.
    pub fn from_json(path: &Path, text: &str) -> Result<Self> {
        let files: BTreeMap<String, String> =
            serde_json::from_str(text).map_err(|e| Error::usage(format!("{}: {e}", path.display())))?;
        let known = |name: &str| OF_MODEL.contains(&name) || OF_TOKENIZER.contains(&name);
        Ok(Self(files.into_iter().filter(|(name, _)| known(name)).collect()))
    }

    /// Adds the token that ended documents in training to those that end a text, if the folder that the run
    /// began with names others.
    ///
    /// # Errors
    /// If a file is not a JSON object.
    pub fn add_end(&mut self, id: u32) -> Result<()> {
        for name in OF_MODEL {
            let Some(text) = self.0.get_mut(name) else { continue };
            let wrong = |e: &dyn std::fmt::Display| Error::usage(format!("{name} of the folder: {e}"));
            let mut values: Value = serde_json::from_str(text).map_err(|e| wrong(&e))?;
            let values = values.as_object_mut().ok_or_else(|| wrong(&"it is not a JSON object"))?;
            let ends = match values.get(EOS) {
                Some(Value::Array(ids)) if !ids.contains(&id.into()) => {
                    [&ids[..], &[id.into()]].concat().into()
                }
                Some(one @ Value::Number(_)) if *one != id => Value::from(vec![one.clone(), id.into()]),
                None | Some(Value::Null) if name == CONFIG => id.into(),
                _ => continue,
            };
            values.insert(EOS.to_owned(), ends);
            *text = format!("{:#}\n", Value::Object(std::mem::take(values)));
        }
        Ok(())
    }

    /// Returns the configuration of an export: ids of special tokens, the context, and keys that do not
    /// change the model, as in the configuration that came in, if there is one.
    ///
    /// # Errors
    /// If that configuration is not JSON.
    pub(crate) fn restore(&self, exported: Value) -> Result<Value> {
        let (Some(text), Value::Object(exported)) = (self.get(CONFIG), &exported) else {
            return Ok(exported);
        };
        let before = Config::parse(Path::new(CONFIG), text.as_bytes())?;
        // A token that is not named there has the default of the class.
        let mut restored: Map<String, Value> = exported
            .iter()
            .filter(|(key, _)| !is_token_id(key))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        for (key, value) in before.entries() {
            // xrun's own initial values have no effect on weights that came in.
            let own = restored.contains_key(key) && key != INITIALIZER || OF_THE_FILE.contains(&key);
            if is_harmless(key) && !own {
                restored.insert(key.to_owned(), value.clone());
            }
        }
        // Training on shorter sequences does not shorten the context. Learned positions are as many as
        // before.
        let known = class_for(&before).map(|class| without_unknown(class, &before));
        let keys = known.and_then(|known| keys(&known));
        if let (Some(context), Ok(keys)) = (restored.get_mut("max_position_embeddings"), keys) {
            *context = context.as_u64().unwrap_or_default().max(keys.context as u64).into();
        }
        Ok(restored.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn restored(came: &Value, exported: Value) -> Value {
        let files = BTreeMap::from([(CONFIG.to_owned(), came.to_string())]);
        Companions(files).restore(exported).unwrap()
    }

    /// Every kind of key: ids of tokens, the context, keys without effect, keys of the file.
    #[test]
    fn what_came_in_goes_out_and_nothing_is_invented() {
        let exported = json!({"model_type": "llama", "torch_dtype": "float32", "vocab_size": 9, "hidden_size": 4,
            "max_position_embeddings": 16, "initializer_range": 0.02, "bos_token_id": 3, "eos_token_id": 3});
        let came = json!({"model_type": "llama", "dtype": "bfloat16", "transformers_version": "4.1", "vocab_size": 9,
            "hidden_size": 4, "max_position_embeddings": 64, "initializer_range": 0.5, "eos_token_id": [1, 2],
            "pad_token_id": null, "sep_token_id": 7, "num_labels": 3, "num_attention_heads": 2, "unknown": 1});
        let expected = json!({"model_type": "llama", "torch_dtype": "float32", "vocab_size": 9, "hidden_size": 4,
            "max_position_embeddings": 64, "initializer_range": 0.5, "eos_token_id": [1, 2], "pad_token_id": null,
            "sep_token_id": 7, "num_labels": 3});
        assert_eq!(restored(&came, exported.clone()), expected);
        assert_eq!(Companions::default().restore(exported.clone()).unwrap(), exported);
        let own_context = json!({"model_type": "llama", "max_position_embeddings": 8});
        assert_eq!(restored(&own_context, exported)["max_position_embeddings"], 16);
    }

    #[test]
    fn the_end_of_documents_in_training_ends_texts() {
        for (config, generation, expected) in [
            (json!({"eos_token_id": 5}), json!({"eos_token_id": [5]}), [json!(5), json!([5])]),
            (json!({"eos_token_id": 4}), json!({"eos_token_id": [3, 4]}), [json!([4, 5]), json!([3, 4, 5])]),
            (json!({"eos_token_id": null}), json!({}), [json!(5), Value::Null]),
            (json!({}), json!({"eos_token_id": null}), [json!(5), Value::Null]),
        ] {
            let text = |name: &str, value: &Value| (name.to_owned(), value.to_string());
            let mut companions =
                Companions(BTreeMap::from([text(CONFIG, &config), text(GENERATION, &generation)]));
            companions.add_end(5).unwrap();
            let found = OF_MODEL.map(|name| {
                let values: Value = serde_json::from_str(companions.get(name).unwrap()).unwrap();
                values[EOS].clone()
            });
            assert_eq!(found, expected, "{config} {generation}");
        }
    }

    #[test]
    fn companions_come_back_without_other_files() {
        let files =
            OF_MODEL.iter().chain(&OF_TOKENIZER).map(|name| ((*name).to_owned(), format!("{name}\n\u{1b}")));
        let companions = Companions(files.collect());
        let text = companions.to_json().unwrap();
        assert_eq!(Companions::from_json(Path::new("f"), &text).unwrap(), companions);
        let other = text.replacen(CONFIG, "../config.json", 1);
        let without: Vec<String> = companions.0.into_keys().filter(|name| name != CONFIG).collect();
        let parsed = Companions::from_json(Path::new("f"), &other).unwrap();
        assert_eq!(parsed.0.into_keys().collect::<Vec<_>>(), without);
        assert!(Companions::from_json(Path::new("f"), "[]").unwrap_err().message().contains("f: "));
    }
}
