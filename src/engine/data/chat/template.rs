//! The chat template of a tokenizer: a Jinja program that turns a conversation into one text, found beside
//! the tokenizer.

use super::child::Renderer;
use super::conversation::Conversation;
use super::message::Message;
use super::outcome::Outcome;
use super::rendering::{Done, Job, Task};
use crate::data::Tokenizer;
use crate::data::tokenizer::{MAX_SETTINGS_BYTES, SETTINGS, TOKEN_MAP, special_tokens};
use crate::error::{Error, Result};
use crate::regular;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file of a chat template.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// Reads a file of at most so many bytes: [`regular::read`] or [`regular::read_through_link`].
pub type ReadFile = fn(&Path, u64) -> Result<Vec<u8>>;

/// The text of a chat template, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateSource {
    /// The text.
    pub text: String,
    /// The file that has it.
    pub file: PathBuf,
    /// The special tokens by the names that the template has for them, such as `bos_token`.
    pub tokens: BTreeMap<String, String>,
}

impl TemplateSource {
    /// Reads the template in a folder with a tokenizer; `None` if there is none. `read_file` says whether
    /// links are followed.
    ///
    /// # Errors
    /// If a file cannot be read, is too large, or is no JSON object.
    pub fn in_folder(folder: &Path, read_file: ReadFile) -> Result<Option<Self>> {
        let settings = read(&folder.join(SETTINGS), read_file)?;
        let found = match read(&folder.join(CHAT_TEMPLATE), read_file)? {
            Some(text) => Some((text, CHAT_TEMPLATE)),
            None => {
                let settings: Option<serde_json::Value> =
                    settings.as_deref().and_then(|text| serde_json::from_str(text).ok());
                settings
                    .and_then(|settings| in_settings(&settings["chat_template"]))
                    .map(|text| (text, SETTINGS))
            }
        };
        let Some((text, name)) = found.filter(|(text, _)| !text.trim().is_empty()) else { return Ok(None) };
        let tokens = named_tokens(folder, settings.as_deref(), read_file)?;
        Ok(Some(Self { text, file: folder.join(name), tokens }))
    }

    /// Reads the template in a file, for the tokenizer in a folder; a built-in one has none.
    ///
    /// # Errors
    /// If a file cannot be read, is too large, or the template is empty.
    pub fn in_file(file: &Path, tokenizer: Option<&Path>) -> Result<Self> {
        let read_file: ReadFile = regular::read_through_link;
        let text = read(file, read_file)?
            .ok_or_else(|| Error::usage(format!("the chat template {} does not exist", file.display())))?;
        if text.trim().is_empty() {
            return Err(Error::usage(format!("the chat template {} is empty", file.display())));
        }
        let tokens = match tokenizer {
            Some(folder) => {
                named_tokens(folder, read(&folder.join(SETTINGS), read_file)?.as_deref(), read_file)?
            }
            None => BTreeMap::new(),
        };
        Ok(Self { text, file: file.to_owned(), tokens })
    }
}

/// Returns the special tokens of the tokenizer in a folder, by their names.
fn named_tokens(
    folder: &Path,
    settings: Option<&str>,
    read_file: ReadFile,
) -> Result<BTreeMap<String, String>> {
    let map = read(&folder.join(TOKEN_MAP), read_file)?;
    special_tokens(settings, map.as_deref()).map_err(|e| e.context(folder.display().to_string()))
}

/// A chat template, and the special tokens that it may use.
#[derive(Clone, Debug)]
pub struct Template {
    source: String,
    tokens: BTreeMap<String, String>,
    /// Tokens that end a turn.
    ends: Vec<u32>,
    renderer: Renderer,
}

impl Template {
    /// Reads the template in a run's folder.
    ///
    /// # Errors
    /// With a usage error that says what is missing, or where the template is wrong.
    pub fn from_run(run: &Path, tokenizer: &Tokenizer, renderer: Renderer) -> Result<Self> {
        let found = TemplateSource::in_folder(run, regular::read)?.ok_or_else(|| {
            Error::usage(format!(
                "{} has no chat template: neither {CHAT_TEMPLATE} nor \"chat_template\" in {SETTINGS}. Copy the template of \
                 the model's tokenizer there, or use --prompt to continue a text",
                run.display()
            ))
        })?;
        Self::new(found, tokenizer, renderer)
    }

    /// Compiles a template, to find out whether it is one.
    ///
    /// # Errors
    /// If it is not. The message names its file.
    pub fn new(source: TemplateSource, tokenizer: &Tokenizer, renderer: Renderer) -> Result<Self> {
        let TemplateSource { text, file, mut tokens } = source;
        let end = tokenizer.decode(&[tokenizer.end_token()])?;
        let eos = tokens.entry("eos_token".to_owned()).or_insert(end);
        let mut ends = vec![tokenizer.end_token()];
        ends.extend(tokenizer.token_to_id(eos).filter(|id| *id != tokenizer.end_token()));
        let template = Self { source: text, tokens, ends, renderer };
        template.done(Task::Compile).map_err(|e| e.context(file.display().to_string()))?;
        Ok(template)
    }

    /// Returns the tokens that end a turn.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Renders a conversation up to the point where the model's reply begins.
    ///
    /// # Errors
    /// If the template rejects the conversation, or does not finish within its limits.
    pub fn prompt(&self, messages: &[Message]) -> Result<String> {
        match self.done(Task::Prompt(messages.to_vec()))? {
            Done::Prompt(text) => Ok(text),
            _ => Err(other_answer()),
        }
    }

    /// Renders conversations to train on, in order.
    ///
    /// # Errors
    /// If the template does not finish within its limits.
    pub fn train(&self, conversations: Vec<Conversation>) -> Result<Vec<Outcome>> {
        let count = conversations.len();
        match self.done(Task::Train(conversations))? {
            Done::Trained(outcomes) if outcomes.len() == count => Ok(outcomes),
            _ => Err(other_answer()),
        }
    }

    fn done(&self, task: Task) -> Result<Done> {
        self.renderer.render(&Job { source: self.source.clone(), tokens: self.tokens.clone(), task })
    }
}

/// Says that a child answered another question.
fn other_answer() -> Error {
    Error::failed("the process that renders templates gave another answer than was asked for")
}

/// Returns the template in a tokenizer_config.json: a string, or what is named `default` in a list or an
/// object.
fn in_settings(template: &serde_json::Value) -> Option<String> {
    let in_list = template.as_array().and_then(|named| named.iter().find(|named| named["name"] == "default"));
    let default = match in_list {
        Some(named) => &named["template"],
        None => &template["default"],
    };
    template.as_str().or_else(|| default.as_str()).map(str::to_owned)
}

/// Returns the chat template in its own file in a folder, if there is one.
///
/// # Errors
/// If it cannot be read, or is too large.
pub fn own_template(folder: &Path) -> Result<Option<String>> {
    read(&folder.join(CHAT_TEMPLATE), regular::read)
}

/// Returns the text of a file; `None` if it does not exist.
fn read(path: &Path, read_file: ReadFile) -> Result<Option<String>> {
    if regular::is_missing(path) {
        return Ok(None);
    }
    let bytes = read_file(path, MAX_SETTINGS_BYTES).map_err(|e| Error::usage(e.message()))?;
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|e| Error::usage(format!("{}: {}", path.display(), e.utf8_error())))
}
