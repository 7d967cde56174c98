//! Checks a run's rows against each other: steps, tokens, speeds, wall time and throttling.

use super::files::RunFiles;
use crate::recipe::{DEFAULT_LOCAL_BATCH_SIZE, StoredKeys};
use crate::results::names::{METRICS, RESOLVED, SUMMARY, TIMING};
use crate::results::quantiles::{Spread, median};
use crate::results::rows::{Phase, TimingRow};
use crate::results::steady::steady_rows;
use crate::results::stored::seconds;
use crate::results::summary::Status;
use std::collections::HashSet;

/// The largest relative difference between a speed and tokens over time, because times are whole nanoseconds.
const TOLERANCE: f64 = 1e-9;

/// Limits of the wall time between two rows of the steady state, which is the time of the step and of writing
/// the row: this factor times the median step, plus this many milliseconds. At least a quarter of the rows
/// stay within them, even on a slow disk and a busy machine. With fewer than `MIN_ROWS` rows, chance may
/// delay three quarters of them.
const MAX_FACTOR: f64 = 1.25;
const MAX_WRITING_MS: f64 = 5.0;
const MIN_ROWS: usize = 20;

/// Seconds between two samples of the GPU's throttling, and the fraction of throttled samples that counts as
/// contention.
const SAMPLE_S: f64 = 0.2;
const THROTTLED_FRACTION: f64 = 0.01;

/// Reasons for lower clocks that belong to the machine, in the words of the column `throttle`.
const USUAL_THROTTLE_REASONS: [&str; 3] = ["power_cap", "clocks_set", "display_clocks"];

/// Returns a sentence for each contradiction.
pub fn differences(run: &RunFiles) -> Vec<String> {
    let batches = Batches::from_keys(&run.keys);
    let batches = batches.as_ref();
    [steps(run, batches), rates(run, batches), check_wall_time(run), check_throttling(run)]
        .into_iter()
        .flatten()
        .collect()
}

/// The batches of a run, according to its recipe.
struct Batches {
    /// Sequences per step after the ramp.
    global: u64,
    /// For each stage of the ramp, its last step and its sequences per step.
    ramp: Vec<[u64; 2]>,
    seq_len: u64,
}

impl Batches {
    fn from_keys(keys: &StoredKeys) -> Option<Self> {
        let count = |key: &str| keys.value(key).map(|value| value.parse::<u64>().ok());
        let or = |key: &str, default: u64| count(key).unwrap_or(Some(default));
        let global = match count("training.global_batch_size") {
            Some(global) => global?,
            None => or("training.local_batch_size", DEFAULT_LOCAL_BATCH_SIZE as u64)?
                .checked_mul(or("training.accumulation", 1)?)?
                .checked_mul(or("parallelism.world_size", 1)?)?,
        };
        let ramp = match keys.value("training.batch_ramp") {
            None => Vec::new(),
            Some(text) => serde_json::from_str(text).ok()?,
        };
        let batches = Self { global, ramp, seq_len: count("training.seq_len")?? };
        global.checked_mul(batches.seq_len).map(|_| batches)
    }

    /// Returns the tokens of a step; steps count from 1.
    fn tokens(&self, step: u64) -> u64 {
        let stage = self.ramp.iter().find(|[end, _]| step <= *end);
        stage.map_or(self.global, |[_, sequences]| *sequences).saturating_mul(self.seq_len)
    }
}

/// Checks that every step has a row and the right number of tokens.
fn steps(run: &RunFiles, batches: Option<&Batches>) -> Option<String> {
    let rows = &run.metrics;
    let wrong = |at: usize| {
        let (row, before) = (&rows[at], at.checked_sub(1).map(|at| &rows[at]));
        let tokens = batches.map(|batches| batches.tokens(row.step));
        let follows = before.is_none_or(|before| before.step + 1 == row.step);
        let added = match before {
            Some(before) => row.tokens_seen.checked_sub(before.tokens_seen),
            // A fork continues where its parent was.
            None if row.step > 1 => tokens,
            None => Some(row.tokens_seen),
        };
        !follows || added.is_none() || tokens.is_some_and(|tokens| added != Some(tokens))
    };
    if let Some(at) = (0..rows.len()).find(|at| wrong(*at)) {
        let (line, row) = (at + 2, &rows[at]);
        return Some(format!(
            "{METRICS}:{line} has step {} after {} tokens, which does not follow from the row before it and the batch in {RESOLVED}",
            row.step, row.tokens_seen
        ));
    }
    let timing_steps: Vec<u64> = training(&run.timing).map(|row| row.step).collect();
    let is_complete = timing_steps.iter().eq(rows.iter().map(|row| &row.step));
    (run.summary.status == Status::Ok && !is_complete)
        .then(|| format!("{TIMING} does not have the steps of {METRICS}"))
}

fn training(rows: &[TimingRow]) -> impl Iterator<Item = &TimingRow> {
    rows.iter().filter(|row| row.phase.is_step())
}

/// Checks that the speed of every step is its tokens divided by its time.
fn rates(run: &RunFiles, batches: Option<&Batches>) -> Option<String> {
    let batches = batches?;
    let speed = |row: &TimingRow| batches.tokens(row.step) as f64 / seconds(row.step_ms);
    let differs = |row: &&TimingRow| {
        // A NaN speed is never near the expected one.
        row.tok_s.is_some_and(|tok_s| !is_near(tok_s, speed(row)))
    };
    let row = training(&run.timing).find(differs)?;
    let tokens = batches.tokens(row.step);
    Some(format!(
        "{TIMING} has tok_s = {} at step {}, but {tokens} tokens in {} ms make {}",
        row.tok_s.unwrap_or_default(),
        row.step,
        row.step_ms,
        speed(row)
    ))
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= TOLERANCE * a.abs()
}

/// Checks step times against the wall time between rows.
fn check_wall_time(run: &RunFiles) -> Option<String> {
    let befores = std::iter::once(0.0).chain(run.timing.iter().map(|row| row.wall_s));
    let passed: Vec<f64> =
        run.timing.iter().zip(befores).map(|(row, before)| (row.wall_s - before) * 1e3).collect();
    let slack = |row: &TimingRow| 1e-3 + TOLERANCE * row.wall_s * 1e3;
    let is_longer = |(row, passed): &(&TimingRow, &f64)| row.step_ms > *passed + slack(row);
    if let Some((row, passed)) = run.timing.iter().zip(&passed).find(is_longer) {
        return Some(format!(
            "{TIMING} has step_ms = {} at step {} ({:?}), but only {passed} ms passed since the row before it",
            row.step_ms, row.step, row.phase
        ));
    }
    let (steady, _) = steady_rows(&run.timing, 0);
    let steps: HashSet<u64> = steady.iter().map(|row| row.step).collect();
    // The clock starts before the first row, so the gap before it includes the preparation.
    let is_steady = |row: &TimingRow| row.phase == Phase::Train && steps.contains(&row.step);
    let gaps = run.timing.iter().zip(&passed).skip(1).filter(|(row, _)| is_steady(row));
    let gaps: Vec<f64> = gaps.map(|(_, passed)| *passed).collect();
    if gaps.len() < MIN_ROWS {
        return None;
    }
    let (gap, step) = (Spread::from_values(gaps)?.p25, median(steady.iter().map(|row| row.step_ms))?);
    (gap > MAX_FACTOR * step + MAX_WRITING_MS).then(|| {
        format!(
            "{TIMING} has a median step of {step} ms, but {gap} ms or more pass from row to row at three of \
             four rows"
        )
    })
}

/// Checks that a run with throttled rows is reported as contended.
fn check_throttling(run: &RunFiles) -> Option<String> {
    if run.summary.gpu.as_ref()?.contended != Some(false) {
        return None;
    }
    let is_unusual = |row: &&TimingRow| {
        row.throttle
            .as_ref()
            .is_some_and(|reasons| reasons.split('+').any(|reason| !USUAL_THROTTLE_REASONS.contains(&reason)))
    };
    // Each of these rows has at least one throttled sample.
    let throttled = run.timing.iter().filter(is_unusual).count() as f64;
    let startup = run.summary.startup;
    let before = [startup.corpus_s, startup.device_s, startup.kernels_s, startup.state_s];
    let watched = run.summary.wall_s.unwrap_or(0.0) + before.into_iter().flatten().sum::<f64>();
    // Add one sample for each end, and one for the reading that a row waits for.
    let samples = watched / SAMPLE_S + 3.0;
    (throttled > THROTTLED_FRACTION * samples + 1.0).then(|| {
        format!("{SUMMARY} has gpu.contended = false, but {throttled} rows of {TIMING} were throttled")
    })
}
