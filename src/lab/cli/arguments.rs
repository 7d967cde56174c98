//! Normalizes the shorthands of the command line before parsing, and suggests commands and keys for misspelt
//! ones.

use super::command::Cli;
use super::words::{first_word, takes_keys};
use crate::recipe::{self, without_dashes};
use crate::suggest::nearest;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, Parser};
use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;

/// `xrun RECIPE …` becomes `xrun run RECIPE …`; `xrun --results DIR COMMAND` becomes `xrun COMMAND --results
/// DIR`; `--section.key=value` and `--section.key value` become `section.key=value`.
pub fn normalize_args(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = without_dashes(arguments);
    if let Some(at) = first_word(&arguments) {
        if !is_subcommand(&arguments[at]) {
            arguments.insert(at, "run".into());
        }
        // Options before the command belong to it.
        arguments[1..=at].rotate_right(1);
    }
    arguments
}

/// Words that other programs use for our commands.
const SYNONYMS: [(&str, &str); 13] = [
    ("train", "run"),
    ("fit", "run"),
    ("status", "runs"),
    ("show", "runs"),
    ("list", "runs"),
    ("history", "runs"),
    ("ps", "runs"),
    ("generate", "sample"),
    ("continue", "resume"),
    ("new", "init"),
    ("bench", "profile"),
    ("grid", "sweep"),
    ("coord-check", "coordinates"),
];

/// Returns the subcommand that `word` probably means: one with that synonym, or one that is spelled
/// similarly.
pub fn nearest_command(word: &str) -> Option<String> {
    let command = Cli::command();
    let names =
        || command.get_subcommands().filter(|known| !known.is_hide_set()).map(clap::Command::get_name);
    let command_for_synonym =
        |word: &str| SYNONYMS.iter().find(|(other, _)| *other == word).map(|(_, name)| *name);
    let misspelt =
        |word| nearest(word, SYNONYMS.iter().map(|(other, _)| *other)).and_then(command_for_synonym);
    let name = command_for_synonym(word).or_else(|| nearest(word, names())).or_else(|| misspelt(word));
    name.map(str::to_owned)
}

/// Parses a command line. Exits with clap's message if it is invalid.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Cli {
    let arguments = with_home(normalize_args(arguments));
    Cli::try_parse_from(&arguments).unwrap_or_else(|e| suggest_key(e, &arguments).exit())
}

/// Puts the user's home folder in place of a leading `~` in options and words that are paths. A shell does so
/// only where a word begins, and not in `--out=~/shards`. The arguments are normalized.
fn with_home(arguments: Vec<OsString>) -> Vec<OsString> {
    let cli = Cli::command();
    let command = arguments.get(1).and_then(|word| cli.find_subcommand(word));
    let is_path = |arg: &Arg| arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    let option = |name: &str| {
        command.into_iter().flat_map(Command::get_arguments).find(|arg| arg.get_long() == Some(name))
    };
    let takes_path = command.into_iter().flat_map(Command::get_positionals).any(is_path);
    let mut before: Option<String> = None;
    let expand = |word: OsString| {
        let previous = before.take();
        let Some(text) = word.to_str().map(str::to_owned) else { return word };
        before = text.strip_prefix("--").filter(|name| !name.contains('=')).map(str::to_owned);
        if let Some((name, value)) = text.strip_prefix("--").and_then(|rest| rest.split_once('=')) {
            return match option(name).is_some_and(is_path) {
                true => format!("--{name}={}", recipe::expand_home(value)).into(),
                false => word,
            };
        }
        let is_value = previous.as_deref().and_then(option).filter(|arg| arg.get_action().takes_values());
        match is_value.map_or(takes_path, is_path) {
            true => recipe::expand_home(&text).into(),
            false => word,
        }
    };
    arguments.into_iter().map(expand).collect()
}

/// Suggests a recipe key for an unknown option of a command that takes keys, such as `training.steps=4` for
/// `--steps 4`. The arguments are normalized.
fn suggest_key(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    let cli = Cli::command();
    let name = arguments.get(1).and_then(|word| word.to_str());
    let command = name.and_then(|name| cli.find_subcommand(name));
    if error.kind() != ErrorKind::UnknownArgument || !command.is_some_and(takes_keys) {
        return error;
    }
    let has_similar = error.get(ContextKind::SuggestedArg).is_some();
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg).filter(|_| !has_similar)
    else {
        return error;
    };
    let name = option.trim_start_matches('-').replace('-', "_");
    let Some(key) = recipe::suggested_key(&name) else { return error };
    let option = option.as_str();
    let joined = |word: &OsString| Some(word.to_str()?.strip_prefix(option)?.strip_prefix('=')?.to_owned());
    let next = arguments.iter().skip_while(|word| *word != option).nth(1).and_then(|next| next.to_str());
    let next = next.filter(|next| !next.starts_with('-')).map(str::to_owned);
    let value = arguments.iter().find_map(joined).or(next);
    let assignment = format!("{key}={}", value.unwrap_or_else(|| "VALUE".to_owned()));
    let tip = StyledStr::from(format!("recipe keys are written section.key=value: {assignment}"));
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    error
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
        assert_eq!(normalized("xrun --results r a.toml"), "xrun run --results r a.toml");
        assert_eq!(normalized("xrun --seed 3 a.toml -q"), "xrun run --seed 3 a.toml -q");
        assert_eq!(normalized("xrun -q --results=r sample x"), "xrun sample -q --results=r x");
        assert_eq!(normalized("xrun --algos-from r a.toml"), "xrun run --algos-from r a.toml");
        assert_eq!(
            normalized("xrun --algos-from r --until 9 resume x"),
            "xrun resume --algos-from r --until 9 x"
        );
        assert_eq!(normalized("xrun --fork --at 9 resume x"), "xrun resume --fork --at 9 x");
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
        for (word, meant) in [
            ("sampel", "sample"),
            ("reprot", "report"),
            ("comapre", "compare"),
            ("int", "init"),
            ("train", "run"),
            ("trian", "run"),
            ("contineu", "resume"),
            ("status", "runs"),
            ("list", "runs"),
            ("show", "runs"),
        ] {
            assert_eq!(nearest_command(word).as_deref(), Some(meant));
        }
        for word in ["mine", "quickstrat", "dim38", ""] {
            assert_eq!(nearest_command(word), None, "{word}");
        }
    }

    #[test]
    fn an_option_that_is_a_key_is_suggested_as_one() {
        let refused = |line: &str| {
            let words: Vec<OsString> = normalize_args(line.split(' ').map(OsString::from));
            let error = Cli::try_parse_from(&words).unwrap_err();
            suggest_key(error, &words).to_string()
        };
        for (line, assignment) in [
            ("xrun quickstart --steps 4", "training.steps=4"),
            ("xrun quickstart --lr=1e-4", "optimizer.lr=1e-4"),
            ("xrun plan quickstart --local-batch-size", "training.local_batch_size=VALUE"),
        ] {
            let text = refused(line);
            assert!(text.contains(&format!("written section.key=value: {assignment}\n")), "{text}");
            assert!(!text.contains("as a value"), "{text}");
        }
        assert!(refused("xrun quickstart --quite").contains("'--quiet'"));
        for line in [
            "xrun quickstart --zebra",
            "xrun compare quickstart optimizer.lr=1 --confidence 95",
            "xrun export latest --dtype fp16",
            "xrun runs --limit 5",
            "xrun report --check --new run",
        ] {
            let text = refused(line);
            assert!(!text.contains("section.key=value:"), "{text}");
        }
    }
}
