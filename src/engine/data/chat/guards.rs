//! Keeps the names of special tokens in messages apart from the tokens.

use super::conversation::Conversation;
use super::marks::GUARD;
use serde_json::Value;

/// Guards the names of special tokens in messages: there they are text, and only those that the template
/// itself writes are tokens.
#[derive(Clone, Debug, Default)]
pub struct Guards {
    /// The names and what stands for them, the longest first.
    names: Vec<(String, String)>,
}

impl Guards {
    /// Guards these names.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let guarded = |name: String| {
            let mut chars = name.chars();
            let first = chars.next()?;
            let guarded = format!("{first}{GUARD}{}", chars.as_str());
            Some((name, guarded))
        };
        let mut names: Vec<(String, String)> = names.into_iter().filter_map(guarded).collect();
        names.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
        Self { names }
    }

    /// Guards every text of a conversation. Returns true if one had a name.
    pub fn guard(&self, conversation: &mut Conversation) -> bool {
        let mut guarded = 0;
        for message in &mut conversation.messages {
            guarded += self.guard_text(&mut message.content);
            guarded += message.further.values_mut().map(|value| self.guard_value(value)).sum::<usize>();
        }
        guarded += conversation.tools.iter_mut().map(|value| self.guard_value(value)).sum::<usize>();
        guarded > 0
    }

    /// Returns how many names were guarded that the text had once or more often.
    fn guard_text(&self, text: &mut String) -> usize {
        let mut guarded = 0;
        for (name, with_guard) in &self.names {
            if text.contains(name.as_str()) {
                *text = text.replace(name.as_str(), with_guard);
                guarded += 1;
            }
        }
        guarded
    }

    fn guard_value(&self, value: &mut Value) -> usize {
        match value {
            Value::String(text) => self.guard_text(text),
            Value::Array(values) => values.iter_mut().map(|value| self.guard_value(value)).sum(),
            Value::Object(fields) => fields.values_mut().map(|value| self.guard_value(value)).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
    }

    /// Returns the name of a special token that a rendered text has at a byte, if it is not guarded.
    pub fn at<'g>(&'g self, text: &str, at: usize) -> Option<&'g str> {
        let rest = text.get(at..)?;
        self.names.iter().map(|(name, _)| name.as_str()).find(|name| rest.starts_with(name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Message;
    use super::*;
    use serde_json::json;

    #[test]
    fn names_in_every_text_of_a_conversation_are_guarded() {
        let guards = Guards::new(["<|end|>".to_owned(), "<|end|>x".to_owned()]);
        let mut further = serde_json::Map::new();
        further.insert("tool_calls".to_owned(), json!([{"arguments": {"text": "<|end|>"}}]));
        let content = "a <|end|>x b".to_owned();
        let message = Message { role: "user".to_owned(), content, further };
        let mut conversation =
            Conversation { messages: vec![message], tools: Some(json!(["<|end|>"])), trained: Vec::new() };
        assert!(guards.guard(&mut conversation));
        let text = format!("{conversation:?}").replace("\\u{fdd2}", "#");
        assert!(!text.contains("<|end|>") && text.matches("<#|end|>").count() == 3, "{text}");
        assert!(!guards.guard(&mut conversation), "nothing is left to guard");
        assert_eq!((guards.at("a<|end|>x", 1), guards.at("a", 1)), (Some("<|end|>x"), None));
    }
}
