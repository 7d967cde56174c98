//! The chat template of a tokenizer: a Jinja program that turns a conversation into one text. It comes from
//! others, so it is untrusted: its size, steps and depth are bounded, and it cannot access files.

use crate::data::Tokenizer;
use crate::data::tokenizer::token_text;
use crate::error::{Error, Result};
use crate::model::hf_export::CHAT_TEMPLATE;
use crate::regular;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, context};
use std::path::Path;

/// The settings of a tokenizer, which name its special tokens and may contain the template.
const CONFIG_FILE: &str = "tokenizer_config.json";

/// Maximum size of a template's file or of settings. Templates in use stay below 64 KiB, and settings with
/// long lists of added tokens below 4 MiB.
const MAX_BYTES: u64 = 16 << 20;

/// Maximum size of a template.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// Maximum number of instructions per rendering. Templates in use need a few hundred per message.
const FUEL: u64 = 10_000_000;

/// Maximum depth of nested calls.
const MAX_DEPTH: usize = 100;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// `user` or `assistant`.
    pub role: &'static str,
    /// The text of the message.
    pub content: String,
}

/// A chat template, and the special tokens that it may use.
#[derive(Debug)]
pub(super) struct Template {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    /// Tokens that end a turn.
    ends: Vec<u32>,
}

impl Template {
    /// Reads the template in a run's folder.
    ///
    /// # Errors
    /// With a usage error that says what is missing, or where the template is wrong.
    pub(super) fn from_run(run: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let config = match read(&run.join(CONFIG_FILE))? {
            Some(text) => serde_json::from_str(&text)
                .map_err(|e| Error::usage(format!("{}: {e}", run.join(CONFIG_FILE).display())))?,
            None => serde_json::Value::Null,
        };
        let (source, from) = match chat_template(run)? {
            Some(source) => (source, CHAT_TEMPLATE),
            None => (in_config(&config["chat_template"]).unwrap_or_default(), CONFIG_FILE),
        };
        if source.trim().is_empty() {
            return Err(Error::usage(format!(
                "{} has no chat template: neither {CHAT_TEMPLATE} nor \"chat_template\" in {CONFIG_FILE}. Copy the template of \
                 the model's tokenizer there, or use --prompt to continue a text",
                run.display()
            )));
        }
        Self::new(source, &config, tokenizer).map_err(|e| e.context(run.join(from).display().to_string()))
    }

    /// Compiles a template. `config` names special tokens.
    pub(super) fn new(source: String, config: &serde_json::Value, tokenizer: &Tokenizer) -> Result<Self> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(Error::usage(format!(
                "a chat template of {} bytes is larger than {MAX_TEMPLATE_BYTES}",
                source.len()
            )));
        }
        let mut environment = Environment::new();
        // The same settings as transformers uses for Jinja.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| wrong(&e))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |text: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_DEPTH);
        environment.add_template_owned("chat", source).map_err(|e| wrong(&e))?;
        let named = |name: &str| token_text(&config[name]);
        let end = tokenizer.decode(&[tokenizer.end_token()])?;
        let eos = named("eos_token").unwrap_or(end);
        let mut ends = vec![tokenizer.end_token()];
        ends.extend(tokenizer.token_to_id(&eos).filter(|id| *id != tokenizer.end_token()));
        Ok(Self { environment, bos: named("bos_token").unwrap_or_default(), eos, ends })
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
        let template = self.environment.get_template("chat").map_err(|e| wrong(&e))?;
        let fields = |m: &Message| {
            Value::from_pairs([("role", Value::from(m.role)), ("content", Value::from(m.content.as_str()))])
        };
        let known = context! {
            messages => messages.iter().map(fields).collect::<Value>(),
            add_generation_prompt => true,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        template.render(known).map_err(|e| wrong(&e))
    }
}

/// Returns the template in a tokenizer_config.json: either a string, or the entry named `default` in a list.
fn in_config(template: &serde_json::Value) -> Option<String> {
    let default = |named: &Vec<serde_json::Value>| {
        let named = named.iter().find(|named| named["name"] == "default")?;
        named["template"].as_str().map(str::to_owned)
    };
    template.as_str().map(str::to_owned).or_else(|| template.as_array().and_then(default))
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

/// Describes an error of the template.
fn wrong(error: &minijinja::Error) -> Error {
    let line = error.line().map_or(String::new(), |line| format!(" (line {line})"));
    Error::usage(match error.kind() {
        ErrorKind::OutOfFuel => {
            format!("the chat template does not finish within {FUEL} instructions{line}")
        }
        _ => format!("the chat template fails{line}: {error}"),
    })
}
