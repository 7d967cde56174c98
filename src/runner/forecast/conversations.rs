//! Prints what a plan knows of conversations.

use crate::data::ChatFacts;
use crate::format::{percent, plural, printable, shortened, thousands};
use std::fmt;

/// Most characters of an example that are shown.
const SHOWN: usize = 400;

/// Writes the facts about the conversations of a source, whose name is empty for a corpus that is one source.
/// In the examples, what is trained on stands in ⟦ ⟧.
pub(super) fn write_chat(f: &mut fmt::Formatter<'_>, source: &str, chat: &ChatFacts) -> fmt::Result {
    let of = if source.is_empty() { String::new() } else { format!("{source}: ") };
    writeln!(
        f,
        "  {of}{} {}{} by {}: {} of {} tokens are trained on ({}); the longest has {} ({})",
        thousands(chat.examples),
        if chat.pairs { "pair" } else { "conversation" },
        plural(chat.examples),
        chat.template,
        thousands(chat.trained_tokens),
        thousands(chat.tokens),
        percent(chat.trained_tokens as f64 / chat.tokens.max(1) as f64),
        thousands(chat.longest),
        chat.longest_at
    )?;
    for example in &chat.shown {
        let part = |(trained, text): &(bool, String)| {
            let text = printable(&text.replace('\n', "\\n")).into_owned();
            if *trained { format!("⟦{text}⟧") } else { text }
        };
        let text: String = example.parts.iter().map(part).collect();
        writeln!(f, "    {}: {}", example.place, shortened(&text, SHOWN))?;
    }
    Ok(())
}
