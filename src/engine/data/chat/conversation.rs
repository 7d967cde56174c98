//! Conversations as people store them, read from the objects of a file.

use super::drop_reason::DropReason;
use super::marks::RESERVED;
use super::message::{ASSISTANT, Message, Wrong, list, present, quoted, side, text};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// The messages, in their order.
    pub messages: Vec<Message>,
    /// Tools that the model may call, as the template gets them.
    pub tools: Option<Value>,
    /// The answers to train on, by their places among the messages: none of a prompt, and none that is empty
    /// or has weight 0.
    pub trained: Vec<usize>,
}

/// What a message costs to render beside its text, in bytes of text.
const MESSAGE_BYTES: u64 = 256;

impl Conversation {
    /// Returns about how many bytes a template reads to find the answers: all messages once, and those before
    /// each answer twice.
    pub fn bytes_to_render(&self) -> u64 {
        let tools = self.tools.as_ref().map_or(0, text_bytes);
        let (mut before, mut answers) = (tools, 0);
        for (i, message) in self.messages.iter().enumerate() {
            let further: u64 = message.further.values().map(text_bytes).sum();
            let whole = before + MESSAGE_BYTES + message.content.len() as u64 + further;
            if self.trained.contains(&i) {
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

/// What an object is.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// An example to train on.
    Conversation(Conversation),
    /// The conversation with the chosen answer, and the one with the rejected answer. Of each, what follows
    /// their common messages is trained on.
    Pair(Box<[Conversation; 2]>),
    /// An example that is left out.
    Dropped(DropReason),
}

/// Fields that have a list of messages.
const LISTS: [&str; 2] = ["messages", "conversations"];

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
    } else if LISTS.iter().any(|field| object.contains_key(*field)) {
        // A row of a table has null where an example has nothing.
        return Ok(Row::Dropped(DropReason::Empty));
    } else {
        return Err(format!(
            "no conversation: an example has \"messages\", \"conversations\", \"prompt\" and \"completion\", or \"instruction\" and \
             \"output\"; this one has {}",
            fields_of(object)
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
    let trained = answers_from(&messages, trained_from)?;
    if trained.is_empty() {
        return Ok(Row::Dropped(DropReason::NothingToTrain));
    }
    Ok(Row::Conversation(Conversation { messages, tools, trained }))
}

/// Reads Alpaca's fields: an instruction with an input, which may be empty, and the output.
fn alpaca(object: &Map<String, Value>, instruction: &Value, output: &Value) -> Result<Vec<Message>, Wrong> {
    let mut asked = text(instruction, "instruction")?;
    let input = present(object, "input").map_or(Ok(String::new()), |input| text(input, "input"))?;
    if !input.trim().is_empty() {
        asked += "\n\n";
        asked += &input;
    }
    let turns = [Message::new("user", asked), Message::new(ASSISTANT, text(output, "output")?)];
    Ok(system_message(object)?.into_iter().chain(turns).collect())
}

/// Reads the field `system`, which may be empty.
pub(super) fn system_message(object: &Map<String, Value>) -> Result<Option<Message>, Wrong> {
    let system = present(object, "system").map(|system| text(system, "system")).transpose()?;
    Ok(system.filter(|system| !system.trim().is_empty()).map(|system| Message::new("system", system)))
}

/// Returns the places of the messages from `from` on that are answers to train on.
///
/// # Errors
/// If the weight of one is neither 0 nor 1.
pub(super) fn answers_from(messages: &[Message], from: usize) -> Result<Vec<usize>, String> {
    let mut answers = Vec::new();
    for (i, message) in messages.iter().enumerate().skip(from) {
        if message.is_answer()? {
            answers.push(i);
        }
    }
    Ok(answers)
}

/// Names the fields of an object, for messages.
pub(super) fn fields_of(object: &Map<String, Value>) -> String {
    let fields: Vec<String> = object.keys().take(8).map(|key| quoted(key)).collect();
    if fields.is_empty() { "nothing".to_owned() } else { fields.join(", ") }
}

/// Returns true if a text of an example has a reserved character.
pub(super) fn has_reserved(object: &Map<String, Value>) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Row, String> {
        conversation(serde_json::from_str::<Value>(json).unwrap().as_object().unwrap())
    }

    fn roles_and_texts(json: &str) -> Vec<(String, String)> {
        match read(json).unwrap() {
            Row::Conversation(found) => found.messages.into_iter().map(|m| (m.role, m.content)).collect(),
            other => panic!("{json}: {other:?}"),
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
