//! Two shorthands of the command line, spelled out before it is parsed.

use super::Cli;
use clap::CommandFactory;
use std::ffi::OsString;

/// `xrun RECIPE …` becomes `xrun run RECIPE …`, and `--section.key=value` becomes `section.key=value`.
pub fn spelled_out(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().map(without_dashes).collect();
    if let Some(at) = first_word(&arguments)
        && !is_subcommand(&arguments[at])
    {
        arguments.insert(at, "run".into());
    }
    arguments
}

/// `--a.b=c` as `a.b=c`; anything else as it is.
fn without_dashes(argument: OsString) -> OsString {
    let key_value = argument.to_str().and_then(|text| text.strip_prefix("--")).filter(|text| {
        text.split_once('=').is_some_and(|(key, _)| key.contains('.') && !key.contains(char::is_whitespace))
    });
    match key_value {
        Some(text) => text.into(),
        None => argument,
    }
}

/// The index of the first argument that is neither an option nor an option's value.
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

    fn spelled(line: &str) -> String {
        let words = spelled_out(line.split(' ').map(OsString::from));
        words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_recipe_alone_is_a_run() {
        assert_eq!(spelled("xrun a.toml training.steps=2"), "xrun run a.toml training.steps=2");
        assert_eq!(spelled("xrun --results r a.toml"), "xrun --results r run a.toml");
        assert_eq!(spelled("xrun plan a.toml"), "xrun plan a.toml");
        assert_eq!(spelled("xrun --version"), "xrun --version");
    }

    #[test]
    fn dashes_before_a_key_are_dropped() {
        assert_eq!(spelled("xrun a.toml --training.steps=2"), "xrun run a.toml training.steps=2");
        assert_eq!(spelled("xrun sample r --prompt=a.b=c"), "xrun sample r --prompt=a.b=c");
    }
}
