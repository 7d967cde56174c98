//! Shorthands of the command line, normalized before it is parsed; and suggestions for misspelt commands.

use super::command::Cli;
use super::words::{first_word, without_dashes};
use crate::suggest::nearest;
use clap::CommandFactory;
use std::ffi::OsString;

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

/// Words for a command that other programs use.
const SYNONYMS: [(&str, &str); 12] = [
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
];

/// Returns the subcommand that a `word` probably means: another word for it, or a misspelt one.
pub fn nearest_command(word: &str) -> Option<String> {
    let synonym = SYNONYMS.iter().find(|(other, _)| *other == word).map(|(_, command)| (*command).to_owned());
    synonym.or_else(|| {
        let command = Cli::command();
        let names =
            command.get_subcommands().filter(|known| !known.is_hide_set()).map(clap::Command::get_name);
        nearest(word, names).map(str::to_owned)
    })
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
}
