//! Blocks of kept comparisons.

use super::fixes::restore;
use super::kept::{self, KeptRun, Source};
use super::page_context::{PageContext, Rendered};
use super::spec::Spec;
use super::text::{code, did_you_mean, link_to, plain, table};
use super::why::Why;
use super::{alike, columns, figure, provenance, runs};
use crate::format::{BLANK, decimal};
use crate::results::experiment::{
    Arm, Average, COMPARISONS, EXPERIMENT, Experiment, Finding, RegisteredPrediction, TrainLoss,
};
use crate::results::folder::PLOTS;
use crate::statistics::Interval;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The quantity in the first row.
const SPEED: &str = "tok_s";

/// The validation loss; the runs tell which text it was measured on.
const VAL_LOSS: &str = "val_loss";

/// The training loss; the comparison tells how it was taken.
const TRAIN_LOSS: &str = "train_loss";

/// A comparison of a block.
struct Part {
    rendered: Rendered,
    comparison: Experiment,
    runs: Vec<KeptRun>,
    folder: PathBuf,
}

/// Renders the comparisons that a block selects, the newest of each name.
pub fn render(
    context: &PageContext<'_>,
    spec: &Spec,
    columns: Option<&[String]>,
) -> Result<Rendered, Vec<Why>> {
    let mut parts = Vec::new();
    for name in &spec.select {
        parts.push(one(context, spec, columns, find(context.kept, name)?)?);
    }
    let origin = {
        let runs: Vec<&KeptRun> = parts.iter().flat_map(|part| &part.runs).collect();
        let comparisons = parts.iter().map(|part| &part.comparison);
        let arms: Vec<&Arm> = comparisons.flat_map(|found| &found.arms).collect();
        let folders: Vec<&Path> = parts.iter().map(|part| part.folder.as_path()).collect();
        provenance::line(context, &runs, &arms, &folders)
    };
    let mut rendered = Rendered::default();
    for part in parts {
        let one = part.rendered;
        if !rendered.text.is_empty() {
            rendered.text.push('\n');
        }
        rendered.text += &one.text;
        rendered.sources.extend(one.sources);
        rendered.figures.extend(one.figures);
        rendered.faults.extend(one.faults);
        rendered.commits.extend(one.commits);
    }
    rendered.text += &origin;
    Ok(rendered)
}

/// Returns the folder of the newest comparison `NAME`, or of `NAME/ID`.
fn find(kept: &Path, name: &str) -> Result<PathBuf, Vec<Why>> {
    Ok(find_all(kept, name, Experiment::has_trials)?.swap_remove(0))
}

/// Returns the folders of the `wanted` comparisons called `NAME`, newest first, or of `NAME/ID`; at least
/// one.
pub fn find_all(
    kept: &Path,
    name: &str,
    wanted: impl Fn(&Experiment) -> bool,
) -> Result<Vec<PathBuf>, Vec<Why>> {
    let all = kept.join(COMPARISONS);
    let folder = all.join(name);
    // A damaged record counts as wanted, so that reading it later reports the fault.
    let is_wanted = |folder: &PathBuf| {
        folder.join(EXPERIMENT).is_file() && Experiment::read(folder).map_or(true, |found| wanted(&found))
    };
    if is_wanted(&folder) {
        return Ok(vec![folder]);
    }
    let found: Vec<PathBuf> = folders(&folder).into_iter().rev().filter(is_wanted).collect();
    if found.is_empty() {
        let names: Vec<String> = folders(&all).iter().map(|folder| kept::id(&all, folder)).collect();
        let near = did_you_mean(name, names.iter().map(String::as_str));
        let why = format!("no comparison `{name}` is kept in {}{near}", all.display());
        return Err(vec![Why::fixed_by(why, format!("xrun keep {COMPARISONS}/{name}, or correct `select`"))]);
    }
    Ok(found)
}

/// Returns the folders inside a folder, sorted by name; none if it does not exist.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

/// Verifies and reads a kept comparison.
pub fn read(context: &PageContext<'_>, folder: &Path) -> Result<(Source, Experiment), Vec<Why>> {
    let unreadable = |why: String| vec![Why::fixed_by(why, restore(&[folder]))];
    let source = Source::verify(context.kept, folder).map_err(|e| unreadable(e.message().to_owned()))?;
    if !source.faults.is_empty() {
        return Err(source.faults);
    }
    let comparison = Experiment::read(folder).map_err(|e| unreadable(e.message().to_owned()))?;
    let own = comparison.full_name();
    let names = [source.named.as_str(), own.as_str()];
    let in_folder = source.id.strip_prefix(COMPARISONS).and_then(|id| id.strip_prefix('/'));
    if let Some(other) = names.into_iter().find(|name| Some(*name) != in_folder) {
        let why = format!("{} holds the comparison {}", folder.display(), plain(other));
        return Err(vec![Why::fixed_by(why, "give the folder its name back")]);
    }
    Ok((source, comparison))
}

fn one(
    context: &PageContext<'_>,
    spec: &Spec,
    columns: Option<&[String]>,
    folder: PathBuf,
) -> Result<Part, Vec<Why>> {
    let (source, comparison) = read(context, &folder)?;
    let kept_runs = kept_runs(context, &source, &comparison)?;
    let runs: Vec<KeptRun> = kept_runs.values().cloned().collect();
    let (differences, mut faults) = unlike(&comparison, &runs, &spec.across);
    let mut rendered = runs::run_sources(&runs);
    rendered.faults.append(&mut faults);
    rendered.sources.insert(0, source);
    rendered.commits.extend(comparison.arms.iter().filter_map(|arm| arm.commit.clone()));

    let mut text = heading(&comparison, context, &folder, spec.select.len() == 1);
    text += &measured_table(&comparison, &runs, columns)?;
    text.push('\n');
    text += &findings(&comparison);
    text += &differences.map_or(String::new(), |sentence| format!("- {sentence}"));
    text.push('\n');
    if let Some(drawn) = figure::blocks(&comparison) {
        let drawn = drawn.map_err(|e| vec![Why::stale(e.message())])?;
        let alt = format!("Tokens per second of {}, before and after, trial by trial", comparison.name);
        text += &rendered.add_figure(context, &folder.join(PLOTS).join(figure::BLOCKS), drawn, &alt);
    }
    rendered.text = text;
    Ok(Part { rendered, comparison, runs, folder })
}

/// Returns the kept runs of a comparison, by `RECIPE/RUN`. A run gets a fault if its manifest is not the one
/// that the comparison's manifest lists.
pub fn kept_runs(
    context: &PageContext<'_>,
    source: &Source,
    comparison: &Experiment,
) -> Result<BTreeMap<String, KeptRun>, Vec<Why>> {
    let runs = comparison.runs.iter();
    let named = runs.filter_map(|run| Some((run.run.as_deref()?, run.metrics_hash.as_deref())));
    let mut runs = BTreeMap::new();
    for (id, metrics_hash) in named {
        let folder = context.kept.join(id);
        if !folder.is_dir() {
            let why = format!("its run {id} is not kept in {}", context.kept.display());
            return Err(vec![Why::fixed_by(why, format!("xrun keep {id}"))]);
        }
        if !runs.contains_key(id) {
            let mut run = KeptRun::read(context.kept, &folder)?;
            let listed = source.runs.iter().find(|listed| listed.run == id);
            if let Some(listed) = listed.filter(|listed| listed.manifest != run.source.manifest) {
                let digits = |hash: &str| hash.chars().take(12).collect::<String>();
                let why = format!(
                    "{} is not the run that was compared: the hash of its manifest begins with {}, and {} lists {}",
                    folder.display(),
                    digits(&run.source.manifest),
                    source.folder.display(),
                    digits(&listed.manifest),
                );
                let fix = restore(&[&folder, &source.folder]);
                run.source.faults.push(Why::fixed_by(why, fix));
            }
            runs.insert(id.to_owned(), run);
        }
        if let (Some(listed), Some(run)) = (metrics_hash, runs.get_mut(id))
            && run.source.metrics.as_deref() != Some(listed)
        {
            let why =
                format!("the losses of {} are not the ones that {} compared", folder.display(), source.id);
            run.source.faults.push(Why::fixed_by(why, restore(&[&folder, &source.folder])));
        }
    }
    Ok(runs)
}

/// Compares the arms, which may differ only in the keys that the comparison names as changed, and in
/// `across`.
pub fn unlike(comparison: &Experiment, runs: &[KeptRun], across: &[String]) -> (Option<String>, Vec<Why>) {
    let changed = comparison.changes.iter().filter_map(|change| change.split(':').next());
    let across: Vec<String> = across.iter().cloned().chain(alike::named(changed)).collect();
    // The device of an external command may be unknown.
    let arm = |arm: &Arm| alike::Row {
        facts: arm.device.iter().map(|device| ("device".to_owned(), device.clone())).collect(),
        complete: false,
    };
    let (mut sentence, mut faults) =
        alike::compare(&[arm(comparison.baseline()), arm(comparison.candidate())], &across);
    let rows: Vec<alike::Row> = runs.iter().map(alike::run_facts).collect();
    let (run_differences, run_faults) = alike::compare(&rows, &across);
    sentence = run_differences.or(sentence);
    if faults.is_empty() {
        faults = run_faults;
    }
    (sentence, faults)
}

/// Returns name, verdict and hypothesis. If a block has one comparison, the line of provenance links to it
/// instead.
fn heading(comparison: &Experiment, context: &PageContext<'_>, folder: &Path, is_single: bool) -> String {
    let (name, verdict) = (plain(&comparison.name), comparison.verdict_words());
    let mut text = if is_single {
        format!("**{name}: {verdict}**")
    } else {
        let link = link_to(&comparison.name, &context.link(&provenance::readme_or_folder(folder)));
        format!("**{link}: {verdict}**")
    };
    if let Some(hypothesis) = &comparison.hypothesis {
        text += &format!("\n\n> {}", plain(hypothesis));
    }
    text + "\n\n"
}

/// Returns a table of the measurements of both arms.
fn measured_table(
    comparison: &Experiment,
    runs: &[KeptRun],
    columns: Option<&[String]>,
) -> Result<String, Vec<Why>> {
    let (before, after) = (comparison.baseline(), comparison.candidate());
    let speed = comparison.speed().and_then(Finding::ratio);
    let names: BTreeSet<&str> =
        before.measured.keys().chain(after.measured.keys()).map(String::as_str).collect();
    let shown: Vec<&str> = match columns {
        Some(asked) => asked.iter().map(String::as_str).collect(),
        None => [SPEED].into_iter().chain(names.iter().copied().filter(|name| *name != SPEED)).collect(),
    };
    if let Some(unknown) = shown.iter().find(|name| **name != SPEED && !names.contains(*name)) {
        let near = did_you_mean(unknown, names.iter().copied());
        let all = names.iter().copied().collect::<Vec<_>>().join(", ");
        let why = format!("the comparison measured no `{unknown}`; it has {all}{near}");
        return Err(vec![Why::fixed_by(why, "correct `columns`")]);
    }
    let average = match comparison.average {
        Average::Median => "median over trials",
        Average::Mean => "mean over trials",
    };
    let over: BTreeSet<Option<String>> = runs.iter().map(KeptRun::validated_over).collect();
    let headings = [average, ">before", ">after", ">after ÷ before"].map(str::to_owned);
    let mut rows =
        vec![vec![String::new(), plain(&before.label), plain(&after.label), "(95 % interval)".to_owned()]];
    for name in shown {
        let (b, a) = (before.measured.get(name).copied(), after.measured.get(name).copied());
        let ratio = match (speed, b, a) {
            _ if comparison.incomparable.iter().any(|other| other == name) => BLANK.to_owned(),
            _ if name == VAL_LOSS && over.len() > 1 => BLANK.to_owned(),
            (Some(ratio), ..) if name == SPEED => interval(&ratio),
            (_, Some(b), Some(a)) if name != SPEED && b != 0.0 => decimal(Some(a / b), 3),
            _ => BLANK.to_owned(),
        };
        let is_last_batch = name == TRAIN_LOSS && comparison.train_loss == TrainLoss::LastBatch;
        let figure = if is_last_batch { columns::LAST_BATCH } else { name };
        let mut heading = columns::heading(figure).trim_start_matches('>').to_owned();
        if let (VAL_LOSS, 1, Some(Some(over))) = (name, over.len(), over.first()) {
            heading += &format!(", {over}");
        }
        rows.push(vec![heading, columns::value(name, b), columns::value(name, a), ratio]);
    }
    Ok(table(&headings, &rows))
}

/// Formats an estimate with its interval.
pub fn interval(ratio: &Interval) -> String {
    let [estimate, low, high] = [ratio.estimate, ratio.low, ratio.high].map(|value| decimal(Some(value), 3));
    format!("{estimate} ({low} to {high})")
}

/// Returns the outcome of the loss gate in words.
pub fn gate(comparison: &Experiment) -> &'static str {
    match comparison.curves().and_then(Finding::holds) {
        Some(true) => "holds",
        Some(false) => "**fails**",
        None => "could not be judged",
    }
}

/// Returns the keys that differ between the arms, or `None` if none does.
pub fn changed(comparison: &Experiment) -> Option<String> {
    let changes: Vec<String> = comparison.changes.iter().map(|change| code(change)).collect();
    (!changes.is_empty()).then(|| changes.join(", "))
}

/// Returns the outcome of the prediction in words.
pub fn held(prediction: &RegisteredPrediction) -> &'static str {
    match prediction.held {
        Some(true) => "held",
        Some(false) => "**falsified**",
        None => "open",
    }
}

/// Lists verdict, loss gate, prediction, changed keys and remarks.
fn findings(comparison: &Experiment) -> String {
    let min_effect = comparison.speed().and_then(|speed| speed.min_effect);
    let effect = decimal(min_effect.map(|effect| effect * 100.0), 1);
    let mut lines = vec![format!(
        "Verdict: **{}**; differences below {effect} % do not count.",
        comparison.verdict_words()
    )];
    let curves = comparison.curves();
    let allowed = match (curves.and_then(Finding::holds), curves.and_then(|curves| curves.min_effect)) {
        (_, Some(tolerance)) => format!(" (differences in loss up to {tolerance} allowed)"),
        (Some(_), None) => " (the same bits asked for)".to_owned(),
        (None, None) => String::new(),
    };
    let found = curves.and_then(|curves| curves.because.as_deref()).unwrap_or(BLANK);
    lines.push(format!("Loss gate {}: {}{allowed}.", gate(comparison), plain(found)));
    if let Some(prediction) = &comparison.prediction {
        lines.push(format!("Prediction {}: {}.", code(&prediction.text), held(prediction)));
    }
    lines.extend(changed(comparison).map(|changes| format!("Changed keys: {changes}.")));
    lines.extend(comparison.notes.iter().map(|note| format!("Note: {}.", plain(note))));
    if !comparison.finished {
        let ended = comparison.runs.iter().filter(|run| run.status.is_some()).count();
        lines.push(format!("**Not finished**: it ended after {ended} trials."));
    }
    if !comparison.contended.is_empty() {
        let why: Vec<String> = comparison.contended.iter().map(|why| plain(why)).collect();
        lines.push(format!("**Contended**: {}.", why.join("; ")));
    }
    let statuses = comparison.runs.iter().filter_map(|run| run.status.as_deref());
    let failed = statuses.filter(|status| *status != "ok").count();
    if failed > 0 {
        lines.push(format!("{failed} of {} trials did not end as `ok`.", comparison.runs.len()));
    }
    lines.iter().map(|line| format!("- {line}\n")).collect()
}
