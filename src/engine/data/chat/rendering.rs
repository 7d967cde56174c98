//! Renders a chat template. It comes from others, so it is untrusted: it cannot access files, and its size
//! and steps are bounded here. [`super::child`] bounds what the interpreter does not: depth, memory and time.

use super::conversation::Conversation;
use super::json::tojson;
use super::marks::with_generation_marks;
use super::message::Message;
use super::outcome::Outcome;
use super::spans::render_with_spans;
use crate::error::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
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

/// A template, what it is rendered with, and what is to be done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The text of the template.
    pub source: String,
    /// The special tokens by the names that the template has for them, such as `bos_token`.
    pub tokens: BTreeMap<String, String>,
    /// What to render.
    pub task: Task,
}

/// What to render.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Nothing: the template is compiled.
    Compile,
    /// A conversation up to the point where the model's reply begins.
    Prompt(Vec<Message>),
    /// Conversations to train on.
    Train(Vec<Conversation>),
}

/// What a task gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Done {
    Compiled,
    Prompt(String),
    Trained(Vec<Outcome>),
}

/// A compiled template.
struct Compiled<'j> {
    environment: Environment<'static>,
    tokens: &'j BTreeMap<String, String>,
    /// True if the template has `{% generation %}` tags.
    has_marks: bool,
}

/// Does a job.
///
/// # Errors
/// If the template is no valid program, rejects a prompt, or does not finish within its limits.
pub(super) fn render(job: &Job) -> Result<Done> {
    let compiled = Compiled::new(job)?;
    Ok(match &job.task {
        Task::Compile => Done::Compiled,
        Task::Prompt(messages) => Done::Prompt(compiled.render(messages, None, true)?),
        Task::Train(conversations) => {
            Done::Trained(conversations.iter().map(|one| compiled.train(one)).collect())
        }
    })
}

impl<'j> Compiled<'j> {
    fn new(job: &'j Job) -> Result<Self> {
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
        environment.add_filter("tojson", |value: &Value, options: Kwargs| tojson(value, options));
        environment.add_function("raise_exception", |text: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_DEPTH);
        let (source, has_marks) = with_generation_marks(&job.source);
        environment.add_template_owned("chat", source).map_err(|e| wrong(&e))?;
        Ok(Self { environment, tokens: &job.tokens, has_marks })
    }

    /// Renders messages. With `begins`, the text ends with what the model's reply begins with.
    fn render(
        &self,
        messages: &[Message],
        tools: Option<&serde_json::Value>,
        begins: bool,
    ) -> Result<String> {
        let template = self.environment.get_template("chat").map_err(|e| wrong(&e))?;
        let tokens = self.tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str())));
        let tools = tools.map(|tools| ("tools", Value::from(Serde(tools))));
        let known = context! {
            messages => messages.iter().map(|message| Value::from(Serde(message))).collect::<Value>(),
            add_generation_prompt => begins,
            // Of one name the former counts, so no token replaces the conversation.
            ..Value::from_pairs(tools.into_iter().chain(tokens))
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

    fn train(&self, conversation: &Conversation) -> Outcome {
        let tools = conversation.tools.as_ref();
        let mut render = |messages: &[Message], begins: bool| {
            self.render(messages, tools, begins).map_err(|e| e.message().to_owned())
        };
        render_with_spans(conversation, self.has_marks, &mut render)
    }
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
