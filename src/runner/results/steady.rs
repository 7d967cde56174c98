//! The steady state of a run: the steps that count for its speed, and their quantiles.

use super::numbers::{NamedNumbers, Names, SteadyMedians};
use super::quantiles::{Spread, median};
use super::rows::{Phase, TimingRow};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Number of blocks into which samples are cut to find an initial transient.
const BLOCKS: usize = 20;
/// With fewer samples, block medians are too noisy to show a transient.
const MIN_SAMPLES: usize = 40;
/// Largest relative difference between a block's median and the settled one.
const TOLERANCE: f64 = 0.05;

/// The steady-state speed of a run, and the rule that selected it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteadyState {
    /// Number of training steps that count.
    pub steps: usize,
    /// The first step that counts, if any.
    pub first_step: Option<u64>,
    /// Number of steps excluded as warm-up.
    pub excluded_warmup: usize,
    /// Number of steps excluded because an evaluation, a checkpoint or a generation ran in them, or a
    /// checkpoint was written in the background.
    pub excluded_other_work: usize,
    /// Number of steps excluded as an initial transient.
    pub excluded_transient: usize,
    /// True if the step time settled; `None` if there were too few steps to tell.
    pub settled: Option<bool>,
    /// Wall time of a step, in milliseconds.
    pub step_ms: Option<Spread>,
    /// Tokens per second over all ranks.
    pub tok_s: Option<Spread>,
    /// Medians of further columns of `timing.csv`, as the table of metrics lists them, by column.
    #[serde(flatten)]
    pub medians: NamedNumbers<SteadyMedians>,
    /// The rule in words.
    pub rule: String,
}

/// Finds the steady state in the rows of `timing.csv`, which must be in file order.
///
/// Three kinds of steps are excluded. Warm-up: the first `warmup` training steps, and every step that a
/// process marked as warm-up, since a resumed run warms up again. Other work: steps in which an evaluation, a
/// save or a generation ran, or during which a checkpoint was written. And an initial transient: the
/// remaining steps are cut into 20 blocks; the settled time is the median of the later half, and leading
/// blocks whose median is more than 5 % away from it are dropped. If that concerns every block in the first
/// half, the run never settled: only that half is dropped, and `settled` is false.
pub fn steady_state(rows: &[TimingRow], warmup: usize) -> SteadyState {
    steady_rows(rows, warmup).1
}

/// Returns the rows of the steady state, in file order, and what [`steady_state`] returns.
pub fn steady_rows(rows: &[TimingRow], warmup: usize) -> (Vec<&TimingRow>, SteadyState) {
    let is_training = |row: &&TimingRow| row.phase.is_step();
    let busy: HashSet<u64> = rows.iter().filter(|row| !is_training(row)).map(|row| row.step).collect();
    let mut kept: Vec<&TimingRow> = Vec::new();
    let (mut excluded_warmup, mut excluded_other_work) = (0, 0);
    for (index, row) in rows.iter().filter(is_training).enumerate() {
        if index < warmup || row.phase == Phase::Warmup {
            excluded_warmup += 1;
        } else if busy.contains(&row.step) || row.written_step.is_some() || !row.step_ms.is_finite() {
            excluded_other_work += 1;
        } else {
            kept.push(row);
        }
    }
    let times: Vec<f64> = kept.iter().map(|row| row.step_ms).collect();
    let (excluded_transient, settled) = transient(&times);
    kept.drain(..excluded_transient);
    let mut medians = NamedNumbers::default();
    for column in SteadyMedians::names() {
        medians.set(column, median(kept.iter().filter_map(|row| row.number(column))));
    }
    let state = SteadyState {
        steps: kept.len(),
        first_step: kept.first().map(|row| row.step),
        excluded_warmup,
        excluded_other_work,
        excluded_transient,
        settled,
        step_ms: Spread::from_values(kept.iter().map(|row| row.step_ms)),
        tok_s: Spread::from_values(kept.iter().filter_map(|row| row.tok_s)),
        medians,
        rule: rule(warmup),
    };
    (kept, state)
}

/// Returns how many leading samples belong to a transient, and whether the rest has settled.
fn transient(times: &[f64]) -> (usize, Option<bool>) {
    if times.len() < MIN_SAMPLES {
        return (0, None);
    }
    let half = times.len() / 2;
    let median = |part: &[f64]| median(part.iter().copied()).unwrap_or(f64::NAN);
    let settled_at = median(&times[half..]);
    let near = |block: &[f64]| (median(block) - settled_at).abs() <= TOLERANCE * settled_at;
    let block = times.len() / BLOCKS;
    match times[..half].chunks(block).position(near) {
        Some(blocks) => (blocks * block, Some(true)),
        None => (half, Some(false)),
    }
}

/// Returns the number of warm-up steps in a rule, if the rule is this version's or an equivalent one from an
/// earlier version.
pub fn warmup_in_rule(stated: &str) -> Option<usize> {
    let (_, rest) = stated.split_once("without the first ")?;
    let warmup = rest.split(' ').next()?.parse().ok()?;
    let known = [rule(warmup), rule_without_writes(warmup), earliest_rule(warmup)];
    known.iter().any(|known| known == stated).then_some(warmup)
}

/// Returns the rule in the words of versions that did not write checkpoints in the background.
fn rule_without_writes(warmup: usize) -> String {
    rule(warmup).replace(DURING_WRITES, "")
}

/// Returns the rule in the words of versions that did not compare ranks.
fn earliest_rule(warmup: usize) -> String {
    format!(
        "training steps, without the first {warmup} (and the first {warmup} after a resume), without steps \
         that also evaluated, saved or generated, and without a transient: of 20 blocks, leading ones whose \
         median is more than 5 % from the median of the later half (looked for from 40 steps on); quantiles \
         are linearly interpolated"
    )
}

/// The part of the rule about steps during which a checkpoint was written.
const DURING_WRITES: &str = " or ran beside the write of a checkpoint";

/// Returns the rule in words, as the summary stores it.
fn rule(warmup: usize) -> String {
    format!(
        "training steps, without the first {warmup} (and the first {warmup} after a resume), without steps \
         that also evaluated, compared ranks, saved or generated{DURING_WRITES}, and without a transient: of blocks of \
         1/{BLOCKS} of the rest, leading ones whose median is more than {:.0} % from the median of the \
         later half (looked for from {MIN_SAMPLES} steps on); quantiles are linearly interpolated",
        TOLERANCE * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: u64, phase: Phase, step_ms: f64) -> TimingRow {
        TimingRow {
            data_wait_ms: Some(step_ms / 100.0),
            tok_s: Some(1e6 / step_ms),
            ..TimingRow::timed(step, phase, 0.0, step_ms)
        }
    }

    fn training(times: impl IntoIterator<Item = f64>) -> Vec<TimingRow> {
        times.into_iter().enumerate().map(|(i, ms)| row(i as u64 + 1, Phase::Train, ms)).collect()
    }

    #[test]
    fn warmup_and_steps_with_other_work_are_left_out() {
        let mut rows = training([900.0, 800.0, 100.0, 100.0, 500.0, 100.0]);
        rows.insert(5, row(5, Phase::Check, 9000.0));
        rows.push(row(7, Phase::Warmup, 700.0));
        rows.push(row(8, Phase::Train, 100.0));
        let steady = steady_state(&rows, 2);
        assert_eq!((steady.steps, steady.first_step), (4, Some(3)));
        assert_eq!(
            (steady.excluded_warmup, steady.excluded_other_work, steady.excluded_transient),
            (3, 1, 0)
        );
        let spread = steady.step_ms.unwrap();
        assert_eq!((spread.p10, spread.median, spread.p90), (100.0, 100.0, 100.0));
        assert_eq!(steady.tok_s.unwrap().median, 1e4);
        assert_eq!(steady.medians.get("data_wait_ms"), Some(1.0));
        assert_eq!(steady.medians.get("mfu_pct"), None);
        assert_eq!(steady.settled, None, "too few steps to tell");
        assert_eq!(warmup_in_rule(&steady.rule), Some(2));
        assert_eq!(warmup_in_rule(&steady.rule.replace("5 %", "9 %")), None);
        assert_eq!(warmup_in_rule(&rule_without_writes(7)), Some(7));
        assert_ne!(rule_without_writes(7), rule(7));
        assert_eq!(warmup_in_rule(&earliest_rule(20)), Some(20));
    }

    #[test]
    fn steps_beside_a_write_are_left_out() {
        let mut rows = training([100.0, 100.0, 140.0, 150.0, 100.0]);
        rows.insert(2, row(2, Phase::Snapshot, 10.0));
        for row in &mut rows[3..5] {
            row.written_step = Some(2);
        }
        let steady = steady_state(&rows, 0);
        assert_eq!((steady.steps, steady.excluded_other_work), (2, 3));
        assert_eq!(steady.step_ms.unwrap().p90, 100.0);
    }

    #[test]
    fn a_transient_is_found_and_dropped() {
        // A clock that slows the step from 60 ms to 100 ms over the first 30 of 200 steps, with 2 % of
        // jitter.
        let jitter = |i: usize| 1.0 + 0.02 * ((i * 7919 % 13) as f64 / 6.5 - 1.0);
        let time = |i: usize| jitter(i) * if i < 30 { 60.0 + 40.0 * i as f64 / 30.0 } else { 100.0 };
        let steady = steady_state(&training((0..200).map(time)), 0);
        assert!((20..=40).contains(&steady.excluded_transient), "{}", steady.excluded_transient);
        assert_eq!(steady.settled, Some(true));
        assert!((steady.step_ms.unwrap().median - 100.0).abs() < 1.0);
        // The same run without the transient loses nothing.
        let steady = steady_state(&training((0..200).map(|i| 100.0 * jitter(i))), 0);
        assert_eq!((steady.excluded_transient, steady.settled, steady.steps), (0, Some(true), 200));
    }

    #[test]
    fn single_slow_steps_are_no_transient() {
        let time = |i: usize| if i.is_multiple_of(9) { 300.0 } else { 100.0 };
        assert_eq!(steady_state(&training((0..100).map(time)), 0).excluded_transient, 0);
    }

    #[test]
    fn a_run_that_never_settles_says_so() {
        let steady = steady_state(&training((0..100).map(|i| 50.0 + i as f64 * 5.0)), 0);
        assert_eq!((steady.settled, steady.excluded_transient), (Some(false), 50));
    }

    #[test]
    fn medians_stand_among_the_other_fields_and_may_be_missing() {
        let row = TimingRow { driver_allocations: Some(3), ..row(1, Phase::Train, 100.0) };
        let mut json = serde_json::to_value(steady_state(&[row], 0)).unwrap();
        assert_eq!((&json["driver_allocations"], &json["hfu_pct"]), (&3.0.into(), &serde_json::Value::Null));
        json.as_object_mut().unwrap().remove("hfu_pct");
        let read: SteadyState = serde_json::from_value(json.clone()).unwrap();
        assert_eq!((read.medians.get("data_wait_ms"), read.medians.get("hfu_pct")), (Some(1.0), None));
        json["data_wait_ms"] = "long".into();
        assert!(
            serde_json::from_value::<SteadyState>(json).unwrap_err().to_string().contains("data_wait_ms")
        );
    }

    #[test]
    fn no_rows_give_blanks_not_zeros() {
        let steady = steady_state(&[], 3);
        assert_eq!((steady.steps, steady.step_ms, steady.tok_s), (0, None, None));
        let steady = steady_state(&training([100.0]), 3);
        assert_eq!((steady.steps, steady.step_ms, steady.first_step), (0, None, None));
    }
}
