//! Blocks of kept comparisons ordered by a key, such as ratios by the number of GPUs, the width or the batch.

use super::alike;
use super::comparison::{gate, speed_ratio};
use super::figure::{self, Member};
use super::kept_comparison::{self, KeptComparison, find_all, predicted};
use super::page_context::{PageContext, Rendered, shared_figure_stem};
use super::spec::Spec;
use super::text::{code, table};
use super::why::Why;
use crate::format::{BLANK, decimal};
use crate::results::experiment::{Arm, CANDIDATE, Experiment, Finding};
use std::path::Path;

/// Renders a table of the newest comparison of each name at each value of `over`, and a figure of them.
pub fn render(context: &PageContext<'_>, spec: &Spec, over: &'static str) -> Result<Rendered, Vec<Why>> {
    let mut members: Vec<Member> = Vec::new();
    for name in &spec.select {
        // Folders come newest first, so members that exist already are newer.
        for folder in find_all(context.kept, name, Experiment::has_trials)? {
            let member = member(context, &folder, over)?;
            let is_newest = |m: &Member| m.at != member.at || m.kept.found.name != member.kept.found.name;
            if members.iter().all(is_newest) {
                members.push(member);
            }
        }
    }
    // The sort is stable: members with the same value keep the order of the block's names.
    members.sort_by(|a, b| a.at.total_cmp(&b.at));

    let comparisons = || members.iter().map(|member| &member.kept);
    let mut rendered = kept_comparison::sources(comparisons());
    let changed = comparisons().flat_map(KeptComparison::changed_keys).chain([over]);
    let facts: Vec<_> = comparisons().flat_map(|kept| kept.runs.values()).map(alike::run_facts).collect();
    let (differences, faults) = alike::compare(&facts, &alike::across(&spec.across, changed));
    rendered.faults.extend(faults);
    rendered.text = rows(context, &members, over) + "\n";
    let said = format!("Tokens per second before and after, and their ratio, by {over}");
    let stem = shared_figure_stem(context.kept, &spec.select, &format!("over-{over}"));
    let drawn = figure::series(&members, over);
    rendered.add_figure(context, &stem, drawn, spec.alt.as_ref().unwrap_or(&said))?;
    rendered.end(&kept_comparison::origin(context, comparisons()), differences);
    Ok(rendered)
}

/// Reads a comparison, and the key's value from its first kept run, if possible one of the candidate.
fn member(context: &PageContext<'_>, folder: &Path, over: &str) -> Result<Member, Vec<Why>> {
    let kept = KeptComparison::read(context, folder)?;
    let mut trials: Vec<_> = kept.found.runs.iter().collect();
    trials.sort_by_key(|trial| trial.arm != CANDIDATE);
    let first = trials.iter().filter_map(|trial| trial.run.as_ref()).find_map(|id| kept.runs.get(id));
    let value = first.and_then(|run| run.recipe_values.get(over));
    let Some(at) = value.and_then(|value| value.parse::<f64>().ok()).filter(|at| at.is_finite()) else {
        let has = value.map_or("none".to_owned(), |value| code(value));
        let why = format!("{over} has to be a number in every comparison; {} has {has}", kept.source.id);
        return Err(vec![Why::fixed_by(why, "correct `over` or `select`")]);
    };
    Ok(Member { at, kept })
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
    let row = |Member { at, kept }: &Member| {
        let found = &kept.found;
        let speed = |arm: &Arm| decimal(arm.measured.get("tok_s").copied(), 0);
        let cell = |value: Option<String>| value.unwrap_or_else(|| BLANK.to_owned());
        vec![
            kept.link(context, &found.name),
            key_value(*at),
            speed(found.baseline()),
            speed(found.candidate()),
            cell(found.speed().and_then(Finding::ratio).map(speed_ratio)),
            found.verdict_words(),
            gate(found).to_owned(),
            cell(predicted(found)),
            cell(kept.changes()),
        ]
    };
    table(&headings.map(str::to_owned), &members.iter().map(row).collect::<Vec<_>>())
}
