//! Judges a stored comparison again, from the rows of its runs and with the same code, and compares every
//! part of its record with what comes out. A record that was edited contradicts its runs.

mod ledger;

use super::arms::{changes_between, load_stored};
use super::family::question_hash;
use super::judge;
use super::judge::curves::{ExpectedCurve, LossPoint};
use super::seeds::fixed_seeds;
use super::trials::FinishedTrial;
use super::{measured, pairs, record};
use crate::format::significant;
use crate::recipe::{Class, Predicted, Prediction, find_path};
use crate::results::experiment::{ARM_NAMES, Average, Design, Experiment, ExperimentRun, Standing};
use crate::results::folder::read_summary;
use crate::results::measure::Measure;
use crate::results::names::time_in_name;
use jiff::Timestamp;
pub use ledger::contradictions_of_place;
use serde_json::Value;
use std::path::Path;

/// How long after its comparison a run of it may have begun, in seconds: a month. Longer means that a date is
/// wrong.
const MAX_DELAY_S: i64 = 31 * 24 * 3600;

/// How much the time in a comparison's name may differ from the one in its record, in seconds.
const MAX_NAME_DELAY_S: i64 = 600;

/// Numbers that differ by less than this fraction are equal; sums in another order differ in the last digits.
const TOLERANCE: f64 = 1e-9;

/// Returns a sentence for each contradiction between a comparison's record and its runs, which lie below
/// `runs` as `RECIPE/RUN`. Runs that are not there are left out; readers of kept comparisons report them.
pub fn contradictions(recorded: &Experiment, runs: &Path) -> Vec<String> {
    let mut found = Vec::new();
    // Versions that recorded no standing judged trials by several rules, of which this one knows the last.
    let is_known =
        recorded.standing.is_some() || recorded.rule == judge::rule(&recorded.design, &recorded.findings);
    if recorded.has_trials() && !is_known {
        found.extend(design(recorded));
        found.extend(dates(recorded));
        return found;
    }
    let mut anew = recorded.clone();
    let measures: Vec<Measure> = recorded.findings.iter().map(|finding| finding.measure.clone()).collect();
    let mut curves: [Vec<Vec<LossPoint>>; 2] = Default::default();
    let mut columns: [Vec<measured::Columns>; 2] = Default::default();
    let mut is_whole = true;
    for run in &mut anew.runs {
        let Some(name) = run.run.clone() else {
            // The rows of an external command are beside the record.
            is_whole &= run.status.is_none();
            continue;
        };
        let folder = runs.join(&name);
        let Ok(summary) = read_summary(&folder) else {
            is_whole = false;
            continue;
        };
        if run.status.as_deref().is_some_and(|status| status != summary.status.as_str()) {
            found.push(format!(
                "it says that {name} is {}, and the run is {}",
                run.status.as_deref().unwrap_or("open"),
                summary.status.as_str()
            ));
        }
        found.extend(run_facts(recorded, run, &folder));
        if recorded.has_trials() {
            let Ok(trial) = FinishedTrial::from_stored_run(&folder, run.arm) else { continue };
            if let (Some(curves), Some(columns)) = (curves.get_mut(run.arm), columns.get_mut(run.arm)) {
                curves.push(trial.curve);
                columns.push(trial.columns);
            }
            (run.blocks, run.metrics_hash) = (trial.record.blocks, trial.record.metrics_hash);
        } else {
            *run = pairs::with_values(std::mem::take(run), &folder, &measures);
        }
    }
    if recorded.has_trials() && is_whole {
        again_trials(&mut anew, &curves, columns);
    }
    // Records of earlier versions have no standing, and not all of these facts.
    if recorded.standing.is_some() && is_whole {
        found.extend(record::note_runs(runs, &mut anew).err().map(|e| e.message().to_owned()));
        anew.fixed_seeds = seeds_of_runs(recorded, runs);
    }
    judge::judge(&mut anew);
    found.extend(differences(recorded, &anew, is_whole));
    found.extend(design(recorded));
    found.extend(dates(recorded));
    found
}

/// Returns the seeds that the recipes of its runs set.
fn seeds_of_runs(recorded: &Experiment, runs: &Path) -> Vec<String> {
    if recorded.has_trials() {
        return Vec::new();
    }
    let first =
        |arm: usize| recorded.runs_in(arm).find_map(|run| load_stored(&runs.join(run.run.as_ref()?)).ok());
    let recipes = (0..recorded.arms.len()).filter_map(first);
    let set = recipes.filter_map(|recipe| fixed_seeds(recipe.name(), &recipe).ok()).flatten();
    set.collect::<std::collections::BTreeSet<String>>().into_iter().collect()
}

/// Judges curves and means of trials again, by the rule of the record.
fn again_trials(
    anew: &mut Experiment,
    curves: &[Vec<Vec<LossPoint>>; 2],
    columns: [Vec<measured::Columns>; 2],
) {
    if anew.average == Average::Mean {
        for (arm, columns) in anew.arms.iter_mut().zip(&columns) {
            arm.measured = measured::means(columns);
        }
    }
    // Only the user knows how far curves may be apart if a training key changed or an arm is a command.
    let trains_otherwise = anew.changes.iter().any(|change| {
        let key = change.split(':').next().and_then(find_path);
        key.is_some_and(|key| key.class == Class::Training)
    });
    let has_command = anew.runs.iter().any(|run| run.run.is_none());
    let expected = anew.curves().map(|finding| match finding.min_effect {
        Some(tolerance) => ExpectedCurve::Within(tolerance),
        None if trains_otherwise || has_command => ExpectedCurve::Unknown,
        None => ExpectedCurve::Bits,
    });
    let judged = expected.map(|expected| expected.judge(&curves[0], &curves[1]));
    let mut findings = anew.findings.iter_mut();
    if let (Some(judged), Some(known)) = (judged, findings.find(|known| known.measure == Measure::LossCurves))
    {
        known.verdict = judged.verdict;
    }
}

/// Compares what a run is with what the record says of it.
fn run_facts(recorded: &Experiment, run: &ExperimentRun, folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let name = run.run.as_deref().unwrap_or_default();
    let Ok(recipe) = load_stored(folder) else { return found };
    let seed = recipe.values().training.seed;
    if run.seed.is_some_and(|said| said != seed) {
        found.push(format!(
            "it says that {name} has the seed {}, and the run has {seed}",
            run.seed.unwrap_or_default()
        ));
    }
    let steps = recipe.values().training.steps as u64;
    let budget = recorded.arms.get(run.arm).and_then(|arm| arm.budget);
    if let Some(said) = budget.map(|budget| budget.steps).filter(|said| *said != steps) {
        found.push(format!(
            "it says that the {} trains {said} steps, and {name} has {steps}",
            ARM_NAMES[run.arm.min(1)]
        ));
    }
    // Its partner in the other arm may differ only in keys that the record names.
    let own = recorded.runs.iter().position(|one| one == run).unwrap_or_default();
    let partner = recorded.runs.iter().enumerate().find(|(at, one)| *at > own && one.arm != run.arm);
    let partner = partner.and_then(|(_, one)| Some(folder.parent()?.parent()?.join(one.run.as_deref()?)));
    if let Some(Ok(other)) = partner.map(|partner| load_stored(&partner)) {
        let is_named =
            |key: &str| recorded.changes.iter().any(|change| change.split(':').next() == Some(key));
        let changes = changes_between(&recipe, &other);
        // Keys that neither run stored are newer than both.
        let is_stored = |key: &str| recipe.locate(key).is_some() || other.locate(key).is_some();
        let hidden = changes.iter().find(|change| {
            let counts = change.class == Class::Training && change.key != "training.seed";
            counts && is_stored(change.key) && !is_named(change.key)
        });
        found.extend(hidden.map(|change| {
            format!(
                "its arms differ in {} ({} and {}), which it does not name",
                change.key, change.old, change.new
            )
        }));
    }
    found
}

/// Compares the record with what was judged again. If runs are missing, only their values are compared.
fn differences(recorded: &Experiment, anew: &Experiment, is_whole: bool) -> Vec<String> {
    let mut found = Vec::new();
    for (old, new) in recorded.runs.iter().zip(&anew.runs) {
        let name = old.run.as_deref().unwrap_or("a run");
        let facts = |run: &ExperimentRun| serde_json::json!({"metrics_hash": run.metrics_hash, "blocks": run.blocks, "values": run.values});
        first_difference(&format!("{name}: "), &facts(old), &facts(new), &mut found);
    }
    if !is_whole {
        return found;
    }
    let is_speed_by_medians = recorded.average == Average::Median;
    for (old, new) in recorded.findings.iter().zip(&anew.findings) {
        let [mut old_json, mut new_json] =
            [old, new].map(|one| serde_json::to_value(one).unwrap_or_default());
        for value in [&mut old_json, &mut new_json] {
            // Sentences are worded differently by versions; the verdict that they explain is compared.
            remove(value, "because");
            if is_speed_by_medians {
                ["baseline", "candidate", "pairs"].iter().for_each(|key| remove(value, key));
            }
        }
        first_difference(&format!("{}: ", old.measure), &old_json, &new_json, &mut found);
    }
    let whole = |one: &Experiment| {
        serde_json::json!({
            "joint": one.joint.as_ref().map(|joint| joint.verdict),
            "diverged": one.diverged,
            "programs": one.provenance.programs,
            "devices": one.provenance.devices,
            "held_out_hashes": one.provenance.held_out_hashes,
            "evaluated_tokens": one.provenance.evaluated_tokens,
            "in_training": one.provenance.in_training,
            "uniform_loss": one.provenance.uniform_loss,
            "parameters": one.arms.iter().map(|arm| arm.budget.and_then(|budget| budget.parameters)).collect::<Vec<_>>(),
            "fixed_seeds": one.fixed_seeds,
            "qualifiers": one.qualifiers,
            "looks": match &one.design { Design::Sequential { looks, .. } => Some(looks), _ => None },
        })
    };
    first_difference("", &whole(recorded), &whole(anew), &mut found);
    if let (Some(old), Some(new)) = (&recorded.prediction, &anew.prediction) {
        let is_known = old.held == new.held
            || recorded.standing.is_none() && old.held == held_by_estimate(anew, &old.text);
        if !is_known {
            let words =
                |held: Option<bool>| held.map_or("open", |held| if held { "held" } else { "falsified" });
            found.push(format!(
                "it says that the prediction `{}` is {}, and its runs give {}",
                old.text,
                words(old.held),
                words(new.held)
            ));
        }
    }
    found
}

/// Judges a range by its estimate, as versions did that recorded no standing.
fn held_by_estimate(experiment: &Experiment, text: &str) -> Option<bool> {
    let prediction: Prediction = text.parse().ok()?;
    let (name, low, high) = match &prediction.of {
        Predicted::Difference { measure, low, high } => (measure, *low, *high),
        Predicted::Range { column, low, high } => (column, *low, *high),
        _ => return None,
    };
    let interval = experiment.finding(name)?.interval?;
    Some((low..=high).contains(&interval.estimate))
}

fn remove(value: &mut Value, key: &str) {
    if let Value::Object(members) = value {
        members.remove(key);
    }
}

/// Adds a sentence for the first difference between two values.
fn first_difference(place: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    let before = found.len();
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for key in old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))) {
                let [one, other] = [old, new].map(|members| members.get(key).unwrap_or(&Value::Null));
                first_difference(&format!("{place}{key} "), one, other, found);
                if found.len() > before {
                    return;
                }
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (one, other) in old.iter().zip(new) {
                first_difference(place, one, other, found);
                if found.len() > before {
                    return;
                }
            }
        }
        _ if is_equal(old, new) => {}
        _ => found.push(format!("{place}is {}, and its runs give {}", shown(old), shown(new))),
    }
}

fn is_equal(old: &Value, new: &Value) -> bool {
    match (old.as_f64(), new.as_f64()) {
        (Some(a), Some(b)) => a == b || (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()).max(1e-3),
        _ => old == new,
    }
}

fn shown(value: &Value) -> String {
    match value.as_f64() {
        Some(number) => significant(number),
        None => value.to_string().chars().take(60).collect(),
    }
}

/// Checks that the record has the runs that its design and its question ask for.
fn design(recorded: &Experiment) -> Option<String> {
    let planned = match &recorded.design {
        Design::Trials { trials } => *trials,
        Design::Pairs { pairs } => 2 * pairs,
        Design::Sequential { .. } => recorded.runs.len(),
    };
    if recorded.finished && planned != recorded.runs.len() {
        return Some(format!("its design has {planned} runs, and it lists {}", recorded.runs.len()));
    }
    let is_stopped = matches!(recorded.design, Design::Sequential { max_pairs, .. } if recorded.pairs().count() < max_pairs);
    let said = recorded.question.as_ref().filter(|_| !is_stopped)?;
    (question_hash(recorded).as_ref() != Some(said))
        .then(|| "its question is not the one that was asked: arms, measures, smallest effects, confidence, seeds or prediction were changed".to_owned())
}

/// Checks that the times of the record and of its runs are in order.
fn dates(recorded: &Experiment) -> Vec<String> {
    let mut found = Vec::new();
    let began = recorded.provenance.began.as_deref().and_then(|began| began.parse::<Timestamp>().ok());
    let (Some(began), Some(named)) = (began, time_in_name(&recorded.id)) else { return found };
    let apart = |a: Timestamp, b: Timestamp| a.duration_since(b).as_secs();
    if apart(named, began).abs() > MAX_NAME_DELAY_S {
        found.push(format!("it says that it began at {began}, and its name says {named}"));
    }
    let is_confirmatory = recorded.standing == Some(Standing::Confirmatory);
    for run in &recorded.runs {
        let Some(name) = run.run.as_deref() else { continue };
        let Some(start) = name.rsplit('/').next().and_then(time_in_name) else { continue };
        let delay = apart(start, began);
        // Records without a standing did not say which of their runs were older.
        if recorded.standing.is_some() && delay > MAX_DELAY_S || !run.reused && delay < -1 && is_confirmatory
        {
            found.push(format!("its run {name} began at {start}, and the comparison at {began}"));
            break;
        }
    }
    found
}
