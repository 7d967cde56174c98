//! Tests of the progress display.

use super::*;
use crate::results::rows::{Phase, TimingRow};
use crate::results::summary::{ForkedFrom, Gpu, LossAt, Losses, Status, TrainingLosses};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::json;
use std::sync::{Arc, Mutex};

/// A writer whose content the test can read.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn pace(tok_s: f64, eta_s: f64) -> Pace {
    Pace { tok_s: Some(tok_s), eta_s: Some(eta_s) }
}

fn row(step: u64, val_loss: Option<f32>) -> MetricsRow {
    MetricsRow {
        step,
        tokens_seen: step * 1000,
        loss: 2.0,
        val_loss,
        lr: 1e-3,
        grad_norm: 0.5,
        ..MetricsRow::default()
    }
}

fn summary() -> Summary {
    let mut summary = Summary::started("r", "run", "hash", 40);
    summary.status = Status::Ok;
    summary.steps = 40;
    summary.tokens_seen = 40_000;
    summary.floor = Some(1.25);
    summary.val_loss_over_floor = Some(1.2);
    summary.train_loss =
        TrainingLosses::from_series((1..=40).map(|step| LossAt { step, loss: 5.6 - step as f32 / 10.0 }));
    summary.val_loss = Losses::from_series([LossAt { step: 40, loss: 1.5 }]);
    summary.wall_s = Some(61.0);
    summary
}

#[test]
fn plain_lines_are_few_and_carry_evaluations() {
    let out = Shared::default();
    let mut progress = Progress::with_sink(Sink::Plain(Box::new(out.clone())), 40, Some(1.25));
    progress.begin(Path::new("results/r/run"));
    progress.step(&row(1, None), Pace::default());
    progress.pause(Phase::Eval, 3, 40);
    progress.step(&row(20, Some(1.75)), pace(500.0, 40.0));
    progress.step(&row(40, None), pace(500.0, 0.0));
    progress.note("saved");
    let mut stdout = Shared::default();
    progress.finish_to(&mut stdout, &summary(), Path::new("results/r/run"));
    insta::assert_snapshot!(out.text(), @r"
    writing to results/r/run
    step 1/40  loss 2.000  floor 1.250
    step 20/40  loss 2.000  val 1.750  floor 1.250  500 tok/s  ETA 40 s
    step 40/40  loss 2.000  floor 1.250  500 tok/s
    saved
    ");
    insta::assert_snapshot!(stdout.text(), @r"
    ok: 40 of 40 steps, 40k tokens in 1m01s
    training loss 1.7500 (mean of the last 4 steps), validation loss 1.5000 nats per token: 1.200 × the floor of 1.2500, perplexity 4.48
    results in results/r/run
    ");
}

#[test]
fn a_long_evaluation_says_how_far_it_is() {
    let out = Shared::default();
    let mut progress = Progress::with_sink(Sink::Plain(Box::new(out.clone())), 40, None);
    // Each evaluation counts from its own beginning, however long the step before it took.
    progress.pause(Phase::Eval, 0, 40);
    assert_eq!(out.text(), "");
    progress.last_pause = Instant::now().checked_sub(2 * PLAIN_PAUSE_INTERVAL);
    progress.pause(Phase::Eval, 3, 40);
    progress.pause(Phase::Eval, 4, 40);
    assert_eq!(out.text(), "evaluating 3/40\n");
    progress.last_pause = Instant::now().checked_sub(2 * PLAIN_PAUSE_INTERVAL);
    progress.step(&row(1, None), Pace::default());
    progress.pause(Phase::Eval, 0, 40);
    assert_eq!(out.text(), "evaluating 3/40\nstep 1/40  loss 2.000\n");
}

#[test]
fn training_losses_of_sources_stand_below_the_training_loss() {
    let mut summary = summary();
    for (name, losses) in [("code", vec![2.5]), ("news", vec![]), ("web", vec![1.25])] {
        let at = losses.into_iter().map(|loss| LossAt { step: 40, loss });
        let losses = SourceLosses { losses: TrainingLosses::from_series(at), ..SourceLosses::default() };
        summary.source_losses.insert(name.to_owned(), losses);
    }
    let text = result(&summary);
    assert!(text.ends_with("\ntraining loss by source: code 2.5000, web 1.2500"), "{text}");
}

#[test]
fn time_besides_training_stands_beside_the_time_of_the_run() {
    let mut summary = summary();
    let row = |phase, wall_s, ms| TimingRow::timed(40, phase, wall_s, ms);
    let timing = [row(Phase::Train, 40.0, 40e3), row(Phase::Eval, 60.0, 20e3), row(Phase::Save, 61.0, 1e3)];
    summary.measure(&[], &timing, 0);
    let text = result(&summary);
    assert!(text.contains("in 1m01s (20 s evaluating)"), "{text}");
}

#[test]
fn a_contended_run_says_so_where_its_speed_stands() {
    let mut contended = summary();
    contended.mfu_pct = Some(41.25);
    contended.predicted_step_ms = Some(4.0);
    contended.gpu = Some(Gpu {
        contended: Some(true),
        contended_because: Some("another process computed on the GPU".to_owned()),
        ..Gpu::default()
    });
    let text = result(&contended);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("ok: 40 of 40 steps, 40k tokens in 1m01s, MFU 41.2 %, contended"));
    assert_eq!(lines.next(), Some("contended: another process computed on the GPU"));
    contended.gpu = Some(Gpu { contended: Some(false), ..Gpu::default() });
    assert!(!result(&contended).contains("contended"));
}

/// If the steps kept getting slower, the median of the later half is not the speed of the run.
#[test]
fn a_speed_that_never_settled_says_so_where_it_stands() {
    let mut unsettled = summary();
    let ms = |step: u64| 50.0 + 5.0 * step as f64;
    let timing = |step: u64| TimingRow {
        tok_s: Some(1e6 / ms(step)),
        ..TimingRow::timed(step, Phase::Train, step as f64, ms(step))
    };
    let metrics: Vec<MetricsRow> = (1..=100).map(|step| row(step, None)).collect();
    let timing: Vec<TimingRow> = (1..=100).map(timing).collect();
    unsettled.measure(&metrics, &timing, 0);
    // 100 000 tokens in the sum of 55, 60, … 550 ms.
    let overall = "3.31k";
    let text = result(&unsettled);
    let median = short(unsettled.tok_s.unwrap());
    let speed = format!(", {median} tok/s while training (never settled: {overall} over all steps)");
    assert!(text.contains(&speed), "{text}");
    let note = unsettled.unsettled().unwrap();
    assert!(note.starts_with("unsettled: ") && note.contains(&format!("make {overall} tok/s")), "{note}");
    let settled: Vec<TimingRow> =
        timing.iter().map(|row| TimingRow { step_ms: 100.0, tok_s: Some(1e4), ..row.clone() }).collect();
    unsettled.measure(&metrics, &settled, 0);
    assert!(!result(&unsettled).contains("settled"));
    assert_eq!(unsettled.unsettled(), None);
}

/// Tokens and time cover the same steps.
#[test]
fn a_fork_states_its_own_tokens_and_where_it_begins() {
    let mut fork = summary();
    fork.forked_from =
        Some(ForkedFrom { run: "20260102T030405Z-0123abcd".to_owned(), step: 30, tokens_seen: 20_000 });
    let text = result(&fork);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("ok: 40 of 40 steps, 10 of them since the fork, 20k tokens in 1m01s"));
    assert_eq!(lines.next(), Some("fork of 20260102T030405Z-0123abcd at step 30, after 20k tokens"));
}

#[test]
fn a_measured_step_stands_beside_the_predicted_one() {
    let row = TimingRow { tok_s: Some(4e4), ..TimingRow::timed(40, Phase::Train, 61.0, 25.125) };
    let mut summary = summary();
    summary.measure(&[], &[row], 0);
    assert!(!result(&summary).contains("ms/step"));
    summary.predicted_step_ms = Some(20.5);
    let text = result(&summary);
    assert!(text.contains("40k tok/s while training, 25.12 ms/step (predicted 20.50)"), "{text}");
}

#[test]
fn a_validation_loss_over_a_part_says_of_how_much() {
    let mut part = summary();
    part.val_part = Some(HeldOutPart { batches: 2, of: 40 });
    let progress = Progress::with_sink(Sink::Quiet(Box::new(Shared::default())), 40, None);
    let mut progress = Progress { val_part: part.val_part, ..progress };
    progress.step(&row(20, Some(1.75)), Pace::default());
    assert_eq!(
        progress.describe(&row(20, Some(1.75)), Pace::default()),
        "loss 2.000  val 1.750 (over 2 of 40 batches)"
    );
    let text = result(&part);
    assert!(
        text.contains("validation loss 1.5000 nats per token over 2 of 40 batches: 1.200 × the floor"),
        "{text}"
    );
}

#[test]
fn json_lines_are_json() {
    let out = Shared::default();
    let mut progress = Progress::with_sink(Sink::Json(Box::new(out.clone())), 2, None);
    progress.begin(Path::new("results/r/run"));
    progress.step(&MetricsRow { loss: f32::NAN, ..row(1, None) }, pace(500.0, 2.0));
    progress.note("a \"note\"");
    let mut stdout = Shared::default();
    progress.finish_to(&mut stdout, &summary(), Path::new("results/r/run"));
    assert_eq!(stdout.text(), "");
    let lines: Vec<serde_json::Value> =
        out.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0], json!({"event": "begin", "run": "results/r/run", "pid": std::process::id()}));
    let lines = &lines[1..];
    assert_eq!(lines[0]["event"], "step");
    assert_eq!((&lines[0]["loss"], &lines[0]["eta_s"]), (&json!(null), &json!(2.0)));
    assert_eq!(lines[1]["text"], "a \"note\"");
    assert_eq!(serde_json::from_value::<Summary>(lines[2]["summary"].clone()).unwrap(), summary());
}

#[test]
fn quiet_says_warnings_and_the_result_alone() {
    let out = Shared::default();
    let mut progress = Progress::with_sink(Sink::Quiet(Box::new(out.clone())), 2, None);
    progress.step(&row(1, Some(1.0)), pace(500.0, 2.0));
    progress.note("saved");
    progress.warn("warning: not saved");
    let mut stdout = Shared::default();
    progress.finish_to(&mut stdout, &summary(), Path::new("results/r/run"));
    assert_eq!(out.text(), "warning: not saved\n");
    assert_eq!(stdout.text(), format!("{}\nresults in results/r/run\n", result(&summary())));
}

#[test]
fn a_closed_pipe_does_not_stop_a_run() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut progress = Progress::with_sink(Sink::Json(Box::new(Closed)), 2, None);
    progress.step(&row(1, None), Pace::default());
    progress.finish_to(&mut Closed, &summary(), Path::new("results/r/run"));
}

#[test]
fn the_live_line_keeps_the_last_validation_loss() {
    let terminal = indicatif::InMemoryTerm::new(4, 120);
    let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
    let live = LiveLine::new(ProgressBar::with_draw_target(Some(40), target), 40, || 120);
    let bar = live.bar.clone();
    let mut progress = Progress::with_sink(Sink::Live(live), 40, Some(1.25));
    progress.step(&row(19, Some(1.75)), pace(500.0, 40.0));
    progress.step(&row(20, None), pace(500.0, 40.0));
    bar.force_draw();
    let shown = terminal.contents();
    assert!(shown.contains("20/40  loss 2.000  val 1.750  floor 1.250  500 tok/s  ETA 40 s"), "{shown}");
    progress.pause(Phase::Save, 0, 1);
    bar.force_draw();
    assert!(terminal.contents().contains("ETA 40 s  saving"), "{}", terminal.contents());
}
