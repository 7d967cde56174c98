//! Blocks of a chain of kept quality comparisons, in which the candidate of each is the baseline of the next.

use super::chain_figure::Step;
use super::kept::{KeptRun, Source};
use super::page_context::{PageContext, Rendered, shared_figure_stem};
use super::quality_figure::{p_shown, shown};
use super::spec::Spec;
use super::text::{code, link_to, table};
use super::why::Why;
use super::{alike, chain_figure, comparison, provenance, runs};
use crate::format::{BLANK, decimal};
use crate::results::experiment::{BASELINE, CANDIDATE, Experiment, ExperimentRun, Finding};
use crate::results::quantiles::median;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A comparison of the chain.
struct Link {
    found: Experiment,
    source: Source,
    /// The kept runs of its pairs, by `RECIPE/RUN`.
    runs: BTreeMap<String, KeptRun>,
}

/// Returns a table of the recipes in the order of `select`, each with the verdict on its change, and a
/// figure.
pub fn render(context: &PageContext<'_>, spec: &Spec, alt: Option<&str>) -> Result<Rendered, Vec<Why>> {
    let links = spec.select.iter().map(|name| link(context, name)).collect::<Result<Vec<Link>, _>>()?;
    joined(&links)?;
    let judged = links.iter().map(measured).collect::<Result<Vec<&Finding>, _>>()?;
    let all_runs: Vec<KeptRun> = links.iter().flat_map(|link| link.runs.values().cloned()).collect();
    let mut rendered = runs::run_sources(&all_runs);
    rendered.sources.splice(0..0, links.iter().map(|link| link.source.clone()));
    let (differences, faults) = unlike(&links, &spec.across);
    rendered.faults.extend(faults);

    let steps = steps(&links, &judged);
    let mut text = rows(context, &links, &judged, &steps);
    text.push('\n');
    let drawn = chain_figure::chain(&judged, &steps).map_err(|e| vec![Why::stale(e.message())])?;
    let stem = shared_figure_stem(context.kept, &spec.select, "chain");
    let said = alternative(&judged, &steps);
    text += &rendered.add_figure(context, &stem, drawn, alt.unwrap_or(&said));
    let folders: Vec<&Path> = links.iter().map(|link| link.source.folder.as_path()).collect();
    text += &provenance::line(context, &all_runs.iter().collect::<Vec<_>>(), &[], &folders);
    text += &differences.map_or(String::new(), |sentence| format!("\n{sentence}"));
    rendered.text = text;
    Ok(rendered)
}

/// Reads the newest kept comparison of a name, and its runs.
fn link(context: &PageContext<'_>, name: &str) -> Result<Link, Vec<Why>> {
    let folder: PathBuf =
        comparison::find_all(context.kept, name, |found| !found.has_trials())?.swap_remove(0);
    let (source, found) = comparison::read(context, &folder)?;
    let runs = comparison::kept_runs(context, &source, &found)?;
    Ok(Link { found, source, runs })
}

/// Checks that every comparison has ended, and starts with the recipe that the previous one ends with.
fn joined(links: &[Link]) -> Result<(), Vec<Why>> {
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
fn measured(link: &Link) -> Result<&Finding, Vec<Why>> {
    link.found.findings.iter().find(|judged| !judged.measure.is_speed()).ok_or_else(|| {
        let why = format!("{} measures nothing but speed", link.source.id);
        vec![Why::fixed_by(why, "compare with `--on val_loss` too")]
    })
}

/// Returns all recipes of the chain, starting with the first comparison's baseline.
fn steps(links: &[Link], judged: &[&Finding]) -> Vec<Step> {
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
fn speed(link: &Link, arm: usize) -> Option<f64> {
    let tok_s = |run: &ExperimentRun| link.runs.get(run.run.as_deref()?)?.summary.tok_s;
    let speeds: Option<Vec<f64>> = link.found.runs_in(arm).map(tok_s).collect();
    median(speeds?)
}

/// Compares all runs. They may differ in their seeds, in the keys that any comparison names as changed, and
/// in `across`.
fn unlike(links: &[Link], across: &[String]) -> (Option<String>, Vec<Why>) {
    let changes = links.iter().flat_map(|link| &link.found.changes);
    let changed = changes.filter_map(|change| change.split(':').next());
    let across: Vec<String> = across.iter().cloned().chain(alike::named(changed)).collect();
    let rows: Vec<alike::Row> =
        links.iter().flat_map(|link| link.runs.values()).map(alike::without_seeds).collect();
    alike::compare(&rows, &across)
}

fn rows(context: &PageContext<'_>, links: &[Link], judged: &[&Finding], steps: &[Step]) -> String {
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
        let interval = link.and_then(|(_, judged)| {
            let interval = judged.interval?;
            let shown = |value: f64| shown(judged.scale, value);
            let [estimate, low, high] = [interval.estimate, interval.low, interval.high].map(shown);
            Some(format!("{estimate} ({low} to {high})"))
        });
        let verdict = link.map(|(link, judged)| {
            link_to(judged.verdict.words(), &context.link(&provenance::readme_or_folder(&link.source.folder)))
        });
        let changes = link.map(|(link, _)| {
            link.found.changes.iter().map(|change| code(change)).collect::<Vec<_>>().join(", ")
        });
        let prediction = link.and_then(|(link, _)| {
            let prediction = link.found.prediction.as_ref()?;
            Some(format!("{}: {}", code(&prediction.text), comparison::held(prediction)))
        });
        let share = first_speed.zip(step.tok_s).map(|(first, speed)| decimal(Some(speed / first), 3));
        vec![
            at.to_string(),
            changes.unwrap_or_else(|| code(&step.label)),
            decimal(step.value, 4),
            cell(interval),
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
