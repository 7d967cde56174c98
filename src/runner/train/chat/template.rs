//! The chat template of a tokenizer: a Jinja program that turns a conversation into one text, found in the
//! folder of a run.

use super::child::Renderer;
use super::rendering::{Job, Message};
use crate::data::Tokenizer;
use crate::data::tokenizer::{
    MAX_SETTINGS_BYTES as MAX_BYTES, SETTINGS as CONFIG_FILE, TOKEN_MAP, special_tokens,
};
use crate::error::{Error, Result};
use crate::model::hf_export::CHAT_TEMPLATE;
use crate::regular;
use std::collections::BTreeMap;
use std::path::Path;

/// A chat template, and the special tokens that it may use.
#[derive(Debug)]
pub(super) struct Template {
    /// What to render, without a conversation.
    job: Job,
    /// Tokens that end a turn.
    ends: Vec<u32>,
    renderer: Renderer,
}

impl Template {
    /// Reads the template in a run's folder.
    ///
    /// # Errors
    /// With a usage error that says what is missing, or where the template is wrong.
    pub(super) fn from_run(run: &Path, tokenizer: &Tokenizer, renderer: Renderer) -> Result<Self> {
        let (settings, map) = (read(&run.join(CONFIG_FILE))?, read(&run.join(TOKEN_MAP))?);
        let tokens = special_tokens(settings.as_deref(), map.as_deref())
            .map_err(|e| e.context(run.display().to_string()))?;
        let (source, from) = match chat_template(run)? {
            Some(source) => (source, CHAT_TEMPLATE),
            None => {
                let settings: serde_json::Value =
                    settings.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
                (in_config(&settings["chat_template"]).unwrap_or_default(), CONFIG_FILE)
            }
        };
        if source.trim().is_empty() {
            return Err(Error::usage(format!(
                "{} has no chat template: neither {CHAT_TEMPLATE} nor \"chat_template\" in {CONFIG_FILE}. Copy the template of \
                 the model's tokenizer there, or use --prompt to continue a text",
                run.display()
            )));
        }
        Self::new(source, tokens, tokenizer, renderer)
            .map_err(|e| e.context(run.join(from).display().to_string()))
    }

    /// Compiles a template, to find out whether it is one. `tokens` are the special tokens by the names that
    /// it has for them.
    pub(super) fn new(
        source: String,
        mut tokens: BTreeMap<String, String>,
        tokenizer: &Tokenizer,
        renderer: Renderer,
    ) -> Result<Self> {
        let end = tokenizer.decode(&[tokenizer.end_token()])?;
        let eos = tokens.entry("eos_token".to_owned()).or_insert(end);
        let mut ends = vec![tokenizer.end_token()];
        ends.extend(tokenizer.token_to_id(eos).filter(|id| *id != tokenizer.end_token()));
        let job = Job { source, tokens, messages: None };
        renderer.render(&job)?;
        Ok(Self { job, ends, renderer })
    }

    /// Returns the tokens that end a turn.
    pub(super) fn ends(&self) -> Vec<u32> {
        self.ends.clone()
    }

    /// Renders a conversation up to the point where the model's reply begins.
    ///
    /// # Errors
    /// If the template rejects the conversation, or does not finish within its limits.
    pub(super) fn render(&self, messages: &[Message]) -> Result<String> {
        self.renderer.render(&Job { messages: Some(messages.to_vec()), ..self.job.clone() })
    }
}

/// Returns the template in a tokenizer_config.json: a string, or what is named `default` in a list or an
/// object.
fn in_config(template: &serde_json::Value) -> Option<String> {
    let in_list = template.as_array().and_then(|named| named.iter().find(|named| named["name"] == "default"));
    let default = match in_list {
        Some(named) => &named["template"],
        None => &template["default"],
    };
    template.as_str().or_else(|| default.as_str()).map(str::to_owned)
}

/// Returns the chat template in its own file in a run's folder, if there is one.
///
/// # Errors
/// If it cannot be read, or is too large.
pub fn chat_template(run: &Path) -> Result<Option<String>> {
    read(&run.join(CHAT_TEMPLATE))
}

/// Returns the text of a file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<String>> {
    if regular::is_missing(path) {
        return Ok(None);
    }
    let bytes = regular::read(path, MAX_BYTES).map_err(|e| Error::usage(e.message()))?;
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|e| Error::usage(format!("{}: {}", path.display(), e.utf8_error())))
}
