//! What is known about the words of a command line before it is parsed.

use clap::{Arg, Command};
use std::ffi::OsString;

/// The options of `xrun run` and `xrun resume` whose value is a word of its own.
const WITH_VALUE: [&str; 5] = ["--results", "--seed", "--algos-from", "--until", "--at"];

/// Returns the index of the first argument that is neither an option nor an option's value.
pub(super) fn first_word(arguments: &[OsString]) -> Option<usize> {
    let mut at = 1;
    while let Some(argument) = arguments.get(at) {
        let text = argument.to_string_lossy();
        if WITH_VALUE.contains(&text.as_ref()) {
            at += 1;
        } else if !text.starts_with('-') {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Returns true if a command takes `section.key=value`.
pub(super) fn takes_keys(command: &Command) -> bool {
    let names = command.get_positionals().filter_map(Arg::get_value_names);
    names.flatten().any(|name| name.contains("KEY=VALUE"))
}
