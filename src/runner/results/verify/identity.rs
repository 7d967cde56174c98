//! Checks a run's names: the hash of its recipe, and the folder that is named after time, recipe and hash.

use super::files::RunFiles;
use crate::results::names::{ENVIRONMENT, HASH_LEN, RESOLVED, SUMMARY, folder_name, parse_run_name};

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
        found.push(format!(
            "{RESOLVED} has the hash {}, but {SUMMARY} says {}",
            first(&hashes[0], SHOWN_DIGITS),
            first(hash, SHOWN_DIGITS)
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
    let recorded = first(hash, HASH_LEN);
    if name_hash != recorded {
        found.push(format!("the run's name has the hash {name_hash}, but {SUMMARY} says {recorded}"));
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

/// Returns the first digits of a hash, or the whole hash if it has fewer.
fn first(hash: &str, digits: usize) -> &str {
    hash.get(..digits).unwrap_or(hash)
}
