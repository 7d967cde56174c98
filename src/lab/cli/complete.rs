//! `xrun complete LINE`, which completion scripts call to complete the last word of a command line.

use super::ls;
use super::terminal::print;
use super::words::{first_word, takes_keys};
use crate::error::Result;
use crate::model_text::texts;
use crate::recipe::{KEYS, Key, SECTIONS, Type, builtin, find_path};
use crate::results::collection::field_names;
use crate::results::find;
use clap::Command;
use std::collections::BTreeSet;
use std::path::Path;

/// Arguments of `xrun complete`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The command line up to the cursor.
    line: String,
}

/// Prints one candidate per line.
///
/// # Errors
/// If stdout cannot be written.
pub fn run(args: &Args, command: &Command) -> Result<()> {
    print(&candidates(&args.line, command).iter().map(|word| format!("{word}\n")).collect::<String>())
}

/// Returns the candidates for the last word of a line. Returns none where a file may stand, because shells
/// complete file names themselves.
fn candidates(line: &str, root: &Command) -> Vec<String> {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let last = if line.ends_with(char::is_whitespace) { "" } else { words.pop().unwrap_or_default() };
    let typed: Vec<_> = words.iter().map(|word| word.into()).collect();
    let mut found = match first_word(&typed) {
        None => at_first(last, root, &words),
        Some(at) => {
            let mut command = root.find_subcommand(words[at]);
            let mut rest = &words[at + 1..];
            if let Some(inner) = rest.first().and_then(|word| command?.find_subcommand(word)) {
                (command, rest) = (Some(inner), &rest[1..]);
            }
            // Without a command, the line is a run.
            match command {
                Some(command) => within(last, command, rest, &words),
                None => root
                    .find_subcommand("run")
                    .map_or_else(Vec::new, |run| within(last, run, &words[at..], &words)),
            }
        }
    };
    found.retain(|word| word.starts_with(last));
    found
}

/// Completes the first word: a command, or a recipe to run.
fn at_first(last: &str, root: &Command, words: &[&str]) -> Vec<String> {
    if last.starts_with('-') {
        return options(root);
    }
    subcommands(root).chain(recipes()).chain(runs(words)).collect()
}

fn subcommands(command: &Command) -> impl Iterator<Item = String> {
    let shown = command.get_subcommands().filter(|inner| !inner.is_hide_set());
    shown.map(|inner| inner.get_name().to_owned())
}

/// Completes a word after a command: `rest` holds the words between them, `words` all words of the line.
fn within(last: &str, command: &Command, rest: &[&str], words: &[&str]) -> Vec<String> {
    let option = |word: &&str| {
        let name = word.strip_prefix("--")?;
        command.get_arguments().find(|argument| argument.get_long() == Some(name))
    };
    if let Some(argument) = rest.last().and_then(option)
        && argument.get_action().takes_values()
        && argument.get_num_args().is_none_or(|range| range.min_values() > 0)
    {
        return complete_value(argument, last, words);
    }
    if last.starts_with('-') && !last.contains('.') {
        return options(command);
    }
    let mut positionals = command.get_positionals();
    let is_value = |at: usize| at > 0 && option(&rest[at - 1]).is_some_and(|a| a.get_action().takes_values());
    let before = (0..rest.len()).filter(|&at| !rest[at].starts_with('-') && !is_value(at)).count();
    if takes_keys(command) && (before > 0 || last.contains(['.', '='])) {
        return settings(last);
    }
    // The last positional may take several words.
    let takes_several = |last: &&clap::Arg| last.get_num_args().is_some_and(|range| range.max_values() > 1);
    let last_positional = command.get_positionals().last().filter(takes_several);
    let values =
        positionals.nth(before).or(last_positional).map(|positional| complete_value(positional, last, words));
    let subcommands = subcommands(command).filter(|_| before == 0);
    subcommands.chain(values.into_iter().flatten()).collect()
}

/// Completes the value of an option or positional argument, from its possible values or by its name in the
/// help.
fn complete_value(argument: &clap::Arg, last: &str, words: &[&str]) -> Vec<String> {
    let listed = argument.get_possible_values();
    if !listed.is_empty() {
        return listed.iter().map(|value| value.get_name().to_owned()).collect();
    }
    let name = argument.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
    match (argument.get_id().as_str(), name) {
        ("from", _) => builtin::names().map(str::to_owned).collect(),
        ("recipe", _) => recipes().chain(runs(words)).collect(),
        ("filters", _) => recipes_of_runs(words).into_iter().chain(fields(last, "=")).collect(),
        ("sort" | "columns", _) => fields(last, ""),
        (
            _,
            "RUN" | "OTHER" | "RUN|SWEEP|COMPARISON" | "RUN | KEY=VALUE" | "RUN|COMPARISON|PAGE" | "BEFORE",
        ) => runs(words).collect(),
        _ => Vec::new(),
    }
}

fn options(command: &Command) -> Vec<String> {
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    shown
        .filter_map(|argument| Some(format!("--{}", argument.get_long()?)))
        .chain(["--help".to_owned()])
        .collect()
}

/// Returns the built-in recipes and the recipes here.
fn recipes() -> impl Iterator<Item = String> {
    let here = ls::recipes_here().unwrap_or_default().into_iter();
    builtin::names().map(str::to_owned).chain(here.map(|path| path.display().to_string()))
}

/// Returns the names of runs in the results folder that the line names.
fn runs(words: &[&str]) -> impl Iterator<Item = String> {
    let runs = find::runs(results(words)).unwrap_or_default();
    let latest = (!runs.is_empty()).then(|| find::LATEST.to_owned());
    latest.into_iter().chain(find::short_names(&runs))
}

/// Returns the recipes that have runs.
fn recipes_of_runs(words: &[&str]) -> BTreeSet<String> {
    let runs = find::runs(results(words)).unwrap_or_default();
    runs.iter().filter_map(|run| Some(run.parent()?.file_name()?.to_string_lossy().into_owned())).collect()
}

/// Completes the name of a field of runs, followed by `sign`, or of a recipe key once its section is typed.
fn fields(last: &str, sign: &str) -> Vec<String> {
    // In a list of names the last one is completed; in `-NAME`, the part after the dash.
    let at =
        last.rfind([',', '-']).filter(|at| *at == 0 || last.as_bytes()[*at] == b',').map_or(0, |at| at + 1);
    let before = &last[..at];
    let sections = SECTIONS.iter().map(|(section, _)| format!("{before}{section}."));
    let named = field_names().map(|name| format!("{before}{name}{sign}"));
    match last.contains('.') {
        true => KEYS.iter().map(|key| format!("{before}{}{sign}", key.path)).collect(),
        false => named.chain(sections).collect(),
    }
}

/// Returns the results folder that the line names.
fn results<'a>(words: &[&'a str]) -> &'a Path {
    let named = words.iter().position(|word| *word == "--results").and_then(|at| words.get(at + 1));
    let joined = words.iter().find_map(|word| word.strip_prefix("--results="));
    Path::new(named.copied().or(joined).unwrap_or("results"))
}

/// Completes sections, keys of a section, or values of a key. What precedes the last comma or `=` is kept.
fn settings(last: &str) -> Vec<String> {
    let dashes = if last.starts_with("--") { "--" } else { "" };
    let text = &last[dashes.len()..];
    if let Some((path, value)) = text.split_once('=') {
        let before = value.rfind(',').map_or("", |comma| &value[..=comma]);
        let values = find_path(path).map(key_values).unwrap_or_default();
        return values.into_iter().map(|value| format!("{dashes}{path}={before}{value}")).collect();
    }
    if !text.contains('.') {
        return SECTIONS.iter().map(|(section, _)| format!("{dashes}{section}.")).collect();
    }
    KEYS.iter().map(|key| format!("{dashes}{}=", key.path)).collect()
}

fn key_values(key: &'static Key) -> Vec<&'static str> {
    match key.kind {
        Type::Bool => vec!["true", "false"],
        Type::Word(words)
        | Type::NameOrPath(words)
        | Type::NameOrPaths(words)
        | Type::WordOrFormula(words, _) => words.to_vec(),
        Type::ModelText => texts().map(|(name, _)| name).collect(),
        Type::CountOrWord { word, .. } => vec![word],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    fn complete(line: &str) -> Vec<String> {
        let mut root = Cli::command();
        root.build();
        candidates(line, &root)
    }

    #[test]
    fn words_are_completed_where_they_stand() {
        for (line, expected) in [
            ("xrun com", vec!["compare", "completions"]),
            ("xrun quick", vec!["quickstart"]),
            ("xrun plan qui", vec!["quickstart"]),
            ("xrun plan quickstart optimizer.l", vec!["optimizer.lr="]),
            ("xrun quickstart optimizer.l", vec!["optimizer.lr="]),
            ("xrun quickstart --optimizer.l", vec!["--optimizer.lr="]),
            ("xrun sweep quickstart optim", vec!["optimizer."]),
            ("xrun quickstart optimizer.name=s", vec!["optimizer.name=sgd"]),
            (
                "xrun sweep quickstart optimizer.name=adamw,",
                vec![
                    "optimizer.name=adamw,adamw",
                    "optimizer.name=adamw,lion",
                    "optimizer.name=adamw,sgd",
                    "optimizer.name=adamw,muon",
                ],
            ),
            ("xrun quickstart model.qk_norm=", vec!["model.qk_norm=true", "model.qk_norm=false"]),
            ("xrun init --from v", vec!["v8-dim1024", "v9-full-stack"]),
            ("xrun completions z", vec!["zsh"]),
            ("xrun ops c", vec!["check", "compile"]),
            ("xrun runs --sort val_l", vec!["val_loss", "val_loss_over_floor"]),
            ("xrun runs --sort -tok_s_", vec!["-tok_s_p25", "-tok_s_p75"]),
            ("xrun runs --columns wall_s,optimizer.l", vec!["wall_s,optimizer.lr"]),
            ("xrun runs --columns seeds.i,sta", vec![]),
            ("xrun runs --columns statu", vec!["status"]),
            ("xrun runs sta", vec!["started=", "status=", "startup_s="]),
            ("xrun runs status=ok model.di", vec!["model.dim="]),
            ("xrun runs di", vec!["diff"]),
            ("xrun runs status=ok dif", vec![]),
            ("xrun runs rm --f", vec!["--force"]),
            ("xrun plan --ex", vec!["--explain"]),
            ("xrun wor", vec![]),
            ("xrun export x --to ", vec![]),
        ] {
            assert_eq!(complete(line), expected, "{line}");
        }
        assert!(complete("xrun ").contains(&"quickstart".to_owned()));
        assert!(
            !complete("xrun ").contains(&"worker".to_owned())
                && !complete("xrun ").contains(&"complete".to_owned())
        );
        assert!(complete("xrun plan --results r dim").contains(&"dim768".to_owned()));
    }
}
