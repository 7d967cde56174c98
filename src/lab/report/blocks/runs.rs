//! Tables and plots of kept runs.

use super::columns::{self, Column};
use super::kept::{self, KeptRun, unreadable};
use super::page_context::{PageContext, Rendered};
use super::spec::Spec;
use super::text::{did_you_mean, kept_names, plain, table};
use super::why::Why;
use super::{alike, provenance};
use crate::metrics::{self, Metric};
use crate::report::plots;
use crate::results::find;
use crate::results::folder::{PLOTS, RESOLVED};
use crate::results::summary::Status;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Returns the runs that a block selects: in the order of its names, newest first.
pub fn select(context: &PageContext<'_>, spec: &Spec) -> Result<Vec<KeptRun>, Vec<Why>> {
    let all = find::runs(context.kept).map_err(|e| unreadable(context.kept, &e))?;
    let mut chosen: Vec<PathBuf> = Vec::new();
    for name in &spec.select {
        let matching: Vec<&PathBuf> = all.iter().filter(|run| is_selected(context.kept, run, name)).collect();
        if matching.is_empty() {
            return Err(vec![nothing_kept(context.kept, &all, name)]);
        }
        let mut taken: BTreeMap<&Path, usize> = BTreeMap::new();
        for run in matching {
            if !passes(run, &spec.filters)? {
                continue;
            }
            let taken_of_recipe = taken.entry(run.parent().unwrap_or(Path::new(""))).or_default();
            *taken_of_recipe += 1;
            if spec.newest.is_none_or(|newest| *taken_of_recipe <= newest) && !chosen.contains(run) {
                chosen.push(run.clone());
            }
        }
        if taken.is_empty() {
            let filters: Vec<String> =
                spec.filters.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let why = format!("no kept run of `{name}` has {}", filters.join(", "));
            return Err(vec![Why::fixed_by(why, "keep one with `xrun keep`, or correct `where`")]);
        }
    }
    chosen.iter().map(|folder| KeptRun::read(context.kept, folder)).collect()
}

/// Returns true if a name selects this run: its recipe's name, its own, or `RECIPE/RUN`.
fn is_selected(kept: &Path, run: &Path, name: &str) -> bool {
    let id = kept::id(kept, run);
    id == name || id.split('/').any(|part| part == name)
}

fn passes(run: &Path, filters: &[(String, String)]) -> Result<bool, Vec<Why>> {
    if filters.is_empty() {
        return Ok(true);
    }
    let values = kept::recipe_values(run).map_err(|e| unreadable(&run.join(RESOLVED), &e))?;
    let same = |value: &String, wanted: &String| {
        value == wanted
            || matches!((value.parse::<f64>(), wanted.parse::<f64>()), (Ok(value), Ok(wanted)) if value == wanted)
    };
    Ok(filters.iter().all(|(key, wanted)| values.get(key).is_some_and(|value| same(value, wanted))))
}

fn nothing_kept(kept: &Path, all: &[PathBuf], name: &str) -> Why {
    let ids: Vec<String> = all.iter().map(|run| kept::id(kept, run)).collect();
    let near = did_you_mean(name, ids.iter().flat_map(|id| id.split('/').chain([id.as_str()])));
    let recipes = ids.iter().filter_map(|id| id.split('/').next());
    let near = if near.is_empty() { kept_names(name, recipes) } else { near };
    let why = format!("no run `{name}` is kept in {}{near}", kept.display());
    Why::fixed_by(why, format!("xrun keep {name}, or correct `select`"))
}

/// Renders a table of runs.
pub fn render(context: &PageContext<'_>, spec: &Spec, columns: &[Column]) -> Result<Rendered, Vec<Why>> {
    let runs = select(context, spec)?;
    check_sets(&runs, columns)?;
    let rows: Vec<alike::Row> = runs.iter().map(alike::run_facts).collect();
    let (differences, faults) = alike::compare(&rows, &spec.across);
    let mut headings = vec!["recipe".to_owned()];
    headings.extend(columns.iter().map(|column| column.heading()));
    headings.push("run".to_owned());
    let cells = |run: &KeptRun| {
        let mut cells = vec![plain(run.recipe())];
        cells.extend(columns.iter().map(|column| columns::run_cell(run, column)));
        let remark = remark(run).map(|remark| format!(" ({remark})"));
        cells.push(provenance::link(run, context) + &remark.unwrap_or_default());
        cells
    };
    let mut rendered = Rendered::default();
    rendered.add_runs(&runs);
    rendered.faults.extend(faults);
    rendered.text = table(&headings, &runs.iter().map(cells).collect::<Vec<_>>()) + "\n";
    rendered.end(&origin(&runs, context), differences);
    Ok(rendered)
}

/// Refuses a column of a held-out set or a source that none of the runs has.
fn check_sets(runs: &[KeptRun], columns: &[Column]) -> Result<(), Vec<Why>> {
    for column in columns {
        let Column::HeldOut { metric, set } = column else { continue };
        let is_held_out = metrics::find(metric).is_some_and(Metric::is_held_out);
        let names = |run: &'_ KeptRun| -> Vec<String> {
            match is_held_out {
                true => run.summary.held_out.keys().cloned().collect(),
                false => run.summary.source_losses.keys().cloned().collect(),
            }
        };
        let known: BTreeSet<String> = runs.iter().flat_map(names).collect();
        if !known.contains(set) {
            let what = if is_held_out { "held-out set" } else { "training loss on a source" };
            let near = did_you_mean(set, known.iter().map(String::as_str));
            return Err(vec![Why::fixed_by(
                format!("no run here has a {what} `{set}`{near}"),
                "correct `columns`",
            )]);
        }
    }
    Ok(())
}

/// Renders the figures of runs, each with its origin.
pub fn plot(context: &PageContext<'_>, spec: &Spec, plot: &str) -> Result<Rendered, Vec<Why>> {
    let runs = select(context, spec)?;
    let mut rendered = Rendered::default();
    rendered.add_runs(&runs);
    for run in &runs {
        let folder = &run.source.folder;
        let drawn = plots::draw(folder).map_err(|e| unreadable(folder, &e))?;
        let Some(picture) = drawn.into_iter().find(|picture| picture.name == plot) else {
            let why = format!("{} has no rows for a plot `{plot}`", folder.display());
            return Err(vec![Why::fixed_by(why, "plots are loss, throughput and schedule: correct `plot`")]);
        };
        let said = format!("{plot} of {} {}", run.recipe(), run.name());
        let alt = spec.alt.as_ref().unwrap_or(&said);
        rendered.add_figure(context, &folder.join(PLOTS).join(plot), Ok(picture.svgs), alt)?;
        rendered.text += &origin(std::slice::from_ref(run), context);
    }
    Ok(rendered)
}

/// Returns the line of the runs' origin.
pub fn origin(runs: &[KeptRun], context: &PageContext<'_>) -> String {
    let folders: Vec<&Path> = runs.iter().map(|run| run.source.folder.as_path()).collect();
    provenance::line(context, &runs.iter().collect::<Vec<_>>(), &[], &folders)
}

/// Returns a remark on a run that did not end as `ok`, is a fork, shared its GPU, never reached a steady
/// speed, or learned nothing.
pub fn remark(run: &KeptRun) -> Option<String> {
    let mut remarks = Vec::new();
    if run.summary.status != Status::Ok {
        remarks.push(run.summary.status.as_str().to_owned());
    }
    remarks.extend(run.fork.as_ref().map(|fork| format!("fork {fork}")));
    if run.summary.gpu.as_ref().is_some_and(|gpu| gpu.contended == Some(true)) {
        remarks.push("contended".to_owned());
    }
    if run.summary.never_settled() {
        remarks.push("speed never settled".to_owned());
    }
    if run.summary.worse_than_guessing().is_some() {
        remarks.push("worse than guessing".to_owned());
    }
    (!remarks.is_empty()).then(|| remarks.join(", "))
}
