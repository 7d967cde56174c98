//! Tells how far a submitted comparison is, and cancels it.

use super::submit::folder_prefix;
use super::submitted_comparison::SubmittedComparison;
use crate::compare::report;
use crate::error::{Error, IoContext, Result};
use crate::format::plural;
use crate::results::experiment::{COMPARISONS, Experiment};
use crate::results::ledger::SWEEPS;
use crate::sweep::{self, SUBMITTED, Submission, status_of_cells};
use std::path::Path;

/// Describes how far the submitted comparisons called `name` are. Writes nothing. `ssh_command` is the
/// command of the user's own settings.
///
/// # Errors
/// A usage error if there is none. Fails if the submissions or the ledger cannot be read.
pub fn status(results: &Path, name: &str, ssh_command: &[String]) -> Result<String> {
    let mut text = String::new();
    for folder in submitted(results, name)? {
        let newest = Submission::<SubmittedComparison>::all(results, &folder)?.pop();
        let Some(SubmittedComparison { comparison, keys, .. }) = newest.map(|one| one.content.work) else {
            continue;
        };
        let title = comparison.as_deref().unwrap_or(name);
        let record = comparison.as_ref().map(|name| results.join(COMPARISONS).join(name));
        match record.map(|folder| Experiment::read(&folder)).transpose()? {
            Some(experiment) if experiment.finished => {
                text += &format!("{title}: answered\n{}", report(&experiment));
            }
            _ => {
                let count = keys.len();
                let counted = status_of_cells(results, &folder, &keys, ssh_command)?;
                let runs =
                    if count > 0 { format!("{count} run{}", plural(count)) } else { "timed runs".into() };
                text += &format!("{title}: {runs}\n{counted}");
            }
        }
    }
    Ok(text)
}

/// Ends the tasks of the submitted comparisons called `name`. Returns how many tasks that were.
/// `ssh_command` is the command of the user's own settings.
///
/// # Errors
/// A usage error if there is none. Fails if the batch system does not answer.
pub fn cancel(results: &Path, name: &str, ssh_command: &[String]) -> Result<usize> {
    submitted(results, name)?.iter().map(|folder| sweep::cancel(results, folder, ssh_command)).sum()
}

/// Returns the names of the folders with submissions of the comparisons called `name`, which may be a path or
/// `NAME/ID`.
fn submitted(results: &Path, name: &str) -> Result<Vec<String>> {
    let inside = name.rsplit_once(COMPARISONS).map_or(name, |(_, rest)| rest).trim_matches('/');
    let prefix = folder_prefix(inside);
    let above = results.join(SWEEPS).join(SUBMITTED);
    let mut found = Vec::new();
    if above.is_dir() {
        for entry in std::fs::read_dir(&above).at("read", &above)? {
            let folder = entry.at("read", &above)?.file_name().to_string_lossy().into_owned();
            let rest = folder.strip_prefix(&prefix);
            found.extend(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('+')).then_some(folder));
        }
    }
    found.sort();
    if found.is_empty() {
        return Err(Error::usage(format!("no comparison {name:?} was submitted in {}", results.display())));
    }
    Ok(found)
}
