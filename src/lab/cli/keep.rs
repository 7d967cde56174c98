//! `xrun keep`: keeps a run, a comparison with its runs, or the rows of a sweep; and removes what no page
//! names.

use super::named::Named;
use super::terminal::{eprint_line, print};
use super::what::Results;
use crate::compare;
use crate::error::{Error, Result};
use crate::format::plural;
use crate::results::experiment::{self, COMPARISONS, Experiment};
use crate::results::folder::{KEPT, SWEEPS};
use crate::results::ledger::Ledger;
use crate::results::{find, keep};
use crate::sweep;
use std::path::{Path, PathBuf};

/// Arguments of `xrun keep`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to keep: a run (its folder or name, a recipe's name for its newest run, or `latest`), a
    /// comparison with its runs (its folder or id, or `comparisons/NAME` for the newest one), or the rows of
    /// a sweep (`sweeps/NAME`).
    #[arg(required_unless_present = "prune")]
    run: Option<String>,
    /// Where kept runs go [default: RESULTS/kept].
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Where results are.
    #[command(flatten)]
    results: Results,
    /// List kept folders, shared files and figures that no page below the current folder names in a block or
    /// a link. Pages are Markdown, HTML, notebooks and the like, in any folder but git's own.
    #[arg(long, conflicts_with = "run")]
    prune: bool,
    /// Remove what --prune lists.
    #[arg(long, requires = "prune")]
    yes: bool,
}

/// Runs the command. Prints where the files are, or what is removed.
///
/// # Errors
/// If a run cannot be found or kept; with `--prune`, if a page cannot be read or one of its blocks cannot be
/// rendered.
pub fn run(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    let to = args.to.clone().unwrap_or_else(|| results.join(KEPT));
    let Some(name) = &args.run else { return prune(&to, args.yes) };
    let (run, comparison) = (find::find(results, name), find::find_comparison(results, name)?);
    // A comparison is kept after its runs, which nothing names until then.
    let _held = keep::hold(&to, keep::Use::Adds)?;
    let kept = match (run, comparison) {
        // If a recipe and its comparisons share a name, it means the run.
        (Ok(run), _) => keep::keep(&run, &to)?,
        (Err(_), Some(comparison)) => {
            for run in experiment::compared_runs(&comparison)? {
                // A stored run may have been kept long ago and deleted here since.
                if results.join(&run).is_dir() || !to.join(&run).is_dir() {
                    keep::keep(&find::find(results, &run)?, &to)?;
                }
            }
            let record = Experiment::read(&comparison)?;
            let mut found = compare::contradictions_of_place(&record, &comparison, results)?;
            found.extend(compare::contradictions(&record, &to));
            if !found.is_empty() {
                return Err(Error::failed(format!(
                    "{} does not agree with its runs: {}. Its record was changed after it was written; restore it, or \
                     compare again",
                    comparison.display(),
                    found.join("; ")
                )));
            }
            keep::keep_comparison(&comparison, &to)?
        }
        (Err(error), None) => match sweep::find(results, name)? {
            Some(folder) => sweep::keep(results, &folder, &to)?,
            None => return Err(find::unknown_group_error(results, name)?.unwrap_or(error)),
        },
    };
    let bytes: u64 = kept.manifest.files.iter().map(|file| file.bytes).sum();
    let what = if kept.was_kept { "already kept, unchanged" } else { "kept" };
    let files = kept.manifest.files.len();
    let id = kept.folder.strip_prefix(&to).unwrap_or(&kept.folder).display();
    eprint_line(&format!("{what}: {id}, {files} file{}, {} KiB", plural(files), bytes.div_ceil(1024)));
    if let Some(hint) = keep_hint(results, &id.to_string()) {
        eprint_line(&hint);
    }
    print(&format!("{}\n", kept.folder.display()))?;
    Ok(())
}

/// If the run `id` (`RECIPE/RUN`) is part of a comparison or a sweep, returns how to keep the whole. The
/// ledger has the runs of both.
fn keep_hint(results: &Path, id: &str) -> Option<String> {
    let (recipe, _) = id.split_once('/')?;
    let has_run = |folder: &PathBuf| {
        experiment::compared_runs(folder).is_ok_and(|runs| runs.iter().any(|run| run.as_str() == id))
    };
    if let Some(comparison) = find::comparisons(results).ok()?.into_iter().find(has_run) {
        let name = comparison.strip_prefix(results.join(COMPARISONS)).ok()?.display();
        return Some(format!(
            "this run is part of the comparison {name}; `xrun keep {COMPARISONS}/{name}` keeps it with \
             all its runs"
        ));
    }
    let ledger = Ledger::read(results).ok()?;
    let is_cell = ledger.lines().iter().any(|line| line.run.as_deref() == Some(id));
    is_cell.then(|| {
        format!("this run is a cell of a sweep; `xrun keep {SWEEPS}/{recipe}` keeps the rows of all cells")
    })
}

/// Lists what no page uses, and removes it if `yes`.
fn prune(kept: &Path, yes: bool) -> Result<()> {
    // What is kept meanwhile could share files with what is removed.
    let _held = keep::hold(kept, keep::Use::Removes)?;
    let named = Named::read(Path::new("."), kept)?;
    let is_shown = |figure: &Path| {
        let inside = figure.strip_prefix(kept).unwrap_or(figure).to_string_lossy();
        named.figure(figure, &inside)
    };
    let unused = keep::unused(kept, &|id| named.folder(id), &is_shown)?;
    for thing in &unused {
        print(&format!("{}: {} KiB\n", thing.path.display(), thing.bytes.div_ceil(1024)))?;
        if yes {
            thing.remove()?;
        }
    }
    let mib = unused.iter().map(|thing| thing.bytes).sum::<u64>() as f64 / f64::from(1 << 20);
    eprint_line(&match (unused.len(), yes) {
        (0, _) => "pages name everything that is kept".to_owned(),
        (count, true) => format!("removed {count}, {mib:.1} MiB"),
        (count, false) => format!("no page names these {count} ({mib:.1} MiB); --yes removes them"),
    });
    Ok(())
}
