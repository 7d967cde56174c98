//! Blocks of kept quality comparisons: a table of verdicts, and a figure of the pairs for each measure.

use super::kept::KeptRun;
use super::page_context::{PageContext, Rendered};
use super::quality_figure::{self, effect_shown, p_shown, shown};
use super::spec::Spec;
use super::text::{code, link_to, plain, table};
use super::why::Why;
use super::{alike, comparison, provenance, runs};
use crate::format::{BLANK, decimal, plural};
use crate::results::experiment::{Design, Experiment, Finding};
use std::path::{Path, PathBuf};

/// Renders the newest comparison of each selected name.
pub fn render(context: &PageContext<'_>, spec: &Spec, alt: Option<&str>) -> Result<Rendered, Vec<Why>> {
    let mut rendered = Rendered::default();
    let (mut all_runs, mut folders): (Vec<KeptRun>, Vec<PathBuf>) = (Vec::new(), Vec::new());
    for name in &spec.select {
        let folder = comparison::find_all(context.kept, name, |found| !found.has_trials())?.swap_remove(0);
        let (source, found) = comparison::read(context, &folder)?;
        let kept = comparison::kept_runs(context, &source, &found)?;
        let runs: Vec<KeptRun> = kept.into_values().collect();
        let run_sources = runs::run_sources(&runs);
        rendered.sources.push(source);
        rendered.sources.extend(run_sources.sources);
        rendered.faults.extend(run_sources.faults);
        rendered.commits.extend(run_sources.commits);
        let (differences, faults) = unlike(&found, &runs, &spec.across);
        rendered.faults.extend(faults);
        if !rendered.text.is_empty() {
            rendered.text.push('\n');
        }
        rendered.text += &heading(context, &found, &folder, spec.select.len() == 1);
        rendered.text += &verdicts(&found);
        rendered.text.push('\n');
        rendered.text += &findings(&found);
        rendered.text += &differences.map_or(String::new(), |sentence| format!("- {sentence}"));
        rendered.text.push('\n');
        for judged in &found.findings {
            let Some(drawn) = quality_figure::pairs(&found, judged) else { continue };
            let drawn = drawn.map_err(|e| vec![Why::stale(e.message())])?;
            let said = alternative(&found, judged);
            let stem = quality_figure::stem(&folder, judged);
            let picture = rendered.add_figure(context, &stem, drawn, alt.unwrap_or(&said));
            rendered.text += &picture;
        }
        all_runs.extend(runs);
        folders.push(folder);
    }
    let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
    rendered.text += &provenance::line(context, &all_runs.iter().collect::<Vec<_>>(), &[], &folders);
    Ok(rendered)
}

/// Compares the runs. They may differ in their seeds, in the keys that the comparison names as changed, and
/// in `across`.
fn unlike(comparison: &Experiment, runs: &[KeptRun], across: &[String]) -> (Option<String>, Vec<Why>) {
    let changed = comparison.changes.iter().filter_map(|change| change.split(':').next());
    let across: Vec<String> = across.iter().cloned().chain(alike::named(changed)).collect();
    let rows: Vec<alike::Row> = runs.iter().map(alike::without_seeds).collect();
    alike::compare(&rows, &across)
}

/// Returns name, verdict and hypothesis.
fn heading(context: &PageContext<'_>, found: &Experiment, folder: &Path, is_single: bool) -> String {
    let name = match is_single {
        true => plain(&found.name),
        false => link_to(&found.name, &context.link(&provenance::readme_or_folder(folder))),
    };
    let mut text = format!("**{name}: {}**", found.verdict().words());
    if let Some(hypothesis) = &found.hypothesis {
        text += &format!("\n\n> {}", plain(hypothesis));
    }
    text + "\n\n"
}

/// Returns a table of the measures.
fn verdicts(found: &Experiment) -> String {
    let mut confidences: Vec<String> =
        found.findings.iter().map(|judged| percent(judged.confidence)).collect();
    confidences.dedup();
    let interval = format!(">difference ({} interval)", confidences.join(", "));
    let headings = [
        "measure",
        ">baseline",
        ">candidate",
        interval.as_str(),
        ">p",
        ">smallest that matters",
        ">pairs",
        "verdict",
    ];
    let row = |judged: &Finding| {
        let format_value = |value: f64| shown(judged.scale, value);
        let interval = judged.interval.map(|interval| {
            let [estimate, low, high] = [interval.estimate, interval.low, interval.high].map(format_value);
            format!("{estimate} ({low} to {high})")
        });
        let because = judged.because.as_ref().map_or(String::new(), |why| format!(" ({})", plain(why)));
        vec![
            format!("{} ({})", code(&judged.measure.to_string()), judged.unit),
            decimal(judged.baseline, 4),
            decimal(judged.candidate, 4),
            interval.unwrap_or_else(|| BLANK.to_owned()),
            judged.p.map_or(BLANK.to_owned(), p_shown),
            judged.min_effect.map_or(BLANK.to_owned(), |effect| effect_shown(judged.scale, effect)),
            judged.pairs.to_string(),
            judged.verdict.words().to_owned() + &because,
        ]
    };
    table(&headings.map(str::to_owned), &found.findings.iter().map(row).collect::<Vec<_>>())
}

fn percent(confidence: f64) -> String {
    let text = format!("{:.2}", 100.0 * confidence);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Lists design, changed keys, prediction, diverged runs and remarks.
fn findings(found: &Experiment) -> String {
    let ended = found.ended_pairs();
    let mut lines = vec![match &found.design {
        Design::Trials { trials: pairs } | Design::Pairs { pairs } => {
            format!("{ended} of {pairs} pair{} by seed, judged once.", plural(*pairs))
        }
        Design::Sequential { max_pairs, looks } => format!(
            "{ended} of at most {max_pairs} pair{} by seed, judged sequentially at {} look{}.",
            plural(*max_pairs),
            looks.len(),
            plural(looks.len())
        ),
    }];
    lines.extend(found.joint.as_ref().map(|joint| format!("Both as one question: {}.", plain(&joint.found))));
    if let Some(prediction) = &found.prediction {
        lines.push(format!("Prediction {}: {}.", code(&prediction.text), comparison::held(prediction)));
    }
    if !found.changes.is_empty() {
        let changes: Vec<String> = found.changes.iter().map(|change| code(change)).collect();
        lines.push(format!("Changed keys: {}.", changes.join(", ")));
    }
    lines.extend(
        found
            .shared_randomness
            .as_ref()
            .map(|shared| format!("Random numbers of a pair: {}.", plain(shared))),
    );
    lines.extend(found.diverged.map(|diverged| {
        let (baseline, candidate, pairs) = (diverged.baseline, diverged.candidate, diverged.pairs);
        let p = p_shown(diverged.p);
        format!("Diverged: {baseline} of the baseline and {candidate} of the candidate, of {pairs} pairs (p = {p}).")
    }));
    lines.extend(found.confirms.as_ref().map(|name| format!("Confirms {} with fresh seeds.", code(name))));
    if !found.history.is_empty() {
        let earlier: Vec<String> = found
            .history
            .iter()
            .map(|one| format!("{} ({})", code(&one.comparison), plain(&one.ended)))
            .collect();
        let count = earlier.len();
        lines.push(format!(
            "{count} earlier comparison{} of this change: {}.",
            plural(count),
            earlier.join(", ")
        ));
    }
    lines.extend(found.notes.iter().map(|note| format!("Note: {}.", plain(note.trim_end_matches('.')))));
    if !found.finished {
        lines.push("**Not finished**.".to_owned());
    }
    lines.iter().map(|line| format!("- {line}\n")).collect()
}

/// Returns the alternative text of a figure: in how many pairs the candidate is lower, and the mean
/// difference.
fn alternative(found: &Experiment, judged: &Finding) -> String {
    let text = judged.measure.to_string();
    let both = found.pairs().filter_map(|pair| {
        let [baseline, candidate] = pair.values(&judged.measure);
        baseline.zip(candidate)
    });
    let both: Vec<(f64, f64)> = both.collect();
    let lower = both.iter().filter(|(baseline, candidate)| candidate < baseline).count();
    let mut said = format!(
        "{text} of baseline and candidate in {} pairs: the candidate is lower in {lower}",
        both.len()
    );
    if let Some(interval) = judged.interval {
        let [estimate, low, high] =
            [interval.estimate, interval.low, interval.high].map(|value| shown(judged.scale, value));
        said += &format!("; mean difference {estimate}, {low} to {high}");
    }
    said
}
