//! Checks kept runs unchanged, and with one thing changed at a time.

use super::*;
use crate::results::TimingRow;
use crate::results::names::{ENVIRONMENT, METRICS, RESOLVED, SUMMARY, TIMING};
use crate::results::stored;
use std::path::{Path, PathBuf};

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/kept")
}

/// Returns the contradictions in a kept run after replacing a text wherever it occurs in one file.
fn changed(id: &str, file: &str, from: &str, to: &str) -> Result<Vec<String>> {
    let run = kept().join(id);
    let (recipe, name) = id.split_once('/').unwrap();
    let files = RunFiles::parse(&run, recipe.to_owned(), name.to_owned(), &|asked| {
        let path = run.join(asked);
        if !stored::is_file(&path) {
            return Ok(None);
        }
        let text = String::from_utf8(stored::read(&path)?).unwrap();
        assert!(asked != file || text.contains(from), "no `{from}` in {file}");
        Ok(Some(if asked == file { text.replace(from, to) } else { text }.into_bytes()))
    })?;
    Ok(differences(&files))
}

const RUN: &str = "quickstart/20261121T093646Z-7d757a20";

/// These runs come from several versions of xrun, and have the keys that recipes had then.
#[test]
fn every_kept_run_agrees_with_itself() {
    let mut count = 0;
    for run in crate::results::find::runs(&kept()).unwrap() {
        let found = differences(&RunFiles::read(&run).unwrap());
        assert_eq!(found, [""; 0], "{}", run.display());
        count += 1;
    }
    assert!(count >= 100, "{count} runs");
}

#[test]
fn a_changed_figure_is_told_from_the_rows() {
    for (from, to, said) in [
        (
            "\"tok_s\": 24779.668938090403",
            "\"tok_s\": 999999.0",
            "tok_s = 999999.0, but the rows give 24779.66893809",
        ),
        ("\"steps\": 700", "\"steps\": 4000", "steps = 4000, but the rows give 700"),
        ("\"tokens_seen\": 1433600", "\"tokens_seen\": 1", "tokens_seen = 1,"),
        ("1.0675474", "0.001", "train_loss.final.loss = 0.001, but the rows give 1.0675474"),
        ("\"wall_s\": 62.86915803", "\"wall_s\": 31.4", "wall_s = 31.4"),
        ("\"wall_s\":", "\"energy_j\": 3.0,\n  \"wall_s\":", "energy_j = 3.0, but the rows give null"),
        ("\"median\": 82.6484", "\"median\": 41.3242", "steady_state.step_ms.median"),
        ("first 5", "first 6", "steady_state.excluded_warmup = 5, but the rows give 6"),
        ("5 % from", "50 % from", "has a steady-state rule that this version does not know"),
        ("\"val_loss_over_floor\": 1.102", "\"val_loss_over_floor\": 1.002", "val_loss_over_floor"),
        ("\"mfu_pct\": null", "\"mfu_pct\": 60.0", "mfu_pct = 60.0, but the rows give null"),
        ("\"settled\": true", "\"settled\": false", "steady_state.settled = false"),
        ("\"steps_planned\": 700", "\"steps_planned\": 600", "steps_planned = 600"),
        ("\"recipe\": \"quickstart\"", "\"recipe\": \"dim384\"", "names the recipe \"dim384\""),
        (
            "20261121T093646Z-7d757a20",
            "20261121T093647Z-7d757a20",
            "names the run \"20261121T093647Z-7d757a20\"",
        ),
        ("7d757a20eced", "7d757a21eced", "has the hash 7d757a20eced, but summary.json says 7d757a21eced"),
        ("\"status\": \"ok\"", "\"status\": \"failed\"", ""),
    ] {
        let found = changed(RUN, SUMMARY, from, to).unwrap();
        assert_eq!(found.is_empty(), said.is_empty(), "{to}: {found:?}");
        assert!(said.is_empty() || found.iter().any(|found| found.contains(said)), "{to}: {found:?}");
    }
}

#[test]
fn changed_rows_recipes_and_times_are_told_from_each_other() {
    for (file, from, to, said) in [
        (RESOLVED, "lr = 0.003", "lr = 0.004", "resolved.toml has the hash"),
        (RESOLVED, "# n_kv_heads is unset", "# it is unset", "resolved.toml has the hash"),
        (RESOLVED, "steps = 700", "steps = 800", "training.steps = 800"),
        (METRICS, "\n2,4096,", "\n2,4097,", "metrics.csv:3 has step 2 after 4097 tokens"),
        (METRICS, "\n2,4096,", "\n3,4096,", "metrics.csv:3 has step 3"),
        (TIMING, "\n2,warmup,", "\n3,warmup,", "timing.csv does not have the steps of metrics.csv"),
        (TIMING, "20930.38376533148", "41860.76753066296", "tok_s = 41860.76753066296 at step 2"),
        (TIMING, ",97.84818200000001,", ",977.84818200000001,", "at step 2 (Warmup), but only 98.0287"),
        (
            ENVIRONMENT,
            "\"started\": \"2026-11-21",
            "\"started\": \"2026-11-20",
            "env.json says 2026-11-20T09:36:46Z",
        ),
    ] {
        let found = changed(RUN, file, from, to).unwrap();
        assert!(found.iter().any(|found| found.contains(said)), "{file} {to}: {found:?}");
    }
    assert!(changed(RUN, METRICS, "\n2,4096,", "\n2;4096,").is_err());
}

#[test]
fn rows_follow_the_ramp_of_the_batch() {
    let with_ramp = |ramp: &str| {
        let to = format!("batch_ramp = {ramp}\nsteps = 700");
        changed(RUN, RESOLVED, "steps = 700", &to).unwrap()
    };
    // The run's own batch as a stage of a ramp, and then another batch.
    let same = with_ramp("[[3, 16]]");
    assert!(same.iter().all(|found| found.contains("has the hash")), "{same:?}");
    let other = with_ramp("[[1, 16], [3, 8]]");
    assert!(other.iter().any(|found| found.contains("metrics.csv:3 has step 2 after 4096")), "{other:?}");
    assert!(other.iter().any(|found| found.contains("at step 2, but 1024 tokens in")), "{other:?}");
}

/// Returns the contradictions in a kept run after changing rows of `timing.csv` and summarizing them again.
fn with_timing(change: impl Fn(usize, &mut TimingRow)) -> Vec<String> {
    let mut files = RunFiles::read(&kept().join(RUN)).unwrap();
    files.timing.iter_mut().enumerate().for_each(|(at, row)| change(at, row));
    files.summary.measure(&files.metrics, &files.timing, 5);
    files.printed = serde_json::from_str(&serde_json::to_string(&files.summary).unwrap()).unwrap();
    differences(&files)
}

/// Speeds are doubled, and step times match them.
#[test]
fn halved_step_times_do_not_fit_the_wall_time() {
    let found = with_timing(|_, row| {
        row.step_ms /= 2.0;
        row.tok_s = row.tok_s.map(|_| 2048.0 / stored::seconds(row.step_ms));
    });
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("timing.csv has a median step of 41.") && found[0].contains("pass from row to row")
    );
}

#[test]
fn rows_that_a_busy_machine_wrote_late_fit_the_wall_time() {
    // Two of three rows come a second after their step, and all later rows are shifted with them.
    let late = |at: usize, row: &mut TimingRow| row.wall_s += (at - at / 3) as f64;
    let found = with_timing(late);
    assert!(found.iter().all(|found| !found.contains("pass from row to row")), "{found:?}");
    // Three of four late rows are too many.
    let found = with_timing(|at, row| row.wall_s += (at - at / 5) as f64);
    assert!(found.iter().any(|found| found.contains("pass from row to row")), "{found:?}");
}

#[test]
fn a_fork_begins_where_its_summary_says() {
    use crate::results::summary::ForkedFrom;
    let mut files = RunFiles::read(&kept().join(RUN)).unwrap();
    assert_eq!(files.fork(), None);
    let fork = |step, tokens_seen| Some(ForkedFrom { run: "parent".to_owned(), step, tokens_seen });
    files.summary.forked_from = fork(100, 204_800);
    let found = differences(&files);
    assert!(
        found[0].contains("forked_from.step = 100 after 204800 tokens, but metrics.csv begins with step 1")
    );
    files.metrics.drain(..100);
    files.timing.retain(|row| row.step > 100);
    assert_eq!(files.fork().as_deref(), Some("of parent at step 100"));
    assert!(differences(&files).iter().all(|found| !found.contains("forked_from")));
    files.summary.forked_from = fork(100, 1 << 40);
    assert!(differences(&files)[0].contains("forked_from"));
    files.summary.forked_from = None;
    assert_eq!(files.fork().as_deref(), Some("of a run not recorded at step 100"));
}

#[test]
fn contention_is_said_everywhere_or_nowhere() {
    let run = crate::results::find::runs(&kept()).unwrap();
    let on_gpu = |run: &&PathBuf| {
        let summary = crate::results::folder::read_summary(run).unwrap();
        summary.gpu.is_some_and(|gpu| gpu.contended == Some(false))
    };
    let mut files = RunFiles::read(run.iter().find(on_gpu).unwrap()).unwrap();
    let gpu = |files: &mut RunFiles| files.summary.gpu.clone().unwrap();
    files.summary.gpu = Some(crate::results::summary::Gpu { contended: Some(true), ..gpu(&mut files) });
    assert!(differences(&files)[0].contains("gpu.contended = true, the reason \"none\", and no note of it"));
    files.summary.gpu = Some(crate::results::summary::Gpu { contended: Some(false), ..gpu(&mut files) });
    assert_eq!(differences(&files), [""; 0]);
    files.timing.iter_mut().for_each(|row| row.throttle = Some("power_cap+thermal".to_owned()));
    assert!(differences(&files)[0].contains("gpu.contended = false, but"));
}
