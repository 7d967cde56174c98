//! A kept before and after.

use super::kept::{self, KeptRun, Source};
use super::spec::Spec;
use super::text::{code, plain, short_hash, table};
use super::{Rendered, Scene, Why, alike, columns, did_you_mean, figure, provenance, runs};
use crate::format::{BLANK, decimal};
use crate::results::comparison::{Arm, COMPARISON, COMPARISONS, Comparison, RatioInterval};
use crate::results::folder::PLOTS;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What is compared first.
const SPEED: &str = "tok_s";

/// The comparisons that a block selects, the newest of each name.
pub fn render(scene: &Scene<'_>, spec: &Spec, columns: Option<&[String]>) -> Result<Rendered, Vec<Why>> {
    let mut rendered = Rendered::default();
    for name in &spec.select {
        let folder = find(scene.kept, name)?;
        let one = one(scene, spec, columns, &folder)?;
        if !rendered.text.is_empty() {
            rendered.text.push('\n');
        }
        rendered.text += &one.text;
        rendered.sources.extend(one.sources);
        rendered.figures.extend(one.figures);
        rendered.faults.extend(one.faults);
        rendered.commits.extend(one.commits);
    }
    Ok(rendered)
}

/// The folder of the newest comparison `NAME`, or of `NAME/ID`.
fn find(kept: &Path, name: &str) -> Result<PathBuf, Vec<Why>> {
    Ok(find_all(kept, name)?.swap_remove(0))
}

/// The folders of comparisons `NAME`, newest first, or of `NAME/ID`; one at least.
pub fn find_all(kept: &Path, name: &str) -> Result<Vec<PathBuf>, Vec<Why>> {
    let all = kept.join(COMPARISONS);
    let folder = all.join(name);
    if folder.join(COMPARISON).is_file() {
        return Ok(vec![folder]);
    }
    let found = folders(&folder).into_iter().rev().filter(|folder| folder.join(COMPARISON).is_file());
    let found: Vec<PathBuf> = found.collect();
    if found.is_empty() {
        let names: Vec<String> = folders(&all).iter().map(|folder| kept::id(&all, folder)).collect();
        let near = did_you_mean(name, names.iter().map(String::as_str));
        let why = format!("no comparison `{name}` is kept in {}{near}", all.display());
        return Err(vec![Why::mended_by(
            why,
            format!("xrun keep {COMPARISONS}/{name}, or correct `select`"),
        )]);
    }
    Ok(found)
}

/// The folders in a folder, by name; none where there is no such folder.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

/// A kept comparison, verified and read.
pub fn read(scene: &Scene<'_>, folder: &Path) -> Result<(Source, Comparison), Vec<Why>> {
    let unreadable = |why: String| vec![Why::mended_by(why, kept::restore(folder))];
    let source = Source::verify(scene.kept, folder).map_err(|e| unreadable(e.message().to_owned()))?;
    if !source.faults.is_empty() {
        return Err(source.faults);
    }
    let path = folder.join(COMPARISON);
    let bytes =
        std::fs::read(&path).map_err(|e| unreadable(format!("cannot read {}: {e}", path.display())))?;
    let comparison = serde_json::from_slice(&bytes)
        .map_err(|e| unreadable(format!("{}:{}: not a comparison: {e}", path.display(), e.line())))?;
    Ok((source, comparison))
}

fn one(
    scene: &Scene<'_>,
    spec: &Spec,
    columns: Option<&[String]>,
    folder: &Path,
) -> Result<Rendered, Vec<Why>> {
    let (source, comparison) = read(scene, folder)?;
    let kept_runs = kept_runs(scene, &comparison)?;
    let runs: Vec<KeptRun> = kept_runs.values().cloned().collect();
    let (differences, mut faults) = compare(&comparison, &runs, spec);
    let mut rendered = runs::of(&runs);
    rendered.faults.append(&mut faults);
    rendered.sources.insert(0, source);
    let arms = [&comparison.baseline, &comparison.candidate];
    rendered.commits.extend(arms.iter().filter_map(|arm| arm.commit.clone()));

    let mut text = heading(&comparison, scene, folder);
    text += &measured_table(&comparison, columns)?;
    text.push('\n');
    text += &findings(&comparison);
    text += &differences.map_or(String::new(), |sentence| format!("- {sentence}"));
    text.push('\n');
    if let Some(drawn) = figure::blocks(&comparison) {
        let drawn = drawn.map_err(|e| vec![Why::stale(e.message())])?;
        let alt = format!("Tokens per second of {}, before and after, turn by turn", comparison.name);
        text += &rendered.show(scene, &folder.join(PLOTS).join("blocks"), drawn, &alt);
    }
    text += &provenance_of(&comparison, &kept_runs, scene, folder);
    rendered.text = text;
    Ok(rendered)
}

/// The kept runs of all trials, by `RECIPE/RUN`.
pub fn kept_runs(scene: &Scene<'_>, comparison: &Comparison) -> Result<BTreeMap<String, KeptRun>, Vec<Why>> {
    let mut runs = BTreeMap::new();
    for id in comparison.trials.iter().filter_map(|trial| trial.run.as_ref()) {
        let folder = scene.kept.join(id);
        if !folder.is_dir() {
            let why = format!("its run {id} is not kept in {}", scene.kept.display());
            return Err(vec![Why::mended_by(why, format!("xrun keep {id}"))]);
        }
        if !runs.contains_key(id) {
            runs.insert(id.clone(), KeptRun::read(scene.kept, &folder)?);
        }
    }
    Ok(runs)
}

/// Both arms must be alike but for the change itself, which the comparison names.
fn compare(comparison: &Comparison, runs: &[KeptRun], spec: &Spec) -> (Option<String>, Vec<Why>) {
    let changed = comparison.changes.iter().filter_map(|change| change.split(':').next());
    let across: Vec<String> = spec.across.iter().cloned().chain(alike::named(changed)).collect();
    // The device of an external command may be unknown.
    let arm = |arm: &Arm| alike::Row {
        facts: Some(arm.device.clone())
            .filter(|device| !device.is_empty())
            .map(|device| ("device".to_owned(), device))
            .into_iter()
            .collect(),
        complete: false,
    };
    let (mut sentence, mut faults) =
        alike::compare(&[arm(&comparison.baseline), arm(&comparison.candidate)], &across);
    let rows: Vec<alike::Row> = runs.iter().map(alike::of_run).collect();
    let (of_runs, faults_of_runs) = alike::compare(&rows, &across);
    sentence = of_runs.or(sentence);
    if faults.is_empty() {
        faults = faults_of_runs;
    }
    (sentence, faults)
}

fn heading(comparison: &Comparison, scene: &Scene<'_>, folder: &Path) -> String {
    let link = scene.link(folder);
    let verdict = comparison.verdict.as_str();
    let mut text =
        format!("**{}: {verdict}** ([{}]({link}))", plain(&comparison.name), plain(&comparison.id));
    if let Some(hypothesis) = &comparison.hypothesis {
        text += &format!("\n\n> {}", plain(hypothesis));
    }
    text + "\n\n"
}

/// What both arms measured.
fn measured_table(comparison: &Comparison, columns: Option<&[String]>) -> Result<String, Vec<Why>> {
    let (before, after) = (&comparison.baseline, &comparison.candidate);
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
        return Err(vec![Why::mended_by(why, "correct `columns`")]);
    }
    let headings = ["median over the turns", ">before", ">after", ">after ÷ before"].map(str::to_owned);
    let mut rows =
        vec![vec![String::new(), plain(&before.label), plain(&after.label), "(95 % interval)".to_owned()]];
    for name in shown {
        let (b, a) = (before.measured.get(name).copied(), after.measured.get(name).copied());
        let ratio = match (comparison.ratio, b, a) {
            (Some(ratio), ..) if name == SPEED => interval(&ratio),
            (_, Some(b), Some(a)) if name != SPEED && b != 0.0 => decimal(Some(a / b), 3),
            _ => BLANK.to_owned(),
        };
        let heading = columns::heading(name).trim_start_matches('>').to_owned();
        rows.push(vec![heading, columns::value(name, b), columns::value(name, a), ratio]);
    }
    Ok(table(&headings, &rows))
}

/// An estimate with its interval.
pub fn interval(ratio: &RatioInterval) -> String {
    let [estimate, low, high] = [ratio.estimate, ratio.low, ratio.high].map(|value| decimal(Some(value), 3));
    format!("{estimate} ({low} to {high})")
}

/// Whether both arms learn the same.
pub fn gate(comparison: &Comparison) -> &'static str {
    match comparison.gate.holds {
        Some(true) => "holds",
        Some(false) => "**fails**",
        None => "could not be judged",
    }
}

/// The keys that differ between the arms; `None` where none does.
pub fn changed(comparison: &Comparison) -> Option<String> {
    let changes: Vec<String> = comparison.changes.iter().map(|change| code(change)).collect();
    (!changes.is_empty()).then(|| changes.join(", "))
}

/// What came of a prediction.
pub fn held(comparison: &Comparison) -> &'static str {
    match comparison.prediction_held {
        Some(true) => "held",
        Some(false) => "**falsified**",
        None => "open",
    }
}

/// What follows, as a list.
fn findings(comparison: &Comparison) -> String {
    let effect = decimal(Some(comparison.min_effect * 100.0), 1);
    let mut lines = vec![format!(
        "Verdict: **{}**; differences below {effect} % do not count.",
        comparison.verdict.as_str()
    )];
    let gate = &comparison.gate;
    let allowed = match (gate.holds, gate.tolerance) {
        (_, Some(tolerance)) => format!(" (differences in loss up to {tolerance} allowed)"),
        (Some(_), None) => " (the same bits asked for)".to_owned(),
        // Nobody has said what may differ.
        (None, None) => String::new(),
    };
    lines.push(format!("Loss gate {}: {}{allowed}.", self::gate(comparison), plain(&gate.found)));
    if let Some(predicts) = &comparison.predicts {
        lines.push(format!("Prediction {}: {}.", code(predicts), held(comparison)));
    }
    lines.extend(changed(comparison).map(|changes| format!("Changed keys: {changes}.")));
    lines.extend(comparison.notes.iter().map(|note| format!("Note: {}.", plain(note))));
    if !comparison.finished {
        lines.push(format!("**Not finished**: it ended after {} turns.", comparison.trials.len()));
    }
    if !comparison.contended.is_empty() {
        let why: Vec<String> = comparison.contended.iter().map(|why| plain(why)).collect();
        lines.push(format!("**Contended**: {}.", why.join("; ")));
    }
    let failed = comparison.trials.iter().filter(|trial| trial.status != "ok").count();
    if failed > 0 {
        lines.push(format!("{failed} of {} turns did not end as `ok`.", comparison.trials.len()));
    }
    lines.iter().map(|line| format!("- {line}\n")).collect()
}

/// Where each arm's numbers come from.
fn provenance_of(
    comparison: &Comparison,
    runs: &BTreeMap<String, KeptRun>,
    scene: &Scene<'_>,
    folder: &Path,
) -> String {
    let mut lines = Vec::new();
    for (is_candidate, name, arm) in
        [(false, "before", &comparison.baseline), (true, "after", &comparison.candidate)]
    {
        let of_arm = comparison.trials.iter().filter(|trial| trial.is_candidate == is_candidate);
        let of_arm: Vec<&KeptRun> = of_arm.filter_map(|trial| runs.get(trial.run.as_ref()?)).collect();
        let mut line = format!("{name}: {}", code(&arm.command));
        if of_arm.is_empty() {
            line += &format!(", {}", plain(&arm.device));
            let hash = |what: &str, hash: &Option<String>| {
                hash.as_ref().map_or(String::new(), |hash| format!(", {what} {}", short_hash(hash, 12)))
            };
            line += &hash("recipe", &arm.recipe_hash);
            line += &hash("commit", &arm.commit);
        }
        lines.push(line);
        lines.extend(provenance::lines(of_arm, scene));
    }
    lines
        .push(format!("blocks, interval and rule: [{COMPARISON}]({})", scene.link(&folder.join(COMPARISON))));
    let lines: Vec<String> = lines.iter().map(|line| format!("<sub>{line}</sub>")).collect();
    lines.join("<br>\n") + "\n"
}
