//! `xrun runs rm RUN…`.

use crate::cli::terminal::{eprint_line, print};
use crate::error::{Error, Result};
use crate::format::plural;
use crate::report::blocks;
use crate::results::collection::{Located, LockedRun, Reference, Referrers, locate, remove};
use crate::results::find;
use std::collections::hash_map::{Entry, HashMap};
use std::path::{Path, PathBuf};

/// Arguments of `xrun runs rm`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The runs: folders, names, prefixes of names or hashes, or `latest`.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<String>,
    /// Also remove runs that pages, comparisons, sweeps or other runs name.
    #[arg(long)]
    force: bool,
}

/// Removes all of the runs or none.
///
/// # Errors
/// If a run is missing or is running, or is named elsewhere and `--force` is not given.
pub fn run(args: &Args, results: &Path) -> Result<()> {
    let mut runs: Vec<PathBuf> = Vec::new();
    for name in &args.runs {
        let run = single(results, name)?;
        if !runs.contains(&run) {
            runs.push(run);
        }
    }
    let pages = blocks::pages(Path::new(""))?;
    let mut named = Vec::new();
    let located = runs.iter().map(|run| locate(run)).collect::<Result<Vec<_>>>()?;
    let goes_too = |reference: &Reference| matches!(reference, Reference::Fork(fork) if locate(fork).is_ok_and(|fork| located.contains(&fork)));
    // Runs usually share one results folder, so its references are read once.
    let mut referrers: HashMap<&Path, Referrers> = HashMap::new();
    for (run, Located { results, id }) in runs.iter().zip(&located) {
        let referrers = match referrers.entry(results) {
            Entry::Occupied(read) => read.into_mut(),
            Entry::Vacant(unread) => unread.insert(Referrers::read(results, &pages)?),
        };
        let mut found = referrers.find(id);
        found.retain(|reference| !goes_too(reference));
        if !found.is_empty() {
            let lines: String = found.iter().map(|reference| format!("\n    {reference}")).collect();
            named.push(format!("{} is named by{lines}", run.display()));
        }
    }
    if !args.force && !named.is_empty() {
        return Err(Error::usage(format!(
            "{}\nnothing was removed; --force removes {} anyway",
            named.join("\n"),
            if named.len() == 1 { "it" } else { "them" }
        )));
    }
    // Lock all runs before removing the first one.
    let doomed = runs.iter().map(|run| LockedRun::lock(run)).collect::<Result<Vec<_>>>()?;
    named.iter().for_each(|named| eprint_line(named));
    let count = doomed.len();
    for doomed in doomed {
        let path = doomed.run.display().to_string();
        remove(doomed)?;
        print(&format!("{path}\n"))?;
    }
    eprint_line(&format!("removed {count} run{}", plural(count)));
    Ok(())
}

/// Returns the one run that a name means. A recipe's name does not stand for its newest run here, because
/// removal cannot be undone.
///
/// # Errors
/// Fails with a usage error if there is no such run.
fn single(results: &Path, name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if find::has_summary(path) {
        return Ok(path.to_owned());
    }
    if let Some(damaged) = find::find_without_summary(results, name)? {
        return Ok(damaged);
    }
    match find::find_by_id(results, name)? {
        Some(run) => Ok(run),
        None => Err(match find::find(results, name) {
            Ok(newest) => Error::usage(format!(
                "`{name}` is a recipe; name one of its runs, such as {}, the newest",
                newest.display()
            )),
            Err(error) => error,
        }),
    }
}
