//! Wrong recipes. The tables say which keys an error names, what it points at, and a word of its advice;
//! whole messages are in [`messages`].

mod contradictions;
mod formats;
mod formulas;
mod messages;
mod optimizers;
mod values;

use std::path::Path;
use xrun::error::{Error, ErrorKind};
use xrun::machine::Machine;
use xrun::recipe;

/// Returns the error of a recipe that must be refused.
fn refused(text: &str, settings: &[&str], env: &[(&str, &str)]) -> Error {
    let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let error = recipe::load_str(Path::new("wrong.toml"), text, &settings, env, &Machine::none())
        .expect_err("a wrong recipe");
    assert_eq!(error.kind(), ErrorKind::Usage);
    error
}

/// Returns the keys (with spaces between) and the place of each problem of an error.
fn found(error: &Error) -> Vec<(String, &str)> {
    let problems = error.problems().iter();
    problems.map(|problem| (problem.keys.join(" "), problem.place.as_deref().unwrap_or_default())).collect()
}

/// Checks the only problem of an error: its keys, its place, and words of the message.
fn check(error: &Error, keys: &str, place: &str, says: &str) {
    assert_eq!(found(error), [(keys.to_owned(), place)], "{error}");
    assert!(error.message().contains(says), "no {says:?} in: {error}");
}

/// Checks recipe files: text, keys, `LINE:COLUMN`, and words of the message.
fn check_files(cases: &[(&str, &str, &str, &str)]) {
    for (text, keys, place, says) in cases {
        check(&refused(text, &[], &[]), keys, &format!("wrong.toml:{place}"), says);
    }
}

/// Checks command lines: settings, keys, the column in the setting at fault, and words of the message.
fn check_settings(cases: &[(&[&str], &str, usize, &str)]) {
    for (settings, keys, column, says) in cases {
        check(&refused("", settings, &[]), keys, &format!("command line:1:{column}"), says);
    }
}
