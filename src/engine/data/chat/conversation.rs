//! Conversations as people store them, read from the objects of a file.

use super::marks::RESERVED;
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
}

/// A conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// The messages, in their order.
    pub messages: Vec<Message>,
    /// Tools that the model may call, as the template gets them.
    pub tools: Option<Value>,
    /// The first message that may be trained on: those of a prompt are not.
    pub trained_from: usize,
}

/// What a message costs to render beside its text, in bytes of text.
const MESSAGE_BYTES: u64 = 256;

impl Conversation {
    /// Returns about how many bytes a template reads to find the answers: all messages once, and those before
    /// each answer twice.
    pub fn bytes_to_render(&self) -> u64 {
        let tools = self.tools.as_ref().map_or(0, text_bytes);
        let (mut before, mut answers) = (tools, 0);
        for message in &self.messages {
            let further: u64 = message.further.values().map(text_bytes).sum();
            let whole = before + MESSAGE_BYTES + message.content.len() as u64 + further;
            if message.role == ASSISTANT {
                answers += before + whole;
            }
            before = whole;
        }
        before + answers
    }
}

/// Returns about how many bytes a value takes as text.
fn text_bytes(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Array(values) => values.iter().map(text_bytes).sum::<u64>() + 1,
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| key.len() as u64 + text_bytes(value)).sum::<u64>() + 1
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => size_of::<f64>() as u64,
    }
}

/// Why an example is not trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// It has no message.
    Empty,
    /// It has no text of an assistant to train on.
    NothingToTrain,
    /// A message has no role.
    NoRole,
    /// A message has a role that is none of the known ones.
    UnknownRole,
    /// A message has parts that are no text, such as images.
    NotText,
    /// It has more messages than a conversation may have.
    TooManyMessages,
    /// It has characters that are reserved for marks ([`RESERVED`](super::RESERVED)).
    Reserved,
    /// The template raises an error, as many do for roles that do not alternate.
    Rejected,
    /// The template changes earlier messages when others follow, and the last one is no answer.
    HistoryChanges,
    /// Its first answer ends behind the longest sequence.
    TooLong,
    /// A message has the name of a special token as text, which this tokenizer cannot keep apart from the
    /// token.
    ControlTokens,
}

impl DropReason {
    /// Returns the reason in words, to stand behind `examples`.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Empty => "without messages",
            Self::NothingToTrain => "without an answer to train on",
            Self::NoRole => "with a message without a role",
            Self::UnknownRole => "with a message of an unknown role",
            Self::NotText => "with parts that are no text, such as images",
            Self::TooManyMessages => "with too many messages",
            Self::Reserved => "with the noncharacters U+FDD0 to U+FDD2",
            Self::Rejected => "that the chat template rejects",
            Self::HistoryChanges => "whose answers the chat template changes when messages follow",
            Self::TooLong => "whose first answer ends behind training.seq_len tokens",
            Self::ControlTokens => "with names of special tokens in their text",
        }
    }
}

/// What an object is.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// An example to train on.
    Conversation(Conversation),
    /// An example that is left out.
    Dropped(DropReason),
}

/// Reads a conversation from an object with `messages`, `conversations`, `prompt` and `completion`, or
/// Alpaca's fields.
///
/// # Errors
/// If the object has none of these fields, or one of a type that it cannot have. The text says which.
pub fn conversation(object: &Map<String, Value>) -> Result<Row, String> {
    let tools = object.get("tools").filter(|tools| !tools.is_null()).cloned();
    let read = if let Some(messages) = present(object, "messages") {
        list(messages, "messages", ["role", "content"]).map(|messages| (messages, 0))
    } else if let Some(messages) = present(object, "conversations") {
        list(messages, "conversations", ["from", "value"]).map(|messages| (messages, 0))
    } else if let (Some(prompt), Some(completion)) =
        (present(object, "prompt"), present(object, "completion"))
    {
        let prompt = side(prompt, "prompt", "user");
        prompt.and_then(|prompt| {
            let from = prompt.len();
            Ok(([prompt, side(completion, "completion", "assistant")?].concat(), from))
        })
    } else if let (Some(instruction), Some(output)) =
        (present(object, "instruction"), present(object, "output"))
    {
        alpaca(object, instruction, output).map(|messages| (messages, 0))
    } else {
        let fields: Vec<String> = object.keys().take(8).map(|key| quoted(key)).collect();
        return Err(format!(
            "no conversation: an example has \"messages\", \"conversations\", \"prompt\" and \"completion\", or \"instruction\" and \
             \"output\"; this one has {}",
            if fields.is_empty() { "nothing".to_owned() } else { fields.join(", ") }
        ));
    };
    let (messages, trained_from) = match read {
        Ok(read) => read,
        Err(Wrong::Dropped(reason)) => return Ok(Row::Dropped(reason)),
        Err(Wrong::Invalid(text)) => return Err(text),
    };
    if messages.is_empty() {
        return Ok(Row::Dropped(DropReason::Empty));
    }
    if has_reserved(object) {
        return Ok(Row::Dropped(DropReason::Reserved));
    }
    let is_trained = |message: &Message| {
        message.role == ASSISTANT
            && (!message.content.trim().is_empty() || message.further.contains_key("tool_calls"))
    };
    if !messages[trained_from..].iter().any(is_trained) {
        return Ok(Row::Dropped(DropReason::NothingToTrain));
    }
    Ok(Row::Conversation(Conversation { messages, tools, trained_from }))
}

const ASSISTANT: &str = "assistant";

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
enum Wrong {
    Dropped(DropReason),
    Invalid(String),
}

/// Returns the value of a field; `None` if it is missing or null.
fn present<'o>(object: &'o Map<String, Value>, field: &str) -> Option<&'o Value> {
    object.get(field).filter(|value| !value.is_null())
}

/// Reads a list of messages, whose roles and texts are in these fields, or under the names of the other
/// layout.
fn list(value: &Value, field: &str, names: [&str; 2]) -> Result<Vec<Message>, Wrong> {
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
fn text(content: &Value, field: &str) -> Result<String, Wrong> {
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
fn side(value: &Value, field: &str, role: &str) -> Result<Vec<Message>, Wrong> {
    match value {
        Value::Array(_) => list(value, field, ["role", "content"]),
        _ => Ok(vec![Message::new(role, text(value, field)?)]),
    }
}

/// Reads Alpaca's fields: an instruction with an input, which may be empty, and the output.
fn alpaca(object: &Map<String, Value>, instruction: &Value, output: &Value) -> Result<Vec<Message>, Wrong> {
    let mut asked = text(instruction, "instruction")?;
    let input = present(object, "input").map_or(Ok(String::new()), |input| text(input, "input"))?;
    if !input.trim().is_empty() {
        asked += "\n\n";
        asked += &input;
    }
    let system = present(object, "system").map(|system| text(system, "system")).transpose()?;
    let system =
        system.filter(|system| !system.trim().is_empty()).map(|system| Message::new("system", system));
    let turns = [Message::new("user", asked), Message::new(ASSISTANT, text(output, "output")?)];
    Ok(system.into_iter().chain(turns).collect())
}

/// Returns true if a text of an example has a reserved character.
fn has_reserved(object: &Map<String, Value>) -> bool {
    fn found(value: &Value) -> bool {
        match value {
            Value::String(text) => text.contains(RESERVED),
            Value::Array(values) => values.iter().any(found),
            Value::Object(fields) => fields.values().any(found),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
    object.values().any(found)
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

fn quoted(field: &str) -> String {
    format!("\"{}\"", shortened(&printable(field), SHOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Row, String> {
        conversation(serde_json::from_str::<Value>(json).unwrap().as_object().unwrap())
    }

    fn roles_and_texts(json: &str) -> Vec<(String, String)> {
        match read(json).unwrap() {
            Row::Conversation(found) => found.messages.into_iter().map(|m| (m.role, m.content)).collect(),
            Row::Dropped(reason) => panic!("{json}: {reason:?}"),
        }
    }

    #[test]
    fn what_cannot_be_trained_on_is_left_out_or_refused() {
        for (json, reason) in [
            (r#"{"messages": []}"#, DropReason::Empty),
            (r#"{"messages": [{"role": "user", "content": "a"}]}"#, DropReason::NothingToTrain),
            (r#"{"messages": [{"role": "assistant", "content": " "}]}"#, DropReason::NothingToTrain),
            (r#"{"messages": [{"content": "a"}]}"#, DropReason::NoRole),
            (r#"{"messages": [{"role": null, "content": "a"}]}"#, DropReason::NoRole),
            (r#"{"messages": [{"role": "narrator", "content": "a"}]}"#, DropReason::UnknownRole),
            (
                r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}]}"#,
                DropReason::NotText,
            ),
            (r#"{"prompt": "a", "completion": "b\uFDD1"}"#, DropReason::Reserved),
        ] {
            assert_eq!(read(json), Ok(Row::Dropped(reason)), "{json}");
        }
        for (json, says) in [
            ("{}", "this one has nothing"),
            (r#"{"text": "a"}"#, "this one has \"text\""),
            (r#"{"messages": "a"}"#, "\"messages\" is a text, not a list of messages"),
            (r#"{"messages": ["a"]}"#, "has a text in place of a message"),
            (r#"{"messages": [[]]}"#, "has a list in place of a message"),
            (r#"{"messages": [{"role": "user", "content": 3}]}"#, "\"content\" is a number, not a text"),
            (r#"{"prompt": "a", "completion": 3}"#, "\"completion\" is a number, not a text"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(says), "{json}: {error}");
        }
    }

    #[test]
    fn every_layout_gives_the_same_messages() {
        let wanted =
            [("user", "a"), ("assistant", "b")].map(|(role, text)| (role.to_owned(), text.to_owned()));
        for json in [
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
            r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "b"}]}"#,
            r#"{"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}"#,
            r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}"#,
            r#"{"conversations": [{"role": "User", "content": "a"}, {"role": "model", "content": "b"}]}"#,
            r#"{"prompt": "a", "completion": "b"}"#,
            r#"{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}"#,
            r#"{"instruction": "a", "input": "", "output": "b"}"#,
            r#"{"messages": null, "prompt": "a", "completion": "b"}"#,
        ] {
            assert_eq!(roles_and_texts(json), wanted, "{json}");
        }
        let alpaca = roles_and_texts(r#"{"instruction": "a", "input": "c", "output": "b"}"#);
        assert_eq!(alpaca[0].1, "a\n\nc");
    }
}
