//! Shorthands of the command line, normalized before it is parsed; and suggestions for misspelt commands.

use super::command::Cli;
use crate::suggest::nearest;
use clap::CommandFactory;
use std::ffi::OsString;

/// `xrun RECIPE …` becomes `xrun run RECIPE …`; `--section.key=value` and `--section.key value` become
/// `section.key=value`.
pub fn normalize_args(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = without_dashes(arguments);
    if let Some(at) = first_word(&arguments)
        && !is_subcommand(&arguments[at])
    {
        arguments.insert(at, "run".into());
    }
    arguments
}

/// `--a.b=c` and `--a.b c` as `a.b=c`; anything else as it is.
fn without_dashes(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter().peekable();
    let mut spelled = Vec::new();
    while let Some(argument) = arguments.next() {
        let text = argument.to_str().and_then(|text| text.strip_prefix("--")).unwrap_or_default();
        let key = text.split_once('=').map_or(text, |(key, _)| key);
        let is_key = key.contains('.') && !key.contains(char::is_whitespace);
        spelled.push(match arguments.peek() {
            _ if !is_key => argument,
            _ if key.len() < text.len() => text.into(),
            Some(value) if !value.to_string_lossy().starts_with("--") => {
                let mut assignment = OsString::from(format!("{text}="));
                assignment.push(value);
                arguments.next();
                assignment
            }
            _ => argument,
        });
    }
    spelled
}

/// Returns the subcommand most similar to a misspelt `word`.
pub fn nearest_command(word: &str) -> Option<String> {
    let command = Cli::command();
    nearest(word, command.get_subcommands().map(|known| known.get_name())).map(str::to_owned)
}

/// Returns the index of the first argument that is neither an option nor an option's value.
fn first_word(arguments: &[OsString]) -> Option<usize> {
    let mut at = 1;
    while let Some(argument) = arguments.get(at) {
        let text = argument.to_string_lossy();
        if text == "--results" {
            at += 1;
        } else if !text.starts_with('-') {
            return Some(at);
        }
        at += 1;
    }
    None
}

fn is_subcommand(word: &OsString) -> bool {
    let command = Cli::command();
    word.to_str().is_some_and(|word| word == "help" || command.find_subcommand(word).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(line: &str) -> String {
        let words = normalize_args(line.split(' ').map(OsString::from));
        words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_recipe_alone_is_a_run() {
        assert_eq!(normalized("xrun a.toml training.steps=2"), "xrun run a.toml training.steps=2");
        assert_eq!(normalized("xrun --results r a.toml"), "xrun --results r run a.toml");
        assert_eq!(normalized("xrun plan a.toml"), "xrun plan a.toml");
        assert_eq!(normalized("xrun --version"), "xrun --version");
    }

    #[test]
    fn dashes_before_a_key_are_dropped() {
        assert_eq!(normalized("xrun a.toml --training.steps=2"), "xrun run a.toml training.steps=2");
        assert_eq!(normalized("xrun a.toml --training.steps 2 -q"), "xrun run a.toml training.steps=2 -q");
        assert_eq!(normalized("xrun a.toml --optimizer.lr -1"), "xrun run a.toml optimizer.lr=-1");
        assert_eq!(
            normalized("xrun a.toml --model.qk_norm --json"),
            "xrun run a.toml --model.qk_norm --json"
        );
        assert_eq!(normalized("xrun a.toml --model.qk_norm"), "xrun run a.toml --model.qk_norm");
        assert_eq!(normalized("xrun sample r --prompt=a.b=c"), "xrun sample r --prompt=a.b=c");
    }
    #[test]
    fn a_misspelt_command_has_a_nearest_one() {
        for (word, meant) in
            [("sampel", "sample"), ("reprot", "report"), ("comapre", "compare"), ("int", "init")]
        {
            assert_eq!(nearest_command(word).as_deref(), Some(meant));
        }
        for word in ["mine", "quickstrat", "dim38", ""] {
            assert_eq!(nearest_command(word), None, "{word}");
        }
    }
}
