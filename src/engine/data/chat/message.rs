//! The messages of a conversation, read from the fields that files have for them.

use super::drop_reason::DropReason;
use crate::format::{printable, shortened};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Longest part of a value that a message shows, in characters.
const SHOWN: usize = 60;

/// Most messages of a conversation: each answer is rendered twice more, with all messages before it.
const MAX_MESSAGES: usize = 1024;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text of the message.
    pub content: String,
    /// Further fields that a template may read, such as `tool_calls` and `reasoning_content`.
    #[serde(flatten)]
    pub further: Map<String, Value>,
}

impl Message {
    /// Makes a message.
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        Self { role: role.to_owned(), content: content.into(), further: Map::new() }
    }

    /// Returns true for an answer that may be trained on.
    ///
    /// # Errors
    /// If its weight is neither 0 nor 1.
    pub(super) fn is_answer(&self) -> Result<bool, String> {
        if self.role != ASSISTANT {
            return Ok(false);
        }
        let weight = self.further.get("weight");
        let weighs = match weight {
            None => true,
            Some(value) => match value.as_bool().map(f64::from).or(value.as_f64()) {
                Some(0.0) => false,
                Some(1.0) => true,
                _ => {
                    let shown = shortened(&printable(&value.to_string()), SHOWN);
                    return Err(format!("\"weight\" is {shown}, and an answer has weight 0 or 1"));
                }
            },
        };
        Ok(weighs && (!self.content.trim().is_empty() || self.tool_calls().next().is_some()))
    }

    /// Returns the names of the functions that the message calls; an unnamed one is empty.
    pub(super) fn tool_calls(&self) -> impl Iterator<Item = &str> {
        let calls = self.further.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
        calls.map(|call| {
            let function = call.get("function").unwrap_or(call);
            function.get("name").and_then(Value::as_str).unwrap_or_default()
        })
    }
}

/// The role of answers.
pub(super) const ASSISTANT: &str = "assistant";

/// Returns the role of a message by the names that files have for it.
fn role(name: &str) -> Option<&'static str> {
    Some(match name.trim().to_ascii_lowercase().as_str() {
        "system" | "developer" => "system",
        "user" | "human" | "prompter" => "user",
        "assistant" | "gpt" | "model" | "bot" | "chatgpt" | "bing" | "bard" => ASSISTANT,
        "tool" | "function" | "observation" | "function_response" | "ipython" => "tool",
        _ => return None,
    })
}

/// Why messages cannot be read.
pub(super) enum Wrong {
    Dropped(DropReason),
    Invalid(String),
}

/// Returns the value of a field; `None` if it is missing or null.
pub(super) fn present<'o>(object: &'o Map<String, Value>, field: &str) -> Option<&'o Value> {
    object.get(field).filter(|value| !value.is_null())
}

/// Reads a list of messages, whose roles and texts are in these fields, or under the names of the other
/// layout.
pub(super) fn list(value: &Value, field: &str, names: [&str; 2]) -> Result<Vec<Message>, Wrong> {
    let Some(items) = value.as_array() else {
        return Err(Wrong::Invalid(format!("{} is {}, not a list of messages", quoted(field), kind(value))));
    };
    if items.len() > MAX_MESSAGES {
        return Err(Wrong::Dropped(DropReason::TooManyMessages));
    }
    let message = |item: &Value| -> Result<Message, Wrong> {
        let Some(fields) = item.as_object() else {
            return Err(Wrong::Invalid(format!(
                "{} has {} in place of a message, an object with {} and {}",
                quoted(field),
                kind(item),
                quoted(names[0]),
                quoted(names[1])
            )));
        };
        let [role_field, text_field] =
            if fields.contains_key(names[0]) { names } else { other_layout(names) };
        let role = match present(fields, role_field) {
            None => return Err(Wrong::Dropped(DropReason::NoRole)),
            Some(name) => name.as_str().and_then(role).ok_or(Wrong::Dropped(DropReason::UnknownRole))?,
        };
        let content = match present(fields, text_field) {
            None => String::new(),
            Some(content) => text(content, text_field)?,
        };
        let further = fields.iter().filter(|(key, value)| {
            *key != role_field
                && *key != text_field
                && *key != "role"
                && *key != "content"
                && !value.is_null()
        });
        let further = further.map(|(key, value)| (key.clone(), value.clone())).collect();
        Ok(Message { role: role.to_owned(), content, further })
    };
    items.iter().map(message).collect()
}

/// Returns the names of roles and texts in the other layout.
fn other_layout(names: [&str; 2]) -> [&'static str; 2] {
    if names[0] == "role" { ["from", "value"] } else { ["role", "content"] }
}

/// Reads a content: a text, or a list of parts that are texts.
pub(super) fn text(content: &Value, field: &str) -> Result<String, Wrong> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let part = |part: &Value| match part {
                Value::String(text) => Ok(text.clone()),
                Value::Object(fields) => match fields.get("text").and_then(Value::as_str) {
                    Some(text) if fields.get("type").is_none_or(|kind| kind == "text") => Ok(text.to_owned()),
                    _ => Err(Wrong::Dropped(DropReason::NotText)),
                },
                _ => Err(Wrong::Dropped(DropReason::NotText)),
            };
            parts.iter().map(part).collect::<Result<Vec<String>, Wrong>>().map(|parts| parts.concat())
        }
        _ => Err(Wrong::Invalid(format!("{} is {}, not a text", quoted(field), kind(content)))),
    }
}

/// Reads one side of a pair: a text of this role, or a list of messages.
pub(super) fn side(value: &Value, field: &str, role: &str) -> Result<Vec<Message>, Wrong> {
    match value {
        Value::Array(_) => list(value, field, ["role", "content"]),
        _ => Ok(vec![Message::new(role, text(value, field)?)]),
    }
}

/// Names the kind of a value in a message.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

pub(super) fn quoted(field: &str) -> String {
    format!("\"{}\"", shortened(&printable(field), SHOWN))
}
