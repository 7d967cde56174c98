//! The list that `xrun runs` prints.

use super::columns::{Columns, TEXT, text_of};
use crate::cli::terminal::{eprint_line, print, print_exact, print_json_line};
use crate::error::{Error, Result};
use crate::format::{BLANK, plural};
use crate::results::Status;
use crate::results::collection::{Collection, Condition, Criterion, Field, Order, Run, to_csv};
use crate::results::find;
use crate::results::folder::{SUMMARY, folder_name, read_summary};
use crate::suggest::nearest;
use crate::sweep::Memberships;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Arguments of the list.
#[derive(clap::Args, Debug, Default, PartialEq)]
pub struct ListArgs {
    /// Only runs of this recipe, or runs for which this comparison holds: NAME=VALUE, or with != < <= > >=,
    /// in quotes. NAME is a recipe key, a figure of runs, or one of status, tag, recipe, run, started,
    /// device, commit, corpus, reason, forked_from, part_of.
    #[arg(value_name = "RECIPE | FILTER")]
    filters: Vec<String>,
    /// Only runs with one of these statuses, such as ok,interrupted.
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    status: Vec<Status>,
    /// Sort by a key, a figure or a word: losses and times lowest first, speeds highest first, runs newest
    /// first. -NAME reverses the order.
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    sort: Option<String>,
    /// Only the first N in the order of --sort, or of validation loss without it.
    #[arg(long, value_name = "N")]
    best: Option<usize>,
    /// The columns after the name of the run: keys, figures and words.
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with_all = ["json", "csv"])]
    columns: Vec<String>,
    /// Print JSON: one object per line, with the run's folder and whole summary.
    #[arg(long)]
    json: bool,
    /// Print CSV: one line per run, with all keys that differ between the runs and all figures.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// Lists runs.
///
/// # Errors
/// If the results folder cannot be read, or a filter, order or column names nothing that runs have.
pub fn run(args: &ListArgs, results: &Path) -> Result<()> {
    let mut collection = Collection::read(results)?;
    let memberships = Memberships::read(results);
    memberships.set_in(&mut collection);
    let collection = collection;
    for damaged in find::without_summary(results)? {
        eprint_line(&format!("warning: {}", find::describe_loss(&damaged, SUMMARY)));
    }
    for error in &collection.unreadable {
        eprint_line(&format!("warning: {error}; left out of the list"));
    }
    for error in &memberships.unreadable {
        eprint_line(&format!("warning: {error}; its runs are listed without it"));
    }
    let chosen = Chosen::parse(&args.filters, &collection, results)?;
    let order = args.sort.as_deref().or(args.best.map(|_| "val_loss"));
    let order = order.map(|order| Order::parse(order, &collection)).transpose()?;
    let fields = args.columns.iter().map(|name| Field::parse(name.trim(), &collection));
    let fields: Vec<Field> = fields.collect::<Result<_>>()?;
    let is_chosen =
        |run: &&Run| chosen.holds(run) && (args.status.is_empty() || args.status.contains(&run.status));
    let mut listed: Vec<&Run> = collection.runs.iter().filter(is_chosen).collect();
    if let Some(order) = &order {
        order.sort(&mut listed);
    }
    listed.truncate(args.best.unwrap_or(usize::MAX));
    if args.json {
        let lines: Vec<Value> = listed.iter().map(|run| as_json(run)).collect::<Result<_>>()?;
        return lines.iter().try_for_each(print_json_line);
    }
    if args.csv {
        return print_exact(&to_csv(&listed)?);
    }
    if listed.is_empty() {
        eprint_line(&match collection.runs.len() {
            0 => format!("no runs in {}", results.display()),
            all => format!("none of {all} run{} in {}", plural(all), results.display()),
        });
        return Ok(());
    }
    let compared = order.iter().map(|order| &order.field).chain(chosen.conditions.iter().map(|c| &c.field));
    let texts = |loss: &Field| -> usize {
        listed.iter().filter_map(|run| text_of(run, loss)).collect::<BTreeSet<String>>().len()
    };
    let unlike = compared.filter(|field| field.is_loss()).find(|loss| texts(loss) > 1);
    let columns = if fields.is_empty() { Columns::Usual(unlike.cloned()) } else { Columns::Chosen(fields) };
    print(&columns.table(&listed, &collection))?;
    if let Some(loss) = unlike {
        let hashed = match loss {
            Field::Figure { set: Some(_), .. } => "the tokens of the set",
            _ => "corpus and tokenizer",
        };
        eprint_line(&format!(
            "these losses were measured on {} different texts and cannot be compared: {TEXT} is the hash of \
             {hashed}, and the part used for validation",
            texts(loss)
        ));
    }
    let has_no_speed = |run: &&Run| {
        matches!(columns, Columns::Usual(_)) && run.status == Status::Ok && !run.entry.has_figure("tok_s")
    };
    if listed.iter().any(has_no_speed) {
        eprint_line(&format!(
            "{BLANK}: not measured; speed is taken from steps after the first metrics.warmup ones"
        ));
    }
    Ok(())
}

/// The runs that the words of the command line select.
struct Chosen {
    /// The folder of a recipe.
    recipe: Option<String>,
    conditions: Vec<Condition>,
}

impl Chosen {
    fn parse(filters: &[String], collection: &Collection, results: &Path) -> Result<Self> {
        let mut chosen = Self { recipe: None, conditions: Vec::new() };
        let mut named: Option<String> = None;
        for filter in filters {
            match Criterion::parse(filter, collection)? {
                Criterion::Condition(condition) => chosen.conditions.push(condition),
                Criterion::Recipe(name) => {
                    if let Some(other) = named.replace(name.clone()) {
                        return Err(Error::usage(format!(
                            "a run has one recipe, but `{other}` and `{name}` are two; a filter needs an operator, \
                             such as tag={name}"
                        )));
                    }
                    let folder = folder_name(&name).ok();
                    let has_runs = |folder: &String| collection.runs.iter().any(|run| run.recipe() == folder);
                    if !collection.runs.is_empty() && !folder.as_ref().is_some_and(has_runs) {
                        return Err(no_such_recipe(&name, results, collection));
                    }
                    chosen.recipe = folder;
                }
            }
        }
        Ok(chosen)
    }

    fn holds(&self, run: &Run) -> bool {
        self.recipe.as_ref().is_none_or(|recipe| run.recipe() == recipe)
            && self.conditions.iter().all(|condition| condition.holds(run))
    }
}

/// Returns the error for a recipe without runs; suggests the most similar recipe that has some.
fn no_such_recipe(name: &str, results: &Path, collection: &Collection) -> Error {
    let recipes: BTreeSet<&str> = collection.runs.iter().map(Run::recipe).collect();
    let hint = match nearest(name, recipes.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("there are runs of {}", recipes.into_iter().collect::<Vec<_>>().join(", ")),
    };
    Error::usage(format!("no run of recipe `{name}` in {}: {hint}", results.display()))
}

fn as_json(run: &Run) -> Result<Value> {
    let mut object = json!({
        "path": run.path,
        "name": run.name,
        "status": run.status.as_str(),
        "changed": run.entry.changed,
        "tags": run.annotation.tags,
        "note": run.annotation.note,
        "part_of": run.part_of,
    });
    let summary = serde_json::to_value(read_summary(&run.path)?)
        .map_err(|e| Error::failed(format!("cannot print {} as JSON: {e}", run.path.display())))?;
    if let (Value::Object(object), Value::Object(summary)) = (&mut object, summary) {
        for (key, value) in summary {
            // Keys of the list win: a dead process may have written a stale status.
            object.entry(key).or_insert(value);
        }
    }
    Ok(object)
}
