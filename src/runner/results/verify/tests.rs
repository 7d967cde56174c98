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
        (
            "\"wall_s\":",
            "\"source_losses\": {\"web\": {\"final\": {\"step\": 1, \"loss\": 2.0}}},\n  \"wall_s\":",
            "source_losses.web.final = {\"step\":1,\"loss\":2.0}, but the rows give null",
        ),
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

/// Returns the contradictions in the kept run after a change of its rows, with the summary that these rows
/// give.
fn with_rows(change: impl Fn(&mut RunFiles)) -> Vec<String> {
    let mut files = RunFiles::read(&kept().join(RUN)).unwrap();
    change(&mut files);
    files.summary.measure(&files.metrics, &files.timing, 5);
    // This summary is of a version that did not have these.
    let rule = files.printed["steady_state"]["rule"].as_str().unwrap().to_owned();
    files.summary.steady_state.as_mut().unwrap().rule = rule;
    files.printed = serde_json::from_str(&serde_json::to_string(&files.summary).unwrap()).unwrap();
    differences(&files)
}

/// Rows are changed and everything that follows from them is computed again, so only the recipe and the other
/// file of rows tell.
#[test]
fn rows_that_the_recipe_does_not_give_are_found() {
    use crate::results::rows::Phase;
    assert_eq!(with_rows(|_| {}), [""; 0]);
    let metrics = |at: usize, change: fn(&mut crate::results::MetricsRow)| {
        with_rows(|files| change(&mut files.metrics[at]))
    };
    let timing = |at: usize, change: fn(&mut TimingRow)| with_rows(|files| change(&mut files.timing[at]));
    let step = |phase: Phase, step: u64| TimingRow { phase, step, ..TimingRow::default() };
    let added = |row: TimingRow| {
        with_rows(|files| {
            let at = files.timing.iter().position(|other| other.step == row.step).unwrap() + 1;
            let wall_s = files.timing[at - 1].wall_s;
            files.timing.insert(at, TimingRow { wall_s, ..row.clone() });
        })
    };
    for (found, says) in [
        (metrics(400, |row| row.lr *= 1.01), "has lr = "),
        (metrics(400, |row| row.lr = f64::NAN), "has lr = NaN"),
        (metrics(400, |row| row.loss = -0.5), "has loss = -0.5 at step 401"),
        (metrics(699, |row| row.val_loss = Some(0.3)), "has val_loss = 0.3 at step 700, but it is at least"),
        (metrics(400, |row| row.grad_norm = -1.0), "has grad_norm = -1"),
        (
            metrics(400, |row| row.val_loss = Some(1.2)),
            "metrics.csv has val_loss at step 401, but timing.csv",
        ),
        (
            metrics(699, |row| row.val_loss = None),
            "timing.csv has an evaluation of step 700, but metrics.csv",
        ),
        (timing(400, |row| row.tok_s = None), "timing.csv has no tok_s at step"),
        (timing(400, |row| row.phase = Phase::Warmup), "timing.csv has 6 steps of warm-up in 2 parts"),
        (timing(2, |row| row.phase = Phase::Train), "timing.csv has 4 steps of warm-up in 2 parts"),
        (timing(0, |row| row.phase = Phase::Train), "timing.csv has 4 steps of warm-up in 1 parts"),
        (timing(5, |row| row.phase = Phase::Warmup), "timing.csv has 6 steps of warm-up in 1 parts"),
        (timing(400, |row| row.written_step = Some(350)), "not that the state was copied for it"),
        (added(step(Phase::Eval, 401)), "timing.csv has an evaluation of step 401, but metrics.csv"),
        (
            with_rows(|files| {
                files.metrics[400].val_loss = Some(1.2);
                let at = files.timing.iter().position(|row| row.step == 401).unwrap() + 1;
                let wall_s = files.timing[at - 1].wall_s;
                let row = TimingRow { phase: Phase::Eval, step: 401, wall_s, ..TimingRow::default() };
                files.timing.insert(at, row);
            }),
            "an evaluation of step 401, which resolved.toml does not evaluate",
        ),
        (
            with_rows(|files| {
                files.metrics[699].val_loss = None;
                files.timing.retain(|row| row.phase != Phase::Eval || row.step != 700);
            }),
            "has no val_loss at step 700, which resolved.toml evaluates",
        ),
        (
            with_rows(|files| {
                let copied = TimingRow { phase: Phase::Snapshot, step: 300, ..TimingRow::default() };
                let at = files.timing.iter().position(|row| row.step == 301).unwrap();
                let wall_s = files.timing[at - 1].wall_s;
                files.timing.insert(at, TimingRow { wall_s, ..copied });
                files.timing[at + 1].written_step = Some(300);
                files.timing[at + 50].written_step = Some(300);
            }),
            "says that the checkpoint of step 300 was written during step",
        ),
        (with_rows(|files| files.summary.samples[0].step = 650), "has a sample of step 650"),
        (
            with_rows(|files| {
                let copy = format!("{}\n[optimizer]\nlr = 0.004 # x\n", crate::recipe::COPY_HEADER);
                files.recipe_copy = Some(copy);
            }),
            "recipe.toml sets optimizer.lr = 0.004, but resolved.toml has 0.003",
        ),
    ] {
        assert!(found.iter().any(|found| found.contains(says)), "{says}: {found:?}");
    }
}

/// Fields of a summary that do not follow from the other files of the run, as `docs/reports.md` says.
const NOT_CHECKED: [&str; 9] = [
    "reason",
    "corpus_hash",
    "parameters",
    "memory.baseline_rss_bytes",
    "memory.peak_rss_bytes",
    "samples",
    "sentences",
    "notes",
    "steady_state.rule",
];

/// Every number and text in a summary is changed in turn.
#[test]
fn every_field_of_a_summary_is_checked_or_listed() {
    let run = kept().join(RUN);
    let text = String::from_utf8(stored::read(&run.join(SUMMARY)).unwrap()).unwrap();
    let whole: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut open = vec![(String::new(), whole.clone())];
    let mut tried = 0;
    while let Some((pointer, value)) = open.pop() {
        let forged = match value {
            serde_json::Value::Object(inner) => {
                open.extend(inner.into_iter().map(|(name, value)| (format!("{pointer}/{name}"), value)));
                continue;
            }
            serde_json::Value::Number(number) => match number.as_u64() {
                Some(count) => serde_json::json!(count + 1),
                None => serde_json::json!(number.as_f64().unwrap() * 1.01),
            },
            serde_json::Value::String(text) => serde_json::json!(format!("{text}1")),
            serde_json::Value::Bool(value) => serde_json::json!(!value),
            serde_json::Value::Null | serde_json::Value::Array(_) => continue,
        };
        let name = pointer[1..].replace('/', ".");
        let mut changed = whole.clone();
        *changed.pointer_mut(&pointer).unwrap() = forged;
        let bytes = serde_json::to_vec_pretty(&changed).unwrap();
        let (recipe, id) = RUN.split_once('/').unwrap();
        let files = RunFiles::parse(&run, recipe.to_owned(), id.to_owned(), &|asked| {
            let path = run.join(asked);
            match asked == SUMMARY {
                true => Ok(Some(bytes.clone())),
                false => {
                    if stored::is_file(&path) {
                        stored::read(&path).map(Some)
                    } else {
                        Ok(None)
                    }
                }
            }
        });
        // A value that cannot be read is noticed too.
        let is_found = files.map_or(true, |files| !differences(&files).is_empty());
        let is_listed = NOT_CHECKED.iter().any(|listed| name.starts_with(listed));
        assert!(is_found || is_listed, "{name} can be changed");
        tried += 1;
    }
    assert!(tried > 40, "{tried}");
}
