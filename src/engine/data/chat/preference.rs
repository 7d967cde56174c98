//! Pairs of answers, of which one is preferred, as people store them.

use super::conversation::{Conversation, Row, answers_from, fields_of, has_reserved, system_message};
use super::drop_reason::DropReason;
use super::message::{ASSISTANT, Message, Wrong, present, quoted, side};
use serde_json::{Map, Value};

/// Fields of what the answers answer, if these do not have it themselves.
const QUESTIONS: [&str; 2] = ["prompt", "question"];

/// Reads a pair from an object with `chosen` and `rejected`: lists of messages, or texts beside `prompt` or
/// `question`, which may be messages too. `system` may be a text beside them.
///
/// # Errors
/// If a field is missing, or of a type that it cannot have. The text says which.
pub fn preference_pair(object: &Map<String, Value>) -> Result<Row, String> {
    let (Some(chosen), Some(rejected)) = (present(object, "chosen"), present(object, "rejected")) else {
        return Err(format!(
            "no pair of answers: one has \"chosen\" and \"rejected\", and \"prompt\" if these are texts; this one has {}",
            fields_of(object)
        ));
    };
    let read = before(object).and_then(|before| {
        let side = |value, field| answer(&before, value, field);
        Ok([side(chosen, "chosen")?, side(rejected, "rejected")?])
    });
    let sides = match read {
        Ok(sides) => sides,
        Err(Wrong::Dropped(reason)) => return Ok(Row::Dropped(reason)),
        Err(Wrong::Invalid(text)) => return Err(text),
    };
    if sides.iter().any(Vec::is_empty) {
        return Ok(Row::Dropped(DropReason::Empty));
    }
    if has_reserved(object) {
        return Ok(Row::Dropped(DropReason::Reserved));
    }
    if sides[0] == sides[1] {
        return Ok(Row::Dropped(DropReason::EqualAnswers));
    }
    let common = sides[0].iter().zip(&sides[1]).take_while(|(a, b)| a == b).count();
    let tools = object.get("tools").filter(|tools| !tools.is_null());
    let mut found = Vec::with_capacity(2);
    for messages in sides {
        let trained = answers_from(&messages, common)?;
        if trained.is_empty() {
            return Ok(Row::Dropped(DropReason::NothingToTrain));
        }
        found.push(Conversation { messages, tools: tools.cloned(), trained });
    }
    <[Conversation; 2]>::try_from(found)
        .map(|pair| Row::Pair(Box::new(pair)))
        .map_err(|_| "a pair has two answers".to_owned())
}

/// Reads the messages before both answers.
fn before(object: &Map<String, Value>) -> Result<Vec<Message>, Wrong> {
    let mut messages: Vec<Message> = system_message(object)?.into_iter().collect();
    if let Some((field, question)) =
        QUESTIONS.iter().find_map(|field| Some((*field, present(object, field)?)))
    {
        messages.extend(side(question, field, "user")?);
    }
    Ok(messages)
}

/// Reads an answer: messages, with or without those `before` it, or a text.
fn answer(before: &[Message], value: &Value, field: &str) -> Result<Vec<Message>, Wrong> {
    let is_text = !value.is_array();
    if is_text && before.iter().all(|message| message.role == "system") {
        return Err(Wrong::Invalid(format!(
            "{} is no list of messages, and nothing says what it answers: add \"prompt\", or write the messages",
            quoted(field)
        )));
    }
    let own = side(value, field, ASSISTANT)?;
    // Many files repeat the prompt in both lists.
    let question = before.iter().position(|message| message.role != "system").unwrap_or(before.len());
    Ok(if own.starts_with(before) {
        own
    } else if !before[question..].is_empty() && own.starts_with(&before[question..]) {
        [&before[..question], &own].concat()
    } else {
        [before, &own].concat()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Row, String> {
        preference_pair(serde_json::from_str::<Value>(json).unwrap().as_object().unwrap())
    }

    /// Returns the roles and texts of both sides, an answer that is trained on in capitals.
    fn sides(json: &str) -> [String; 2] {
        let Row::Pair(pair) = read(json).unwrap() else { panic!("{json}") };
        (*pair).map(|Conversation { messages, trained, .. }| {
            let shown = messages.iter().enumerate().map(|(i, Message { role, content, .. })| {
                let content = if trained.contains(&i) { content.to_uppercase() } else { content.clone() };
                format!("{}:{content}", &role[..1])
            });
            shown.collect::<Vec<_>>().join(" ")
        })
    }

    #[test]
    fn every_layout_gives_the_same_pair() {
        let question = r#"{"role": "user", "content": "q"}"#;
        let answer = |text: &str| format!(r#"{{"role": "assistant", "content": "{text}"}}"#);
        let (good, bad) = (answer("good"), answer("bad"));
        for json in [
            r#"{"prompt": "q", "chosen": "good", "rejected": "bad"}"#.to_owned(),
            r#"{"question": "q", "chosen": "good", "rejected": "bad", "system": ""}"#.to_owned(),
            format!(r#"{{"prompt": [{question}], "chosen": [{good}], "rejected": [{bad}]}}"#),
            format!(
                r#"{{"chosen": [{question}, {good}], "rejected": [{question}, {bad}], "score_chosen": 3}}"#
            ),
            format!(r#"{{"prompt": "q", "chosen": [{question}, {good}], "rejected": [{question}, {bad}]}}"#),
        ] {
            assert_eq!(sides(&json), ["u:q a:GOOD", "u:q a:BAD"], "{json}");
        }
        let system =
            format!(r#"{{"system": "s", "prompt": "q", "chosen": [{question}, {good}], "rejected": "bad"}}"#);
        assert_eq!(sides(&system), ["s:s u:q a:GOOD", "s:s u:q a:BAD"]);
        // Common answers are context.
        let first = answer("first");
        let turns = format!(
            r#"{{"chosen": [{question}, {first}, {question}, {good}], "rejected": [{question}, {first}, {question}, {bad}]}}"#
        );
        assert_eq!(sides(&turns), ["u:q a:first u:q a:GOOD", "u:q a:first u:q a:BAD"]);
    }

    #[test]
    fn what_is_no_pair_is_left_out_or_refused() {
        for (json, reason) in [
            (r#"{"prompt": "q", "chosen": "a", "rejected": "a"}"#, DropReason::EqualAnswers),
            (r#"{"prompt": "q", "chosen": "a", "rejected": " "}"#, DropReason::NothingToTrain),
            (r#"{"prompt": "q\uFDD0", "chosen": "a", "rejected": "b"}"#, DropReason::Reserved),
            (r#"{"chosen": [], "rejected": [{"role": "assistant", "content": "b"}]}"#, DropReason::Empty),
            (r#"{"prompt": "q", "chosen": [{"content": "a"}], "rejected": "b"}"#, DropReason::NoRole),
        ] {
            assert_eq!(read(json), Ok(Row::Dropped(reason)), "{json}");
        }
        for (json, says) in [
            ("{}", "this one has nothing"),
            (r#"{"prompt": "q", "chosen": "a", "rejected": null}"#, "one has \"chosen\" and \"rejected\""),
            (r#"{"chosen": "a", "rejected": "b"}"#, "nothing says what it answers"),
            (r#"{"prompt": "q", "chosen": 3, "rejected": "b"}"#, "\"chosen\" is a number, not a text"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(says), "{json}: {error}");
        }
    }
}
