//! `xrun runs`.

use super::terminal::{eprint_line, print};
use super::what::Results;
use crate::error::{Error, IoContext, Result};
use crate::format::{BLANK, Column, Table, decimal, short, thousands};
use crate::recipe::{self, COPY_HEADER, set_in_copy, without_dashes};
use crate::results::folder::{ENVIRONMENT, RECIPE, SUMMARY, folder_name};
use crate::results::provenance::Environment;
use crate::results::{Status, Summary, find};
use crate::suggest::nearest;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
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
    /// The keys that its command line set, after those that command lines of the runs set that it is a run
    /// of again.
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
    let mut names = BTreeMap::new();
    for (path, name) in paths.iter().zip(find::short_names(&paths)) {
        let id = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        names.insert(id, name.clone());
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
    let by_loss = matches!(sort, Sort::Loss | Sort::ValLoss);
    if args.json {
        let lines: Result<Vec<String>> = listed.iter().map(json_line).collect();
        return print(&lines?.concat());
    }
    let texts: BTreeSet<String> = listed.iter().filter_map(|run| text_of(&run.summary)).collect();
    let unlike = by_loss && texts.len() > 1;
    print(&table(&listed, &names, unlike))?;
    if unlike {
        eprint_line(&format!(
            "these are losses on {} texts, which do not compare with each other: TEXT is the hash of corpus and tokenizer, \
             and the part that validation takes",
            texts.len()
        ));
    }
    if listed.iter().any(|run| run.summary.tok_s.is_none() && run.status == Shown::Ok) {
        eprint_line(&format!(
            "{BLANK} was not measured: a speed takes steps after the first metrics.warmup ones"
        ));
    }
    Ok(())
}

/// Returns what the losses of a run are measured on, where it has any: the hash of corpus and tokenizer, and
/// the part of the held-out text.
fn text_of(summary: &Summary) -> Option<String> {
    val_loss(summary).or(loss(summary))?;
    let hash = summary.corpus_hash.as_deref()?;
    let part = summary.val_part.map(|part| format!(" {}/{}", part.batches, part.of)).unwrap_or_default();
    Some(format!("{}{part}", hash.get(..8).unwrap_or(hash)))
}

/// Returns what a reader has to know of a run beside its figures.
fn remarks(summary: &Summary, names: &BTreeMap<String, String>) -> String {
    let fork = summary.forked_from.as_ref().map(|fork| {
        let name = names.get(&fork.run).unwrap_or(&fork.run);
        format!("fork of {name} at step {}", fork.step)
    });
    let contended = summary.gpu.as_ref().is_some_and(|gpu| gpu.contended == Some(true));
    let marks = [
        (contended, "contended"),
        (summary.never_settled(), "speed never settled"),
        (summary.worse_than_guessing().is_some(), "worse than guessing"),
    ];
    let marks = marks.into_iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| mark.to_owned());
    fork.into_iter().chain(marks).collect::<Vec<_>>().join(", ")
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

/// Returns the settings that the recipe file of a run does not have: those of the runs that it is a run of
/// again, and then those on its own command line, as typed.
fn changed(run: &Path) -> Vec<String> {
    let typed = typed(run);
    let key = |setting: &str| {
        let path = setting.split_once('=').map_or(setting, |(path, _)| path);
        recipe::find_path(path).map_or_else(|| path.to_owned(), |key| key.path.to_owned())
    };
    let own: BTreeSet<String> = typed.iter().map(|setting| key(setting)).collect();
    let copy = std::fs::read_to_string(run.join(RECIPE)).unwrap_or_default();
    let inherited = if copy.starts_with(COPY_HEADER) { set_in_copy(&copy) } else { Vec::new() };
    let inherited = inherited.into_iter().filter(|set| !own.contains(&set.key));
    inherited.map(|set| format!("{}={}", set.key, set.value)).chain(typed).collect()
}

/// Returns the settings on the command line of a run; none where it is not recorded.
fn typed(run: &Path) -> Vec<String> {
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

/// Returns the list. Columns of remarks and of the text that losses are on are there where they tell
/// something.
fn table(listed: &[Listed], names: &BTreeMap<String, String>, with_text: bool) -> String {
    use Column::{Left, Right};
    let with_remarks = listed.iter().any(|run| !remarks(&run.summary, names).is_empty());
    let optional = [(with_text, "TEXT"), (with_remarks, "REMARKS")];
    let optional: Vec<&str> =
        optional.into_iter().filter(|(shown, _)| *shown).map(|(_, name)| name).collect();
    let mut columns = vec![Left, Left, Left, Left, Right, Right, Right, Right];
    columns.extend(optional.iter().map(|_| Left).chain([Left]));
    let mut table = Table::new(&columns);
    let heading = ["RUN", "RECIPE", "STARTED (UTC)", "STATUS", "STEPS", "LOSS", "VAL LOSS", "TOK/S"];
    table.row(heading.into_iter().chain(optional.iter().copied()).chain(["CHANGED"]));
    for Listed { path, name, status, summary, changed } in listed {
        let steps = match summary.steps {
            steps if steps == summary.steps_planned => thousands(steps as usize),
            steps => {
                format!("{} of {}", thousands(steps as usize), thousands(summary.steps_planned as usize))
            }
        };
        let optional = optional.iter().map(|column| match *column {
            "TEXT" => text_of(summary).unwrap_or_else(|| BLANK.to_owned()),
            _ => remarks(summary, names),
        });
        let cells = [
            name.clone(),
            path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned(),
            started(&summary.run),
            word(*status),
            steps,
            decimal(loss(summary), 4),
            decimal(val_loss(summary), 4),
            summary.tok_s.map_or_else(|| BLANK.to_owned(), short),
        ];
        let changed = changed.iter().map(|setting| quoted(setting)).collect::<Vec<_>>().join(" ");
        table.row(cells.into_iter().chain(optional).chain([changed]));
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
