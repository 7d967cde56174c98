//! Checks a run's names: the hash of its recipe, and the folder that is named after time, recipe and hash.

use super::files::RunFiles;
use crate::results::names::{ENVIRONMENT, RESOLVED, SUMMARY, folder_name, parse_run_name};

/// Digits of the hash in a run's name.
const HASH_LEN: usize = 8;

/// Digits of a hash shown in messages.
const SHOWN_DIGITS: usize = 12;

/// How long after its folder's time the process that began a run may have started, in seconds. It may also be
/// one second before, because the folder's time has whole seconds.
const MAX_START_DELAY_S: i64 = 600;

/// Returns a sentence for each contradiction.
pub fn differences(run: &RunFiles) -> Vec<String> {
    let mut found = Vec::new();
    let hash = run.summary.recipe_hash.as_str();
    let hashes = run.keys.hashes();
    if !hashes.iter().any(|possible| possible == hash) {
        let digits = |hash: &str| hash.get(..SHOWN_DIGITS).unwrap_or(hash).to_owned();
        found.push(format!(
            "{RESOLVED} has the hash {}, but {SUMMARY} says {}",
            digits(&hashes[0]),
            digits(hash)
        ));
    }
    if !folder_name(&run.summary.recipe).is_ok_and(|name| name == run.recipe) {
        found.push(format!(
            "{SUMMARY} names the recipe {:?}, but its folder names {:?}",
            run.summary.recipe, run.recipe
        ));
    }
    if run.summary.run != run.run {
        found.push(format!("{SUMMARY} names the run {:?}, but its folder is {:?}", run.summary.run, run.run));
    }
    let Some((time, name_hash)) = parse_run_name(&run.run) else {
        found.push(format!("the run's name {:?} is not a time and a hash", run.run));
        return found;
    };
    if name_hash != short(hash) {
        found.push(format!("the run's name has the hash {name_hash}, but {SUMMARY} says {}", short(hash)));
    }
    let late = run.environment.started.duration_since(time).as_secs();
    if !(-1..=MAX_START_DELAY_S).contains(&late) {
        found.push(format!(
            "the run's name has the time {}, but {ENVIRONMENT} says {}",
            time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            run.environment.started.strftime("%Y-%m-%dT%H:%M:%SZ")
        ));
    }
    found
}

fn short(hash: &str) -> &str {
    hash.get(..HASH_LEN).unwrap_or(hash)
}
