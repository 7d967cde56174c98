//! Tables of kept sweeps, from the last attempt at each of their cells.

use super::columns::{self, Column};
use super::kept::{KeptRun, Source, renamed, unreadable};
use super::page_context::{PageContext, Rendered};
use super::spec::Spec;
use super::text::{code, kept_names, plain, short_hash, table};
use super::why::Why;
use super::{alike, provenance};
use crate::error::Error;
use crate::format::BLANK;
use crate::metrics;
use crate::regular;
use crate::results::columns::Figures;
use crate::results::ledger::{Attempt, LEDGER};
use crate::results::names::SWEEPS;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The cells of the selected sweeps, checked to be comparable.
pub struct SelectedCells {
    /// The last ledger line of each cell.
    pub cells: Vec<Attempt>,
    /// The runs of cells that are kept, by `RECIPE/RUN`.
    pub kept_runs: BTreeMap<String, KeptRun>,
    /// The keys that cells set.
    pub keys: Vec<String>,
    /// A sentence about differences that the block allows.
    pub differences: Option<String>,
    /// Sources, faults and commits.
    pub rendered: Rendered,
}

/// Reads the selected sweeps, and checks that their cells agree except in what they set.
pub fn select(context: &PageContext<'_>, spec: &Spec) -> Result<SelectedCells, Vec<Why>> {
    let mut cells = Vec::new();
    let mut rendered = Rendered::default();
    for name in &spec.select {
        let (source, mut found) = read(context.kept, name)?;
        rendered.sources.push(source);
        cells.append(&mut found);
    }
    let mut kept_runs = BTreeMap::new();
    for id in cells.iter().filter_map(|cell| cell.run.as_ref()) {
        let folder = context.kept.join(id);
        if folder.is_dir() {
            kept_runs.insert(id.clone(), KeptRun::read(context.kept, &folder)?);
        }
    }
    let differing = cells.iter().filter_map(|cell| differing(cell, kept_runs.get(cell.run.as_ref()?)?));
    rendered.faults.extend(differing);
    rendered.add_runs(kept_runs.values());
    let settings: BTreeSet<&String> = cells.iter().flat_map(|cell| cell.settings.keys()).collect();
    // Settings of cells are columns.
    let across = alike::across(&spec.across, settings.iter().map(|key| key.as_str()));
    let rows: Vec<alike::Row> = cells.iter().map(facts).collect();
    let (differences, mut faults) = alike::compare(&rows, &across);
    if faults.is_empty() {
        let rows: Vec<alike::Row> = kept_runs.values().map(alike::run_facts).collect();
        faults = alike::compare(&rows, &across).1;
    }
    rendered.faults.append(&mut faults);
    let keys = settings.into_iter().cloned().collect();
    Ok(SelectedCells { cells, kept_runs, keys, differences, rendered })
}

/// Renders a table of the cells of the selected sweeps.
pub fn render(context: &PageContext<'_>, spec: &Spec, columns: &[Column]) -> Result<Rendered, Vec<Why>> {
    let SelectedCells { cells, kept_runs, keys: settings, differences, mut rendered } =
        select(context, spec)?;
    let has_recipes = cells.iter().any(|cell| cell.recipe != cells[0].recipe);
    let mut headings: Vec<String> = has_recipes.then(|| "recipe".to_owned()).into_iter().collect();
    headings.extend(settings.iter().map(|key| code(key)));
    headings.extend(columns.iter().map(|column| column.heading()));
    headings.extend(["recipe hash", "run"].map(str::to_owned));
    let row = |cell: &Attempt| {
        let mut row: Vec<String> = has_recipes.then(|| plain(&cell.recipe)).into_iter().collect();
        row.extend(settings.iter().map(|key| setting(&cell.settings, key)));
        row.extend(columns.iter().map(|column| cell_text(cell, column)));
        row.push(short_hash(&cell.recipe_hash, 8));
        row.push(match &cell.run {
            None => BLANK.to_owned(),
            Some(id) => kept_runs.get(id).map_or_else(|| plain(id), |run| provenance::link(run, context)),
        });
        row
    };
    rendered.text = table(&headings, &cells.iter().map(row).collect::<Vec<_>>()) + "\n";
    rendered.end(&origin(&rendered.sources, &cells, context), differences);
    Ok(rendered)
}

/// Returns the cell of a key. Its value is TOML; quotes around a word are noise in a table.
pub fn setting(settings: &BTreeMap<String, String>, key: &str) -> String {
    settings.get(key).map_or(BLANK.to_owned(), |value| plain(value.trim_matches('"')))
}

/// Reads a kept sweep's manifest and the last line of each cell, in the order in which cells began.
fn read(kept: &Path, name: &str) -> Result<(Source, Vec<Attempt>), Vec<Why>> {
    let folder = find(&kept.join(SWEEPS), name)?;
    let path = folder.join(LEDGER);
    let wrong = |e: Error| unreadable(&path, &e);
    let source = Source::unchanged(kept, &folder)?;
    let held = source.named.rsplit('/').next().unwrap_or_default();
    if folder.file_name() != Some(held.as_ref()) {
        return Err(renamed(&folder, &format!("the sweep {}", plain(held))));
    }
    let text = regular::read_text_through_link(&path).map_err(wrong)?;
    let mut cells: Vec<Attempt> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let attempt: Attempt = serde_json::from_str(line).map_err(|e| {
            wrong(Error::failed(format!("{}:{}: not an attempt: {e}", path.display(), number + 1)))
        })?;
        // Cells that share a key get separate rows.
        match cells.iter_mut().find(|cell| cell.is_same_cell(&attempt)) {
            Some(cell) => *cell = attempt,
            None => cells.push(attempt),
        }
    }
    if cells.is_empty() {
        return Err(wrong(Error::failed(format!("{} has no lines", path.display()))));
    }
    Ok((source, cells))
}

/// Returns the folder of the kept sweep that is called `name`, as `xrun keep` accepts it: the sweep's name,
/// or the name of a recipe with one kept sweep. Both may follow `sweeps/`.
fn find(all: &Path, name: &str) -> Result<PathBuf, Vec<Why>> {
    let entries = std::fs::read_dir(all).into_iter().flatten().flatten();
    let names = entries.filter(|entry| entry.path().join(LEDGER).is_file());
    let mut names: Vec<String> = names.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let asked = name.strip_prefix(SWEEPS).and_then(|name| name.strip_prefix('/')).unwrap_or(name);
    if names.iter().any(|name| name == asked) {
        return Ok(all.join(asked));
    }
    let belongs_to_recipe = |name: &&String| name.rsplit_once('-').is_some_and(|(recipe, _)| recipe == asked);
    match &names.iter().filter(belongs_to_recipe).collect::<Vec<_>>()[..] {
        [one] => Ok(all.join(one)),
        [] => {
            let near = kept_names(asked, names.iter().map(String::as_str));
            let why = format!("no sweep `{name}` is kept in {}{near}", all.display());
            Err(vec![Why::fixed_by(why, "keep one with `xrun keep sweeps/NAME`, or correct `select`")])
        }
        several => {
            let several: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
            let why = format!("`{name}` has {} kept sweeps: {}", several.len(), several.join(", "));
            Err(vec![Why::fixed_by(why, "name one of them in `select`")])
        }
    }
}

/// Returns the problem of the first figure of a cell that differs from its kept run's.
fn differing(cell: &Attempt, run: &KeptRun) -> Option<Why> {
    let run_figures = Figures::as_printed(&run.summary).for_ledger();
    metrics::ledger_metrics().into_iter().find_map(|(key, _)| {
        let (listed, measured) = (cell.measured.get(key)?, run_figures.get(key)?);
        (listed != measured).then(|| {
            let id = &run.source.id;
            let why = format!("{LEDGER} has {key} = {listed} for a run, and {id} has {measured}");
            Why::fixed_by(why, "keep the sweep and its run again")
        })
    })
}

/// Returns the facts that cells must have in common. Training keys are columns; cells of other recipes may
/// differ in any of them. A cell that never ran has no facts.
fn facts(cell: &Attempt) -> alike::Row {
    if !cell.has_device() {
        return alike::Row { facts: BTreeMap::new(), complete: false };
    }
    let facts = [("device", &cell.device), ("build", &cell.build), ("training", &cell.recipe)];
    let mut facts: BTreeMap<String, String> =
        facts.into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect();
    if let Some(hash) = &cell.corpus_hash {
        facts.insert("corpus".to_owned(), hash.get(..8).unwrap_or(hash).to_owned());
    }
    facts.extend(cell.measuring.clone());
    alike::Row { facts, complete: false }
}

fn cell_text(cell: &Attempt, column: &Column) -> String {
    let Column::Named(name) = column else { return BLANK.to_owned() };
    match *name {
        "status" => serde_json::to_value(cell.status)
            .ok()
            .and_then(|status| status.as_str().map(|status| status.replace('_', " ")))
            .unwrap_or_default(),
        "reason" => cell.reason.as_deref().map_or(BLANK.to_owned(), plain),
        "contended" => columns::yes_or_no(cell.measured.contended),
        "val_loss" => {
            let part = ["val_batches", "val_batches_of"].map(|key| cell.measured.get(key));
            let over = match part {
                [Some(batches), Some(of)] => format!(" (over {batches} of {of} batches)"),
                _ => String::new(),
            };
            columns::value("val_loss", columns::ledger_figure(&cell.measured, "val_loss")) + &over
        }
        name => columns::value(name, columns::ledger_figure(&cell.measured, name)),
    }
}

/// Returns the origin of a sweep: devices and builds of its cells, because their runs are usually not kept.
pub fn origin(sources: &[Source], cells: &[Attempt], context: &PageContext<'_>) -> String {
    let places = provenance::places(cells);
    let link = |sweep: &Source| {
        format!("[runs and commands]({})", context.link(&provenance::readme_or_folder(&sweep.folder)))
    };
    let links: Vec<String> =
        sources.iter().filter(|source| source.id.starts_with(SWEEPS)).map(link).collect();
    format!("<sub>{places}{BLANK} was not measured · {}</sub>\n", links.join(", "))
}
