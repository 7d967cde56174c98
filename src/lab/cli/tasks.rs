//! `xrun tasks`: lists the tasks, and shows what one asks of a model.

use super::terminal::{print, print_json_text};
use crate::data::Tokenizer;
use crate::error::{Error, Result};
use crate::format::{Column, Table, thousands};
use crate::recipe::expand_home;
use crate::statistics::PlannedScores;
use crate::tasks::{self, Asked, Beginning, Definition, Encoder, Loaded, Prepared, Question, Rules};
use serde::Serialize;
use std::path::PathBuf;

/// Requests that are printed at a time.
const PRINTED: usize = 256;

/// Arguments of `xrun tasks`.
#[derive(clap::Args, Debug)]
#[command(disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List the tasks that xrun brings, and the sets of them.
    List,
    /// Show how a task asks; with its files, its first prompt, or every request as tokens.
    Show(Show),
}

/// Arguments of `xrun tasks show`.
#[derive(clap::Args, Debug)]
struct Show {
    /// A task, or the path of a definition ending in .toml.
    #[arg(value_name = "TASK")]
    task: String,
    /// The folder with the task files, as downloaded from the HuggingFace hub.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// "gpt2", "byte", "stories" or the path of a tokenizer.json.
    #[arg(long, value_name = "TOKENIZER", default_value = "gpt2")]
    tokenizer: String,
    /// Examples in front of each item.
    #[arg(long, value_name = "N")]
    shots: Option<usize>,
    /// Only this many items of each configuration.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Tokens that the model reads at once.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    max_len: u32,
    /// Print every request as a line of JSON: its item, and the tokens that are read and scored. A prompt
    /// that the model continues has none that are scored.
    #[arg(long, requires = "data")]
    requests: bool,
}

/// Right answers of an item that are shown.
const SHOWN_ANSWERS: usize = 8;

/// A request as it is printed.
#[derive(Serialize)]
struct Printed<'p> {
    task: &'p str,
    configuration: &'p str,
    /// Hash of the item.
    item: &'p str,
    /// File of the item, and its line there.
    file: String,
    line: usize,
    /// Number of the request among those of its item, from 0.
    request: usize,
    gold: Option<usize>,
    /// Tokens that were cut off on the left.
    dropped: usize,
    context: &'p [u32],
    continuation: &'p [u32],
}

/// Runs the command.
///
/// # Errors
/// If there is no such task, or its files cannot be read or do not follow its definition.
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::List => list(),
        Command::Show(args) => show(args),
    }
}

fn list() -> Result<()> {
    let mut table = Table::new(&[Column::Left, Column::Left, Column::Left]);
    for name in tasks::names() {
        let task = tasks::find(name)?;
        table.row([name.to_owned(), task.scoring.metric.word().to_owned(), task.title]);
    }
    let sets = tasks::SETS.iter().map(|(name, tasks)| format!("{name}: {}\n", tasks.join(", ")));
    let seen = [100, 500, 2000, 10_000].map(|items| match sees(items) {
        Some(points) => format!("{} items {points}", thousands(items)),
        None => String::new(),
    });
    print(&format!(
        "{}\nSets:\n{}\nA difference in accuracy that {SEEN_WHEN}: {}\n",
        table.render(0),
        sets.collect::<String>(),
        seen.join(", ")
    ))
}

/// Says when a difference of two checkpoints is seen.
const SEEN_WHEN: &str =
    "is found between two checkpoints in 80 % of cases (accuracy 0.5, answers with a correlation of 0.5)";

/// Returns the smallest difference in accuracy that this many items show, in words; `None` if they show none.
fn sees(items: usize) -> Option<String> {
    let seen = PlannedScores::from_accuracy(items, 0.5).smallest_seen(0.95)?;
    (seen < 1.0).then(|| format!("{:.1} points", 100.0 * seen))
}

fn show(args: &Show) -> Result<()> {
    let mut selected = tasks::select([args.task.as_str()])?;
    let (Some(task), true) = (selected.pop(), selected.is_empty()) else {
        return Err(Error::usage(format!("{} is a set of tasks; name one task", args.task)));
    };
    let shots = args.shots.unwrap_or(task.examples.count);
    let Some(data) = &args.data else { return print(&in_words(&task)) };
    let tokenizer = Tokenizer::open(&expand_home(&args.tokenizer))?;
    let encoder = Encoder::new(&tokenizer, Beginning::as_published(&tokenizer), args.max_len as usize);
    let prepared = Loaded::read(&task, data, shots, args.limit)?.prepare(&encoder, shots, args.limit)?;
    if args.requests { print_requests(&task, &prepared) } else { print_first(&task, &prepared, &tokenizer) }
}

/// Describes a definition.
fn in_words(task: &Definition) -> String {
    let source = &task.source;
    let configurations = match source.configurations.as_slice() {
        [] => String::new(),
        [one] => format!(", configuration {one}"),
        several => format!(", {} configurations", several.len()),
    };
    let chance = task.scoring.chance.map_or_else(|| "1 / choices".to_owned(), |chance| chance.to_string());
    let mut table = Table::new(&[Column::Left, Column::Left]);
    table.row(["asks", &task.title]);
    table.row(["published", &task.citation]);
    table.row(["follows", &task.follows]);
    table.row(["items", &format!("{}{configurations}, split {}", source.repository, source.split)]);
    table.row(["examples", &format!("split {}, {} by default", task.examples.split, task.examples.count)]);
    table.row(["figure", task.scoring.metric.word()]);
    table.row(["chance", &chance]);
    table.row(["definition", &task.hash]);
    format!("{}\n{}", task.name, table.render(2))
}

fn print_first(task: &Definition, prepared: &Prepared, tokenizer: &Tokenizer) -> Result<()> {
    let tokens = |asked: &Asked| match asked {
        Asked::Scores(requests) => {
            requests.iter().map(|one| one.context.len() + one.continuation.len()).sum()
        }
        Asked::Text(prompt) => prompt.len(),
    };
    let tokens: usize = prepared.items.iter().map(|item| tokens(&item.asked)).sum();
    let mut text = in_words(task);
    let [items, requests, tokens] = [prepared.items.len(), prepared.asked(), tokens].map(thousands);
    text += &format!("  {items} items, {requests} requests, {tokens} tokens\n");
    for file in &prepared.files {
        text += &format!("  {} ({} rows, BLAKE3 {})\n", file.path.display(), thousands(file.rows), file.hash);
    }
    if prepared.cut_items() > 0 {
        text +=
            &format!("  {} items are cut on the left to fit the model\n", thousands(prepared.cut_items()));
    }
    let clusters = prepared.clusters();
    if let Some(points) = sees(clusters).filter(|_| task.scoring.metric.is_accuracy()) {
        let shared = match clusters == prepared.items.len() {
            true => String::new(),
            false => format!("; the items share {} passages", thousands(clusters)),
        };
        text += &format!("  a difference of {points} {SEEN_WHEN}{shared}\n");
    }
    if let Some(first) = prepared.items.first() {
        text += "\nThe first item:\n";
        let gold = first.item.question.gold();
        let marks = matches!(first.item.question, Question::Choices { .. } | Question::Contexts { .. });
        if let (Asked::Text(prompt), Question::Generation { answers, .. }) =
            (&first.asked, &first.item.question)
        {
            text += &format!("--- 1\n{}▶\n", tokenizer.decode(prompt)?);
            text += "The model continues after ▶. ";
            let shown: Vec<String> =
                answers.iter().take(SHOWN_ANSWERS).map(|one| format!("{one:?}")).collect();
            let more = answers.len() - shown.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            text += &format!("Right: {}{more}\n", shown.join(", "));
        }
        for (i, request) in first.asked.requests().iter().enumerate() {
            let mark = if marks && gold == Some(i) { " (right)" } else { "" };
            let context = tokenizer.decode(&request.context)?;
            let continuation = tokenizer.decode_after(&request.context, &request.continuation)?;
            text += &format!("--- {}{mark}\n{context}▶{continuation}\n", i + 1);
        }
        if task.rules == Rules::Core {
            text += "What all prompts share is read; what follows ▶ is scored.\n";
        }
    }
    print(&text)
}

fn print_requests(task: &Definition, prepared: &Prepared) -> Result<()> {
    let configurations = task.configurations();
    for items in prepared.items.chunks(PRINTED) {
        let mut text = String::new();
        for made in items {
            let asked: Vec<(&[u32], &[u32])> = match &made.asked {
                Asked::Scores(requests) => {
                    requests.iter().map(|one| (&one.context[..], &one.continuation[..])).collect()
                }
                Asked::Text(prompt) => vec![(prompt, &[])],
            };
            for (number, (context, continuation)) in asked.into_iter().enumerate() {
                let item = &made.item;
                let printed = Printed {
                    task: &task.name,
                    configuration: configurations[item.configuration],
                    item: &item.hash,
                    file: prepared.files[item.file].path.display().to_string(),
                    line: item.line,
                    request: number,
                    gold: item.question.gold(),
                    dropped: made.dropped,
                    context,
                    continuation,
                };
                let line = serde_json::to_string(&printed);
                text += &line.map_err(|e| Error::failed(format!("cannot write JSON: {e}")))?;
                text.push('\n');
            }
        }
        print_json_text(&text)?;
    }
    Ok(())
}
