//! Finds what of a rendered conversation is trained on: the answers, each with what ends its turn.

use super::conversation::Conversation;
use super::drop_reason::DropReason;
use super::marks::{BEGIN, END};
use super::message::{ASSISTANT, Message};
use super::outcome::{Outcome, Rendered};
use std::ops::Range;

/// Renders messages: `(messages, begins)`, where `begins` asks for what a reply begins with. The error says
/// why the template rejects them.
pub(super) type Render<'r> = dyn FnMut(&[Message], bool) -> Result<String, String> + 'r;

/// Renders a conversation and finds its answers.
///
/// The text of an answer is what the template adds for it behind the prompt for a reply, without white space
/// behind the end of the turn, which belongs to the template. A template that changes earlier text when
/// messages follow (one that drops the thoughts of earlier turns, for example) leaves the last answer alone
/// to be trained on. With `has_marks`, the template says itself what it generates.
pub(super) fn render_with_spans(
    conversation: &Conversation,
    has_marks: bool,
    render: &mut Render<'_>,
) -> Outcome {
    let found = match has_marks {
        true => marked(conversation, render),
        false => by_prefixes(conversation, render),
    };
    match found {
        Ok(rendered) => match left_out(conversation, &rendered) {
            Some(says) => Outcome::Wrong(says),
            None => Outcome::Rendered(rendered),
        },
        Err(outcome) => outcome,
    }
}

fn rejected(says: String) -> Outcome {
    Outcome::Dropped { reason: DropReason::Rejected, says }
}

/// Says which message a rendered text lacks. Templates may cut white space around a text, and answers may
/// lose their thoughts.
fn left_out(conversation: &Conversation, rendered: &Rendered) -> Option<String> {
    let lacks = |message: &Message| {
        let content = message.content.trim();
        matches!(message.role.as_str(), "system" | "user")
            && !content.is_empty()
            && !rendered.text.contains(content)
    };
    for (i, message) in conversation.messages.iter().enumerate() {
        if lacks(message) {
            return Some(format!(
                "the chat template leaves out the text of message {} ({})",
                i + 1,
                message.role
            ));
        }
        if message.tool_calls().any(|name| !rendered.text.contains(name)) {
            return Some(format!("the chat template leaves out the tool calls of message {}", i + 1));
        }
    }
    None
}

fn by_prefixes(conversation: &Conversation, render: &mut Render<'_>) -> Result<Rendered, Outcome> {
    let messages = &conversation.messages;
    let text = render(messages, false).map_err(rejected)?;
    let answers = &conversation.trained;
    let mut trained = Vec::with_capacity(answers.len());
    for &i in answers {
        if let Some(span) = answer(messages, i, &text, render)? {
            trained.push(span);
            continue;
        }
        // The text up to here is no prefix of the whole.
        let last = answers.last().copied().filter(|&last| last + 1 == messages.len());
        let last = last.map(|last| answer(messages, last, &text, render)).transpose()?.flatten();
        return match last {
            Some(last) => Ok(Rendered { text, trained: vec![last], last_alone: true }),
            None => Err(Outcome::Dropped { reason: DropReason::HistoryChanges, says: String::new() }),
        };
    }
    Ok(Rendered { text, trained, last_alone: false })
}

/// Returns the bytes of answer `i` in the text of all messages; `None` if the text up to its end is no prefix
/// of it.
fn answer(
    messages: &[Message],
    i: usize,
    text: &str,
    render: &mut Render<'_>,
) -> Result<Option<Range<usize>>, Outcome> {
    let before = render(&messages[..i], true).map_err(rejected)?;
    let whole = match i + 1 == messages.len() {
        true => text.to_owned(),
        false => render(&messages[..=i], false).map_err(rejected)?,
    };
    if !whole.starts_with(&before) || !text.starts_with(&whole) {
        return Ok(None);
    }
    let end = whole.trim_end().len().max(before.len());
    if !messages[i].content.trim().is_empty() && whole[before.len()..end].trim().is_empty() {
        return Err(Outcome::Wrong(format!(
            "the chat template leaves out the answer that is message {}",
            i + 1
        )));
    }
    Ok(Some(before.len()..end))
}

/// Finds the answers by the marks of `{% generation %}`.
fn marked(conversation: &Conversation, render: &mut Render<'_>) -> Result<Rendered, Outcome> {
    let with_marks = render(&conversation.messages, false).map_err(rejected)?;
    let (mut text, mut trained, mut open) = (String::with_capacity(with_marks.len()), Vec::new(), None);
    for part in with_marks.split_inclusive([BEGIN, END]) {
        let mark = part.chars().last().filter(|c| [BEGIN, END].contains(c));
        text += mark.map_or(part, |mark| &part[..part.len() - mark.len_utf8()]);
        match (mark, open) {
            (Some(BEGIN), None) => open = Some(text.len()),
            (Some(END), Some(from)) => {
                trained.push(from..text.len());
                open = None;
            }
            (Some(_), _) => {
                return Err(Outcome::Wrong("the chat template nests its {% generation %} tags".to_owned()));
            }
            (None, _) => {}
        }
    }
    // Answers that are not trained on are generated too, those of a prompt for example.
    let is_answer = |i: &usize| conversation.messages[*i].role == ASSISTANT;
    let answers: Vec<usize> = (0..conversation.messages.len()).filter(is_answer).collect();
    if conversation.trained != answers {
        if trained.len() != answers.len() {
            return Err(Outcome::Wrong(format!(
                "the chat template has {{% generation %}} around {} texts, and the conversation has {} answers, so those to \
                 train on cannot be told from others",
                trained.len(),
                answers.len()
            )));
        }
        let mut places = answers.iter();
        trained.retain(|_| places.next().is_some_and(|i| conversation.trained.contains(i)));
    }
    trained.retain(|span| !span.is_empty());
    match trained.is_empty() {
        true => Err(Outcome::Dropped { reason: DropReason::NothingToTrain, says: String::new() }),
        false => Ok(Rendered { text, trained, last_alone: false }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;

    type Text = Result<String, String>;

    fn conversation(turns: &[(&str, &str)]) -> Conversation {
        let message = |(role, content): &(&str, &str)| Message {
            role: (*role).to_owned(),
            content: (*content).to_owned(),
            further: Map::new(),
        };
        let trained = (0..turns.len()).filter(|i| turns[*i].0 == ASSISTANT).collect();
        Conversation { messages: turns.iter().map(message).collect(), tools: None, trained }
    }

    /// ChatML.
    fn chatml(messages: &[Message], begins: bool) -> Text {
        let turn = |m: &Message| format!("<|im_start|>{}\n{}<|im_end|>\n", m.role, m.content);
        let text: String = messages.iter().map(turn).collect();
        Ok(text + if begins { "<|im_start|>assistant\n" } else { "" })
    }

    /// ChatML that drops the thoughts of earlier answers.
    fn forgetful(messages: &[Message], begins: bool) -> Text {
        let last = messages.len().saturating_sub(1);
        let kept: Vec<Message> = messages
            .iter()
            .enumerate()
            .map(|(i, m)| match m.content.split_once("</think>") {
                Some((_, rest)) if i < last => Message { content: rest.to_owned(), ..m.clone() },
                _ => m.clone(),
            })
            .collect();
        chatml(&kept, begins)
    }

    fn trained(conversation: &Conversation, render: &mut Render<'_>) -> (Vec<String>, bool) {
        let Outcome::Rendered(rendered) = render_with_spans(conversation, false, render) else {
            panic!("{conversation:?} is rendered")
        };
        let texts = rendered.trained.iter().map(|span| rendered.text[span.clone()].to_owned()).collect();
        (texts, rendered.last_alone)
    }

    #[test]
    fn answers_are_trained_on_with_what_ends_their_turn() {
        let talk = conversation(&[
            ("system", "s"),
            ("user", "a"),
            ("assistant", "b"),
            ("user", "c"),
            ("assistant", "d"),
        ]);
        assert_eq!(
            trained(&talk, &mut chatml),
            (vec!["b<|im_end|>".to_owned(), "d<|im_end|>".to_owned()], false)
        );
        let last = Conversation { trained: vec![4], ..talk };
        assert_eq!(trained(&last, &mut chatml), (vec!["d<|im_end|>".to_owned()], false));
    }

    #[test]
    fn a_template_that_changes_earlier_answers_trains_the_last() {
        let talk = conversation(&[
            ("user", "a"),
            ("assistant", "<think>t</think>b"),
            ("user", "c"),
            ("assistant", "d"),
        ]);
        assert_eq!(trained(&talk, &mut forgetful), (vec!["d<|im_end|>".to_owned()], true));
        let ends_with_a_question =
            conversation(&[("user", "a"), ("assistant", "<think>t</think>b"), ("user", "c")]);
        let outcome = render_with_spans(&ends_with_a_question, false, &mut forgetful);
        let dropped = Outcome::Dropped { reason: DropReason::HistoryChanges, says: String::new() };
        assert_eq!(outcome, dropped);
    }

    #[test]
    fn a_template_that_leaves_out_a_message_is_refused() {
        let talk = conversation(&[("system", "be terse"), ("user", "who?"), ("assistant", "me")]);
        let without = |role: &'static str| {
            move |messages: &[Message], begins: bool| {
                chatml(&messages.iter().filter(|m| m.role != role).cloned().collect::<Vec<_>>(), begins)
            }
        };
        for (role, says) in [("system", "message 1 (system)"), ("user", "message 2 (user)")] {
            let outcome = render_with_spans(&talk, false, &mut without(role));
            assert!(matches!(&outcome, Outcome::Wrong(text) if text.contains(says)), "{outcome:?}");
        }
        let outcome = render_with_spans(&talk, false, &mut without("assistant"));
        assert!(!matches!(outcome, Outcome::Rendered(_)), "{outcome:?}");
        let raises = &mut |_: &[Message], _| Err("roles must alternate".to_owned());
        assert_eq!(render_with_spans(&talk, false, raises), rejected("roles must alternate".to_owned()));
    }

    #[test]
    fn a_template_may_mark_what_it_generates() {
        let talk = conversation(&[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]);
        let mut marks = |messages: &[Message], _| -> Text {
            let turn = |m: &Message| match m.role.as_str() {
                "assistant" => format!("A:{BEGIN}{}.{END}\n", m.content),
                _ => format!("U:{}\n", m.content),
            };
            Ok(messages.iter().map(turn).collect())
        };
        let Outcome::Rendered(rendered) = render_with_spans(&talk, true, &mut marks) else { panic!() };
        assert_eq!(
            (rendered.text.as_str(), &rendered.trained[..]),
            ("U:a\nA:b.\nU:c\nA:d.\n", &[6..8, 15..17][..])
        );
        let prompted = Conversation { trained: vec![3], ..talk };
        let Outcome::Rendered(rendered) = render_with_spans(&prompted, true, &mut marks) else { panic!() };
        assert_eq!((rendered.trained.len(), &rendered.trained[0]), (1, &(15..17)));
    }
}
