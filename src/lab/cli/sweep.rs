//! `xrun sweep`: runs every combination of some values once.

use super::cluster::{ClusterArgs, TaskArgs};
use super::run::Show;
use super::terminal::{print, print_json, print_json_text, seconds};
use super::what::{Results, Seed, recipe_path};
use crate::error::{Error, Result};
use crate::executor::Limits;
use crate::format::plural;
use crate::ranks::environment;
use crate::report::sweep_plots;
use crate::results::ledger::CellStatus;
use crate::sweep::{self, Request};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `xrun sweep`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recipe: a file, a built-in recipe, or a run whose recipe is used again.
    pub recipe: PathBuf,
    /// Keys to sweep, as `section.key=value,value`, or keys that change together, as
    /// `section.key,section.key=value:value,value:value`. A key with one value is set in every cell.
    #[arg(value_name = "KEY=VALUES")]
    pub arguments: Vec<String>,
    /// Print the cells with their plans and run nothing.
    #[arg(long, conflicts_with_all = ["status", "cancel"])]
    pub dry_run: bool,
    /// Cells at once on the CPU; on a GPU cells go one at a time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: u16,
    /// Run cells with these statuses again, such as failed,timeout.
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    pub retry: Vec<CellStatus>,
    /// End a cell that writes no row for this long, counting the time until its first row.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub hang: Option<Duration>,
    /// End a cell that takes longer than this.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub timeout: Option<Duration>,
    /// The seeds, separated by commas.
    #[command(flatten)]
    pub seed: Seed,
    /// Where results are.
    #[command(flatten)]
    pub results: Results,
    /// How progress is shown.
    #[command(flatten)]
    pub show: Show,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Runs the command.
///
/// # Errors
/// If [`sweep::run`] fails or the plots cannot be drawn.
pub fn run(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    if args.cluster.looks() {
        return look_at_submitted(args);
    }
    let recipe = recipe_path(&args.recipe, results)?;
    if args.retry.contains(&CellStatus::Running) {
        return Err(Error::usage("--retry running: a running cell cannot be run again"));
    }
    let batch = args.cluster.batch_system()?;
    let request = Request {
        recipe: &recipe,
        arguments: &args.seed.on(&args.arguments),
        results,
        jobs: args.jobs.into(),
        retry: &args.retry,
        limits: Limits { hang: args.hang, timeout: args.timeout },
        progress: args.show.mode(),
        machine: batch.as_ref().map_or_else(environment::machine, |(settings, _)| settings.machine.clone()),
        batch: batch.as_ref().map(|(_, system)| system.as_ref()),
    };
    if args.dry_run {
        let show = if args.show.json { print_json_text } else { print };
        return show(&sweep::dry_run(&request, args.show.json)?);
    }
    if let Some((settings, system)) = &batch {
        let submitted = sweep::submit(&request, settings, system.as_ref(), &args.cluster.ssh_command()?)?;
        return print(&format!("{}\n", submitted.in_words()));
    }
    let ended = sweep::run(&request)?;
    let drawn = draw(&ended.folder);
    ended.outcome?;
    drawn
}

fn draw(sweep: &Path) -> Result<()> {
    let drawn = sweep_plots::render(sweep);
    drawn.map_err(|e| Error::failed(format!("the sweep is complete, but its plots cannot be drawn: {e}")))
}

/// Prints how far a submitted sweep is, or cancels it.
fn look_at_submitted(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    let name = args.recipe.to_string_lossy();
    let folder = sweep::find(results, &name)?.ok_or_else(|| {
        Error::usage(format!("{} has no sweep {name:?}; name one of its folder sweeps/", results.display()))
    })?;
    let ssh_command = args.cluster.ssh_command()?;
    if args.cluster.status {
        let status = sweep::status(results, &folder, &ssh_command)?;
        if args.show.json {
            return print_json(&status);
        }
        let (name, cells) = (&status.name, status.cells);
        return print(&format!("{name}: {cells} cell{}\n{status}", plural(cells)));
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let count = sweep::cancel(results, &name, &ssh_command)?;
    print(&format!("ended {count} task{}\n", plural(count)))
}

/// Runs a task of a submitted sweep.
///
/// # Errors
/// If [`sweep::run_task`] fails or the plots cannot be drawn.
pub fn run_task(args: &TaskArgs) -> Result<()> {
    let ended = sweep::run_task(&args.submission, args.task)?;
    ended.map_or(Ok(()), |sweep| draw(&sweep))
}
