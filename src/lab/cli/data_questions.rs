//! `xrun data questions`: conversations about generated stories, to fine-tune on and to be asked.

use super::terminal::eprint_line;
use crate::atomic;
use crate::data::chat::CHAT_TEMPLATE;
use crate::data::stories::{CHAT_TEMPLATE_OF_QUESTIONS, QuestionStories, StoryQuestions};
use crate::error::{Error, IoContext, Result};
use crate::format::thousands;
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;

/// The recipe that fine-tunes on what the command writes.
const RECIPE: &str = include_str!("../../../recipes/story-questions.toml");

/// Arguments of `xrun data questions`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folder for the conversations, the unseen questions, the chat template and a recipe; created, and
    /// refused if it exists.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Stories to train on, each with all of its questions in one conversation.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    stories: u32,
    /// Stories whose questions are left unseen. Which stories are follows from their text.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    unseen: u32,
    /// Seed of the stories.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Runs the command.
///
/// # Errors
/// If the folder exists, or a file cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let out = &args.out;
    if out.exists() {
        return Err(Error::usage(format!("{} exists; name a folder that does not", out.display())));
    }
    let (mut train, mut unseen) = (Vec::new(), Vec::new());
    for story in QuestionStories::new(args.seed) {
        let (side, count) =
            if story.is_unseen() { (&mut unseen, args.unseen) } else { (&mut train, args.stories) };
        if side.len() < count as usize {
            side.push(story);
        }
        if (train.len(), unseen.len()) == (args.stories as usize, args.unseen as usize) {
            break;
        }
    }
    std::fs::create_dir_all(out).at("create", out)?;
    let items: Vec<String> = unseen.iter().map(items).collect();
    for (name, text) in [
        ("train.jsonl", train.iter().map(conversation).collect::<String>()),
        ("unseen.jsonl", items.concat()),
        (CHAT_TEMPLATE, CHAT_TEMPLATE_OF_QUESTIONS.to_owned()),
        ("recipe.toml", RECIPE.to_owned()),
    ] {
        atomic::write(&out.join(name), text.as_bytes())?;
    }
    eprint_line(&format!(
        "{}: {} conversations to train on, {} unseen questions about {} other stories",
        out.display(),
        thousands(train.len()),
        thousands(unseen.iter().map(|story| story.questions.len()).sum()),
        thousands(unseen.len())
    ));
    Ok(())
}

/// Returns a line with all questions about a story as one conversation. The story stands before the first.
fn conversation(story: &StoryQuestions) -> String {
    let mut messages = Vec::new();
    for (i, asked) in story.questions.iter().enumerate() {
        let question = match i {
            0 => format!("{}\n{}", story.story, asked.question),
            _ => asked.question.clone(),
        };
        messages.push(json!({"role": "user", "content": question}));
        messages.push(json!({"role": "assistant", "content": asked.answer}));
    }
    format!("{}\n", json!({ "messages": messages }))
}

/// Returns a line for each question about a story.
fn items(story: &StoryQuestions) -> String {
    let mut lines = String::new();
    for asked in &story.questions {
        let item = json!({
            "story": story.story, "kind": asked.kind, "question": asked.question, "answer": asked.answer
        });
        // Writing to a string does not fail.
        let _ = writeln!(lines, "{item}");
    }
    lines
}
