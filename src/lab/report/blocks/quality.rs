//! Blocks of kept quality comparisons: a table of verdicts, and a figure of the pairs for each measure.

use super::kept_comparison::{self, KeptComparison, predicted};
use super::page_context::{PageContext, Rendered};
use super::quality_figure::{self, effect_shown, p_shown, shown};
use super::spec::Spec;
use super::text::{code, interval, plain, table};
use super::why::Why;
use crate::format::{BLANK, decimal, plural};
use crate::results::experiment::{Design, Experiment, Finding};

/// Renders the newest comparison of each selected name.
pub fn render(context: &PageContext<'_>, spec: &Spec) -> Result<Rendered, Vec<Why>> {
    let newest = |name: &String| KeptComparison::newest(context, name, |found| !found.has_trials());
    let comparisons = spec.select.iter().map(newest).collect::<Result<Vec<_>, _>>()?;
    let mut rendered = kept_comparison::sources(&comparisons);
    for (at, kept) in comparisons.iter().enumerate() {
        let found = &kept.found;
        let (differences, faults) =
            kept_comparison::compare_without_seeds(std::slice::from_ref(kept), &spec.across);
        rendered.faults.extend(faults);
        if at > 0 {
            rendered.text.push('\n');
        }
        rendered.text += &kept.heading(context, comparisons.len() == 1);
        rendered.text += &verdicts(found);
        rendered.text.push('\n');
        rendered.text += &findings(kept);
        rendered.text.extend(differences.map(|sentence| format!("- {sentence}")));
        rendered.text.push('\n');
        for judged in &found.findings {
            let Some(drawn) = quality_figure::pairs(found, judged) else { continue };
            let said = alternative(found, judged);
            let stem = quality_figure::stem(&kept.source.folder, judged);
            rendered.add_figure(context, &stem, drawn, spec.alt.as_ref().unwrap_or(&said))?;
        }
    }
    rendered.text += &kept_comparison::origin(context, &comparisons);
    Ok(rendered)
}

/// Returns a table of the measures.
fn verdicts(found: &Experiment) -> String {
    let mut confidences: Vec<String> =
        found.findings.iter().map(|judged| percent(judged.confidence)).collect();
    confidences.dedup();
    let difference = format!(">difference ({} interval)", confidences.join(", "));
    let headings = [
        "measure",
        ">baseline",
        ">candidate",
        difference.as_str(),
        ">p",
        ">smallest that matters",
        ">pairs",
        "verdict",
    ];
    let row = |judged: &Finding| {
        let difference = judged.interval.map(|found| interval(found, |value| shown(judged.scale, value)));
        let because = judged.because.as_ref().map_or(String::new(), |why| format!(" ({})", plain(why)));
        vec![
            format!("{} ({})", code(&judged.measure.to_string()), judged.unit),
            decimal(judged.baseline, 4),
            decimal(judged.candidate, 4),
            difference.unwrap_or_else(|| BLANK.to_owned()),
            judged.p.map_or(BLANK.to_owned(), p_shown),
            judged.min_effect.map_or(BLANK.to_owned(), |effect| effect_shown(judged.scale, effect)),
            judged.pairs.to_string(),
            found.finding_words(judged) + &because,
        ]
    };
    table(&headings.map(str::to_owned), &found.findings.iter().map(row).collect::<Vec<_>>())
}

fn percent(confidence: f64) -> String {
    let text = format!("{:.2}", 100.0 * confidence);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Lists design, changed keys, prediction, diverged runs and remarks.
fn findings(kept: &KeptComparison) -> String {
    let found = &kept.found;
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
    // Records of earlier versions have no standing.
    lines.extend(found.standing.as_ref().map(|_| format!("Standing: {}.", plain(&found.standing_words()))));
    lines.extend(predicted(found).map(|one| format!("Prediction {one}.")));
    lines.extend(kept.changes().map(|changes| format!("Changed keys: {changes}.")));
    let shared = found.shared_randomness.as_ref();
    lines.extend(shared.map(|shared| format!("Random numbers of a pair: {}.", plain(shared))));
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
        let (count, s) = (earlier.len(), plural(earlier.len()));
        lines.push(format!("{count} earlier comparison{s} of this change: {}.", earlier.join(", ")));
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
    let both = quality_figure::both_values(found, judged);
    let lower = both.iter().filter(|(_, [baseline, candidate])| candidate < baseline).count();
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
