//! Blocks of kept comparisons ordered by a key, such as ratios by the number of GPUs, the width or the batch.

use super::kept::{KeptRun, Source};
use super::page_context::{PageContext, Rendered, shared_figure_stem};
use super::spec::Spec;
use super::text::{code, link_to, table};
use super::why::Why;
use super::{alike, comparison, figure, provenance, runs};
use crate::format::{BLANK, decimal};
use crate::results::experiment::{Arm, CANDIDATE, Experiment, Finding};
use std::path::{Path, PathBuf};

/// A comparison at one value of the key.
struct Member {
    /// The key's value.
    at: f64,
    comparison: Experiment,
    source: Source,
    /// The kept runs of its trials.
    runs: Vec<KeptRun>,
}

/// Renders a table of the newest comparison of each name at each value of `over`, and a figure of them.
pub fn render(
    context: &PageContext<'_>,
    spec: &Spec,
    over: &'static str,
    alt: Option<&str>,
) -> Result<Rendered, Vec<Why>> {
    let mut members: Vec<Member> = Vec::new();
    for name in &spec.select {
        // Folders come newest first, so members that exist already are newer.
        for folder in comparison::find_all(context.kept, name, Experiment::has_trials)? {
            let member = member(context, folder, over)?;
            let is_newest = |m: &Member| m.at != member.at || m.comparison.name != member.comparison.name;
            if members.iter().all(is_newest) {
                members.push(member);
            }
        }
    }
    // The sort is stable: members with the same value keep the order of the block's names.
    members.sort_by(|a, b| a.at.total_cmp(&b.at));

    let all_runs: Vec<KeptRun> = members.iter().flat_map(|member| member.runs.clone()).collect();
    let mut rendered = runs::run_sources(&all_runs);
    rendered.sources.splice(0..0, members.iter().map(|member| member.source.clone()));
    let (differences, faults) = unlike(&members, spec, over);
    rendered.faults.extend(faults);

    let mut text = rows(context, &members, over);
    text.push('\n');
    let points: Vec<figure::Point<'_>> = members
        .iter()
        .map(|member| figure::Point { at: member.at, comparison: &member.comparison })
        .collect();
    let drawn = figure::series(&points, over).map_err(|e| vec![Why::stale(e.message())])?;
    let said = format!("Tokens per second before and after, and their ratio, by {over}");
    let stem = shared_figure_stem(context.kept, &spec.select, &format!("over-{over}"));
    text += &rendered.add_figure(context, &stem, drawn, alt.unwrap_or(&said));
    let comparisons = members.iter().map(|member| &member.comparison);
    let arms: Vec<&Arm> = comparisons.flat_map(|found| &found.arms).collect();
    let folders: Vec<&Path> = members.iter().map(|member| member.source.folder.as_path()).collect();
    text += &provenance::line(context, &all_runs.iter().collect::<Vec<_>>(), &arms, &folders);
    text += &differences.map_or(String::new(), |sentence| format!("\n{sentence}"));
    rendered.text = text;
    Ok(rendered)
}

/// Reads a comparison, and the key's value from its first kept run, if possible one of the candidate.
fn member(context: &PageContext<'_>, folder: PathBuf, over: &str) -> Result<Member, Vec<Why>> {
    let (source, comparison) = comparison::read(context, &folder)?;
    let runs = comparison::kept_runs(context, &source, &comparison)?;
    let mut trials: Vec<_> = comparison.runs.iter().collect();
    trials.sort_by_key(|trial| trial.arm != CANDIDATE);
    let first = trials.iter().filter_map(|trial| trial.run.as_ref()).find_map(|id| runs.get(id));
    let value = first.and_then(|run| run.recipe_values.get(over));
    let Some(at) = value.and_then(|value| value.parse::<f64>().ok()).filter(|at| at.is_finite()) else {
        let has = value.map_or("none".to_owned(), |value| code(value));
        let why = format!("{over} has to be a number in every comparison; {} has {has}", source.id);
        return Err(vec![Why::fixed_by(why, "correct `over` or `select`")]);
    };
    Ok(Member { at, runs: runs.into_values().collect(), comparison, source })
}

/// Checks that all runs agree except in the key and in the changes of their comparisons.
fn unlike(members: &[Member], spec: &Spec, over: &str) -> (Option<String>, Vec<Why>) {
    let changes = members.iter().flat_map(|member| &member.comparison.changes);
    let changed = changes.filter_map(|change| change.split(':').next()).chain([over]);
    let across: Vec<String> = spec.across.iter().cloned().chain(alike::named(changed)).collect();
    let rows: Vec<alike::Row> =
        members.iter().flat_map(|member| &member.runs).map(alike::run_facts).collect();
    alike::compare(&rows, &across)
}

/// Formats a value of the key: with commas if it is whole, else as short as possible.
fn key_value(value: f64) -> String {
    if value.fract() == 0.0 { decimal(Some(value), 0) } else { value.to_string() }
}

fn rows(context: &PageContext<'_>, members: &[Member], over: &str) -> String {
    let over = format!(">{}", code(over));
    let headings = [
        "comparison",
        &over,
        ">before (tokens/s)",
        ">after (tokens/s)",
        ">after ÷ before (95 % interval)",
        "verdict",
        "loss gate",
        "prediction",
        "changed keys",
    ];
    let row = |member: &Member| {
        let found = &member.comparison;
        let speed = |arm: &Arm| decimal(arm.measured.get("tok_s").copied(), 0);
        let prediction = found.prediction.as_ref();
        let prediction = prediction.map(|one| format!("{}: {}", code(&one.text), comparison::held(one)));
        vec![
            link_to(&found.name, &context.link(&provenance::readme_or_folder(&member.source.folder))),
            key_value(member.at),
            speed(found.baseline()),
            speed(found.candidate()),
            found
                .speed()
                .and_then(Finding::ratio)
                .map_or(BLANK.to_owned(), |ratio| comparison::interval(&ratio)),
            found.verdict_words().to_owned(),
            comparison::gate(found).to_owned(),
            prediction.unwrap_or_else(|| BLANK.to_owned()),
            comparison::changed(found).unwrap_or_else(|| BLANK.to_owned()),
        ]
    };
    table(&headings.map(str::to_owned), &members.iter().map(row).collect::<Vec<_>>())
}
