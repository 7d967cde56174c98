//! `xrun replay`: runs stored runs and comparisons again from their recorded recipes.

use super::terminal::{eprint_line, print, print_json_line, seconds};
use super::what::Results;
use crate::error::{Error, ErrorKind, Result};
use crate::format::plural;
use crate::ranks::Stop;
use crate::replay::{self, Binaries, Entry, Outcome, PageEntries, Recording, Replay, Setting, Target};
use clap::builder::PathBufValueParser;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `xrun replay`.
///
/// Exit codes: 0 if nothing differs, including what is not judged; 3 if something differs; 1 if something
/// could not be run again; 2 for an invalid command line; 75 if a signal stopped it.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A run or a comparison, stored or kept, by any of its names; or a Markdown page, for every kept run and
    /// comparison that its blocks show.
    #[arg(value_name = "RUN|COMPARISON|PAGE")]
    what: String,
    /// Build the recorded commit in the git repository of the current folder, and run its binary.
    #[arg(long)]
    build: bool,
    /// Run commands that a comparison recorded as an arm, with `sh -c`.
    #[arg(long)]
    commands: bool,
    /// Keep the new runs in this results folder [default: a temporary one, removed unless something differs].
    #[arg(long, value_name = "DIR", value_parser = PathBufValueParser::new())]
    into: Option<PathBuf>,
    /// Stop a run that takes longer than this; it counts as failed.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<Duration>,
    /// Where results are.
    #[command(flatten)]
    results: Results,
    /// Print one line of JSON per run or comparison.
    #[arg(long)]
    json: bool,
}

/// Runs the command. Prints each conclusion, with the evidence.
///
/// # Errors
/// Exits with 3 if something differs, with 1 if something could not be run again, and with 2 if nothing has
/// that name.
pub fn run(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    let is_page = Path::new(&args.what).extension().is_some_and(|extension| extension == "md");
    let PageEntries { entries, problems } = match is_page {
        true => replay::entries(Path::new(&args.what), results)?,
        false => only(replay::find(results, &args.what)?),
    };
    if entries.is_empty() && problems.is_empty() {
        return Err(Error::usage(format!("{} has no block that shows a kept run or comparison", args.what)));
    }
    let targets: Vec<&Target> = entries.iter().filter_map(|entry| entry.target.as_ref().ok()).collect();
    let recordings: Vec<Recording> =
        targets.iter().map(|target| replay::recording(target, results)).collect::<Result<_>>()?;
    recordings.iter().for_each(|recording| eprint_line(&recording.says));
    if is_page && !recordings.is_empty() {
        eprint_line(&Recording::total(&recordings));
    }
    let scratch = tempfile::Builder::new().prefix("xrun-replay-").tempdir();
    let scratch = scratch.map_err(|e| Error::failed(format!("cannot make a temporary folder: {e}")))?;
    let stop = Stop::on_signals(Some("stopping the run; a second signal stops it at once"))?;
    let setting = Setting {
        results,
        into: args.into.as_deref().unwrap_or(scratch.path()),
        runs_commands: args.commands,
        timeout: args.timeout,
        stop: &stop,
    };
    let mut binaries = Binaries::new(args.build)?;
    let mut ended = Vec::new();
    for Entry { id, target } in &entries {
        let replay = match target {
            Ok(target) => replay::replay(target, &setting, &mut binaries)?,
            Err(why) => Replay::not_run(id, why),
        };
        show(&replay, args.json)?;
        ended.push(replay);
    }
    if args.into.is_none() && ended.iter().any(|replay| replay.outcome.is_difference()) {
        eprint_line(&format!("the new runs are in {}", scratch.keep().display()));
    }
    conclude(&ended, &problems)
}

/// Wraps a single target as if it were a page that shows nothing else.
fn only(target: Target) -> PageEntries {
    PageEntries { entries: vec![Entry { id: String::new(), target: Ok(target) }], problems: Vec::new() }
}

fn show(replay: &Replay, as_json: bool) -> Result<()> {
    if as_json { print_json_line(replay) } else { print(&replay.in_words()) }
}

/// Returns the error that sums up all replays, if any.
fn conclude(ended: &[Replay], problems: &[String]) -> Result<()> {
    problems.iter().for_each(|problem| eprint_line(problem));
    let count = |is: &dyn Fn(Outcome) -> bool| ended.iter().filter(|replay| is(replay.outcome)).count();
    let (differ, failed) = (count(&Outcome::is_difference), count(&|outcome| outcome == Outcome::Failed));
    let of = format!("of {} replay{}", ended.len(), plural(ended.len()));
    if differ > 0 {
        return Err(Error::new(
            ErrorKind::Regression,
            format!("{differ} {of} differ{}", if differ == 1 { "s" } else { "" }),
        ));
    }
    if failed > 0 {
        return Err(Error::failed(format!("{failed} {of} failed")));
    }
    match problems.len() {
        0 => Ok(()),
        count => Err(Error::failed(format!(
            "{count} block{} cannot be read; `xrun report --check` says more",
            plural(count)
        ))),
    }
}
