//! Renders a chat template. It comes from others, so it is untrusted: it cannot access files, and its size
//! and steps are bounded here. [`super::child`] bounds what the interpreter does not: depth, memory and time.

use crate::error::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, context};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum size of a template.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// Maximum size of a rendered conversation: a hundred times the longest context in use.
const MAX_TEXT_BYTES: usize = 64 << 20;

/// Maximum number of instructions per rendering. Templates in use need a few hundred per message.
const FUEL: u64 = 10_000_000;

/// Maximum depth of nested calls.
const MAX_DEPTH: usize = 100;

/// Maximum number of characters of an error that is shown.
const MAX_ERROR: usize = 2000;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Message {
    /// `user` or `assistant`.
    role: String,
    /// The text of the message.
    content: String,
}

impl Message {
    /// Makes a message.
    pub(super) fn new(role: &str, content: impl Into<String>) -> Self {
        Self { role: role.to_owned(), content: content.into() }
    }
}

/// A template and what it is rendered with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// The text of the template.
    pub source: String,
    /// The special tokens by the names that the template has for them, such as `bos_token`.
    pub tokens: BTreeMap<String, String>,
    /// The conversation; `None` to compile the template only.
    pub messages: Option<Vec<Message>>,
}

/// Renders a conversation up to the point where the model's reply begins. Returns an empty text if there is
/// none.
///
/// # Errors
/// If the template is no valid program, rejects the conversation, or does not finish within its limits.
pub(super) fn render(job: &Job) -> Result<String> {
    if job.source.len() > MAX_TEMPLATE_BYTES {
        return Err(Error::usage(format!(
            "a chat template of {} bytes is larger than {MAX_TEMPLATE_BYTES}",
            job.source.len()
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
    environment.add_template_owned("chat", job.source.clone()).map_err(|e| wrong(&e))?;
    let Some(messages) = &job.messages else { return Ok(String::new()) };
    let template = environment.get_template("chat").map_err(|e| wrong(&e))?;
    let fields = |m: &Message| {
        Value::from_pairs([
            ("role", Value::from(m.role.as_str())),
            ("content", Value::from(m.content.as_str())),
        ])
    };
    let known = context! {
        messages => messages.iter().map(fields).collect::<Value>(),
        add_generation_prompt => true,
        // Of one name the former counts, so no token replaces the conversation.
        ..Value::from_pairs(job.tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str()))))
    };
    let text = template.render(known).map_err(|e| wrong(&e))?;
    if text.len() > MAX_TEXT_BYTES {
        return Err(Error::usage(format!(
            "the chat template makes {} bytes of the conversation; at most {MAX_TEXT_BYTES} are read",
            text.len()
        )));
    }
    Ok(text)
}

/// Describes an error of the template.
fn wrong(error: &minijinja::Error) -> Error {
    let line = error.line().map_or(String::new(), |line| format!(" (line {line})"));
    Error::usage(match error.kind() {
        ErrorKind::OutOfFuel => {
            format!("the chat template does not finish within {FUEL} instructions{line}")
        }
        _ => {
            let text: String = error.to_string().chars().take(MAX_ERROR).collect();
            format!("the chat template fails{line}: {text}")
        }
    })
}
