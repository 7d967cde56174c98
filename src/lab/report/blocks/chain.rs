//! Blocks of a chain of kept quality comparisons, in which the candidate of each is the baseline of the next.

use super::chain_figure::{self, Step};
use super::kept_comparison::{self, KeptComparison, predicted};
use super::page_context::{PageContext, Rendered, shared_figure_stem};
use super::quality_figure::{p_shown, shown};
use super::spec::Spec;
use super::text::{code, interval, table};
use super::why::Why;
use crate::format::{BLANK, decimal};
use crate::results::experiment::{BASELINE, CANDIDATE, ExperimentRun, Finding};
use crate::results::quantiles::median;

/// Returns a table of the recipes in the order of `select`, each with the verdict on its change, and a
/// figure.
pub fn render(context: &PageContext<'_>, spec: &Spec) -> Result<Rendered, Vec<Why>> {
    let newest = |name: &String| KeptComparison::newest(context, name, |found| !found.has_trials());
    let links = spec.select.iter().map(newest).collect::<Result<Vec<_>, _>>()?;
    joined(&links)?;
    let judged = links.iter().map(measured).collect::<Result<Vec<&Finding>, _>>()?;
    let mut rendered = kept_comparison::sources(&links);
    let (differences, faults) = kept_comparison::compare_without_seeds(&links, &spec.across);
    rendered.faults.extend(faults);
    let steps = steps(&links, &judged);
    rendered.text = rows(context, &links, &judged, &steps) + "\n";
    let stem = shared_figure_stem(context.kept, &spec.select, "chain");
    let said = alternative(&judged, &steps);
    let drawn = chain_figure::chain(&judged, &steps);
    rendered.add_figure(context, &stem, drawn, spec.alt.as_ref().unwrap_or(&said))?;
    rendered.end(&kept_comparison::origin(context, &links), differences);
    Ok(rendered)
}

/// Checks that every comparison has ended, and starts with the recipe that the previous one ends with.
fn joined(links: &[KeptComparison]) -> Result<(), Vec<Why>> {
    let mut wrong = Vec::new();
    for link in links.iter().filter(|link| !link.found.finished) {
        let why = format!("{} is not finished", link.source.id);
        wrong.push(Why::fixed_by(why, "finish it with the same command, and keep it again"));
    }
    for pair in links.windows(2) {
        let [before, after] = pair else { continue };
        if before.found.candidate().seedless_hash != after.found.baseline().seedless_hash {
            let why = format!(
                "the baseline of {} is not the candidate of {}: their recipes have different hashes",
                after.source.id, before.source.id
            );
            wrong.push(Why::fixed_by(why, "put `select` into the order of the chain"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Returns the measure that the chain is judged by: the comparison's first that is not a speed.
fn measured(link: &KeptComparison) -> Result<&Finding, Vec<Why>> {
    link.found.findings.iter().find(|judged| !judged.measure.is_speed()).ok_or_else(|| {
        let why = format!("{} measures nothing but speed", link.source.id);
        vec![Why::fixed_by(why, "compare with `--on val_loss` too")]
    })
}

/// Returns all recipes of the chain, starting with the first comparison's baseline.
fn steps(links: &[KeptComparison], judged: &[&Finding]) -> Vec<Step> {
    let first = links.iter().zip(judged).take(1).map(|(link, judged)| Step {
        label: link.found.baseline().label.clone(),
        value: judged.baseline,
        tok_s: speed(link, BASELINE),
    });
    let others = links.iter().zip(judged).map(|(link, judged)| Step {
        label: link.found.candidate().label.clone(),
        value: judged.candidate,
        tok_s: speed(link, CANDIDATE),
    });
    first.chain(others).collect()
}

/// Returns the median speed of an arm's runs, or `None` if one of them reached no steady state.
fn speed(link: &KeptComparison, arm: usize) -> Option<f64> {
    let tok_s = |run: &ExperimentRun| link.runs.get(run.run.as_deref()?)?.summary.tok_s;
    let speeds: Option<Vec<f64>> = link.found.runs_in(arm).map(tok_s).collect();
    median(speeds?)
}

fn rows(context: &PageContext<'_>, links: &[KeptComparison], judged: &[&Finding], steps: &[Step]) -> String {
    let name = judged.first().map_or(String::new(), |judged| format!("{} ({})", judged.measure, judged.unit));
    let mean = format!(">{name}");
    let headings = [
        "",
        "change",
        mean.as_str(),
        ">difference to the row above (interval)",
        ">p",
        ">pairs",
        "verdict",
        "prediction",
        ">tokens/s",
        ">of the first",
    ];
    let first_speed = steps.first().and_then(|step| step.tok_s);
    let row = |at: usize| {
        let step = &steps[at];
        let link = at.checked_sub(1).map(|before| (&links[before], judged[before]));
        let cell = |value: Option<String>| value.unwrap_or_else(|| BLANK.to_owned());
        let difference =
            link.and_then(|(_, judged)| Some(interval(judged.interval?, |value| shown(judged.scale, value))));
        let verdict = link.map(|(link, judged)| link.link(context, &link.found.finding_words(judged)));
        let changes = link.map(|(link, _)| link.changes().unwrap_or_default());
        let prediction = link.and_then(|(link, _)| predicted(&link.found));
        let share = first_speed.zip(step.tok_s).map(|(first, speed)| decimal(Some(speed / first), 3));
        vec![
            at.to_string(),
            changes.unwrap_or_else(|| code(&step.label)),
            decimal(step.value, 4),
            cell(difference),
            cell(link.and_then(|(_, judged)| judged.p).map(p_shown)),
            cell(link.map(|(_, judged)| judged.pairs.to_string())),
            cell(verdict),
            cell(prediction),
            decimal(step.tok_s, 0),
            cell(share),
        ]
    };
    table(&headings.map(str::to_owned), &(0..steps.len()).map(row).collect::<Vec<_>>())
}

/// Returns the alternative text of the figure, which tells both ends of the chain.
fn alternative(judged: &[&Finding], steps: &[Step]) -> String {
    let name = judged.first().map_or(String::new(), |judged| judged.measure.to_string());
    let [first, last] = [steps.first(), steps.last()].map(|step| step.and_then(|step| step.value));
    format!(
        "{name} of {} recipes, each the one before with one change, from {} to {}, and their tokens per second",
        steps.len(),
        decimal(first, 4),
        decimal(last, 4)
    )
}
