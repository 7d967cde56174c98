//! `xrun runs`.

use super::terminal::{eprint_line, print};
use super::what::Results;
use super::words::without_dashes;
use crate::error::{Error, IoContext, Result};
use crate::format::{BLANK, Column, Table, decimal, short, thousands};
use crate::results::folder::{ENVIRONMENT, SUMMARY, folder_name};
use crate::results::provenance::Environment;
use crate::results::{Status, Summary, find};
use crate::suggest::nearest;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Arguments of `xrun runs`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only runs of this recipe.
    #[arg(value_name = "RECIPE")]
    recipe: Option<String>,
    /// Only runs with one of these statuses, such as ok,interrupted.
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    status: Vec<Shown>,
    /// The order: best or newest first.
    #[arg(long, value_name = "COLUMN", value_enum)]
    sort: Option<Sort>,
    /// Only the N best by --sort; by validation loss without it.
    #[arg(long, value_name = "N")]
    best: Option<usize>,
    #[command(flatten)]
    results: Results,
    /// Print JSON: one object per line, with the run's folder and whole summary.
    #[arg(long)]
    json: bool,
}

/// What runs are sorted by.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// Start, the newest first.
    Started,
    /// Recipe.
    Recipe,
    /// Steps, most first.
    Steps,
    /// Training loss, lowest first.
    Loss,
    /// Validation loss, lowest first.
    ValLoss,
    /// Tokens per second, most first.
    TokS,
}

/// The status of a run, as it is listed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Ok,
    Running,
    Interrupted,
    /// Its process ended without a word.
    Killed,
    Unsaved,
    Failed,
    Oom,
    Diverged,
}

/// A run in the list.
#[derive(Debug)]
struct Listed {
    path: PathBuf,
    /// The shortest name that finds it.
    name: String,
    status: Shown,
    summary: Summary,
    /// The keys that its command line set.
    changed: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// When the results folder cannot be read.
pub fn run(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    let paths = find::runs(results)?;
    for damaged in find::without_summary(results)? {
        eprint_line(&format!("warning: {}", find::lost(&damaged, SUMMARY)));
    }
    let mut listed = Vec::new();
    for (path, name) in paths.iter().zip(find::short_names(&paths)) {
        let Some(summary) = find::summary_or_warn(path) else { continue };
        if args.recipe.as_deref().is_some_and(|recipe| !is_of(path, recipe)) {
            continue;
        }
        let status = status(path, summary.status)?;
        if args.status.is_empty() || args.status.contains(&status) {
            let path = path.clone();
            listed.push(Listed { name, status, summary, changed: changed(&path), path });
        }
    }
    if let Some(recipe) = args.recipe.as_deref().filter(|recipe| !paths.iter().any(|run| is_of(run, recipe)))
        && !paths.is_empty()
    {
        return Err(no_such_recipe(recipe, results, &paths));
    }
    if listed.is_empty() && !args.json {
        eprint_line(&match paths.len() {
            0 => format!("no runs in {}", results.display()),
            all => format!("none of {all} runs in {}", results.display()),
        });
        return Ok(());
    }
    let sort = args.sort.unwrap_or(if args.best.is_some() { Sort::ValLoss } else { Sort::Started });
    // They come newest first, and keep that order where they are equal.
    listed.sort_by(|a, b| compare(a, b, sort));
    listed.truncate(args.best.unwrap_or(usize::MAX));
    if args.json {
        let lines: Result<Vec<String>> = listed.iter().map(json_line).collect();
        return print(&lines?.concat());
    }
    print(&table(&listed))?;
    if listed.iter().any(|run| run.summary.tok_s.is_none() && run.status == Shown::Ok) {
        eprint_line(&format!(
            "{BLANK} was not measured: a speed takes steps after the first metrics.warmup ones"
        ));
    }
    Ok(())
}

/// Returns true for a run of a recipe.
fn is_of(run: &Path, recipe: &str) -> bool {
    let folder = run.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    folder.is_some() && folder == folder_name(recipe).ok().as_deref()
}

/// Returns the error for a recipe that has no runs, with the most similar one that has some.
fn no_such_recipe(name: &str, results: &Path, runs: &[PathBuf]) -> Error {
    let recipes: BTreeSet<String> = runs
        .iter()
        .filter_map(|run| Some(run.parent()?.file_name()?.to_string_lossy().into_owned()))
        .collect();
    let near = nearest(name, recipes.iter().map(String::as_str));
    let hint = match near {
        Some(near) => format!("did you mean {near}?"),
        None => format!("there are runs of {}", recipes.into_iter().collect::<Vec<_>>().join(", ")),
    };
    Error::usage(format!("no run of a recipe `{name}` in {}: {hint}", results.display()))
}

/// Returns a setting as a shell takes it: in quotes where it has more than letters, digits and signs.
fn quoted(setting: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-._/+=@:,%[]".contains(c);
    match setting.split_once('=') {
        Some((key, value)) if value.is_empty() || !value.chars().all(is_plain) => {
            format!("{key}='{}'", value.replace('\'', "'\\''"))
        }
        _ => setting.to_owned(),
    }
}

/// Returns the status of a run: a dead process cannot have written its own.
fn status(run: &Path, written: Status) -> Result<Shown> {
    Ok(match written {
        Status::Running if find::is_running(run)? => Shown::Running,
        Status::Running => Shown::Killed,
        Status::Ok => Shown::Ok,
        Status::Interrupted => Shown::Interrupted,
        Status::Unsaved => Shown::Unsaved,
        Status::Failed => Shown::Failed,
        Status::Oom => Shown::Oom,
        Status::Diverged => Shown::Diverged,
    })
}

/// Returns the settings on the command line of a run; none where it is not recorded.
fn changed(run: &Path) -> Vec<String> {
    let path = run.join(ENVIRONMENT);
    let environment = std::fs::read(&path).at("read", &path).and_then(|bytes| {
        serde_json::from_slice::<Environment>(&bytes).map_err(|e| Error::failed(e.to_string()))
    });
    let Ok(environment) = environment else { return Vec::new() };
    let words = without_dashes(environment.command.into_iter().map(Into::into));
    let mut words = words.iter().map(|word| word.to_string_lossy().into_owned());
    let mut changed = Vec::new();
    while let Some(word) = words.next() {
        let seed = word.strip_prefix("--seed=").map(str::to_owned);
        let seed = if word == "--seed" { words.next() } else { seed };
        if let Some(seed) = seed {
            changed.push(format!("training.seed={seed}"));
        } else if !word.starts_with('-') && word.contains('=') {
            changed.push(word);
        }
    }
    changed
}

/// Returns the order of two runs; those without a value come last.
fn compare(a: &Listed, b: &Listed, sort: Sort) -> Ordering {
    let lowest = |figure: fn(&Summary) -> Option<f64>| {
        let key = |run: &Listed| figure(&run.summary).filter(|x| x.is_finite()).unwrap_or(f64::INFINITY);
        key(a).total_cmp(&key(b))
    };
    match sort {
        Sort::Started => Ordering::Equal,
        Sort::Recipe => a.summary.recipe.cmp(&b.summary.recipe),
        Sort::Steps => b.summary.steps.cmp(&a.summary.steps),
        Sort::Loss => lowest(loss),
        Sort::ValLoss => lowest(val_loss),
        Sort::TokS => lowest(|summary| summary.tok_s.map(|tok_s| -tok_s)),
    }
}

fn loss(summary: &Summary) -> Option<f64> {
    summary.train_loss.smoothed.map(|smoothed| smoothed.loss)
}

fn val_loss(summary: &Summary) -> Option<f64> {
    summary.val_loss.last.map(|last| last.loss.into())
}

fn word(status: Shown) -> String {
    status.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn table(listed: &[Listed]) -> String {
    use Column::{Left, Right};
    let mut table = Table::new(&[Left, Left, Left, Left, Right, Right, Right, Right, Left]);
    table.row(["RUN", "RECIPE", "STARTED (UTC)", "STATUS", "STEPS", "LOSS", "VAL LOSS", "TOK/S", "CHANGED"]);
    for Listed { path, name, status, summary, changed } in listed {
        let steps = match summary.steps {
            steps if steps == summary.steps_planned => thousands(steps as usize),
            steps => {
                format!("{} of {}", thousands(steps as usize), thousands(summary.steps_planned as usize))
            }
        };
        table.row([
            name.clone(),
            path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned(),
            started(&summary.run),
            word(*status),
            steps,
            decimal(loss(summary), 4),
            decimal(val_loss(summary), 4),
            summary.tok_s.map_or_else(|| BLANK.to_owned(), short),
            changed.iter().map(|setting| quoted(setting)).collect::<Vec<_>>().join(" "),
        ]);
    }
    table.render(0)
}

/// Returns the time in a run's name, `20261122T110113Z-…`, to the minute.
fn started(run: &str) -> String {
    let part = |from: usize, to: usize| run.get(from..to).unwrap_or_default();
    format!("{}-{}-{} {}:{}", part(0, 4), part(4, 6), part(6, 8), part(9, 11), part(11, 13))
}

fn json_line(run: &Listed) -> Result<String> {
    let mut object = json!({
        "path": run.path, "name": run.name, "status": word(run.status), "changed": run.changed,
    });
    let summary = serde_json::to_value(&run.summary)
        .map_err(|e| Error::failed(format!("cannot print {} as JSON: {e}", run.path.display())))?;
    if let (Value::Object(object), Value::Object(summary)) = (&mut object, summary) {
        for (key, value) in summary {
            // What is listed is more than what a dead process wrote.
            object.entry(key).or_insert(value);
        }
    }
    Ok(format!("{object}\n"))
}
