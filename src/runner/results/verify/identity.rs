//! The names of a run: the hash of its recipe, and the folder that is named after time, recipe and hash.

use super::files::RunFiles;
use crate::results::names::{ENVIRONMENT, RESOLVED, SUMMARY, folder_name, parts_of_run};

/// Digits of the hash in the name of a run.
const DIGITS: usize = 8;

/// Digits of a hash in messages.
const SHOWN_DIGITS: usize = 12;

/// The latest start of the process that began a run after its folder was made, in seconds; the earliest is a
/// second before, because the name has whole seconds.
const LATEST_START: i64 = 600;

/// Returns what does not agree.
pub fn differences(run: &RunFiles) -> Vec<String> {
    let mut found = Vec::new();
    let hash = run.summary.recipe_hash.as_str();
    let hashes = run.keys.hashes();
    if !hashes.iter().any(|possible| possible == hash) {
        let digits = |hash: &str| hash.get(..SHOWN_DIGITS).unwrap_or(hash).to_owned();
        found.push(format!(
            "{RESOLVED} has the hash {}, and {SUMMARY} says {}",
            digits(&hashes[0]),
            digits(hash)
        ));
    }
    if !folder_name(&run.summary.recipe).is_ok_and(|name| name == run.recipe) {
        found.push(format!(
            "{SUMMARY} is of the recipe {:?}, and the folder of {:?}",
            run.summary.recipe, run.recipe
        ));
    }
    if run.summary.run != run.run {
        found.push(format!("{SUMMARY} is of the run {:?}, and the folder of {:?}", run.summary.run, run.run));
    }
    let Some((time, of_hash)) = parts_of_run(&run.run) else {
        found.push(format!("the run's name {:?} is not a time and a hash", run.run));
        return found;
    };
    if of_hash != short(hash) {
        found.push(format!("the run's name has the hash {of_hash}, and {SUMMARY} says {}", short(hash)));
    }
    let late = run.environment.started.duration_since(time).as_secs();
    if !(-1..=LATEST_START).contains(&late) {
        found.push(format!(
            "the run's name has the time {}, and {ENVIRONMENT} says {}",
            time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            run.environment.started.strftime("%Y-%m-%dT%H:%M:%SZ")
        ));
    }
    found
}

fn short(hash: &str) -> &str {
    hash.get(..DIGITS).unwrap_or(hash)
}
