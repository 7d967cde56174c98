//! The progress of a run: one live line on a terminal, plain lines in a pipe, JSON lines for programs.

use super::rows::MetricsRow;
use super::summary::Summary;
use crate::error::{Error, ErrorKind};
use crate::format::{short, wall_time};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Modes of the progress display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A live line if stderr is a terminal, plain lines otherwise.
    #[default]
    Auto,
    /// Plain lines on stderr.
    Plain,
    /// One JSON object per line on stdout.
    Json,
    /// Warnings and the final result.
    Quiet,
}

/// Minimum time between plain lines, except for evaluations and the first and last step.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// Weight of the newest step in the speed that estimates the remaining time.
const RATE_WEIGHT: f64 = 0.1;

/// Shows the progress of one run. A closed stdout or stderr never ends the run.
pub struct Progress {
    sink: Sink,
    total_steps: u64,
    tokens_per_step: u64,
    floor: Option<f64>,
    rate: Option<f64>,
    last_val: Option<f32>,
    last_line: Option<Instant>,
}

/// A line for programs. Numbers are written as in the run's files: shortest, and back to the same bits.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event<'a> {
    Begin {
        run: &'a Path,
        pid: u32,
    },
    Step {
        #[serde(flatten)]
        row: &'a MetricsRow,
        total_steps: u64,
        floor: Option<f64>,
        tok_s: f64,
        eta_s: Option<f64>,
    },
    Note {
        text: &'a str,
    },
    Finish {
        summary: &'a Summary,
    },
    Error {
        kind: ErrorKind,
        message: &'a str,
    },
}

/// Prints the error that ends a process to stdout, for programs that read JSON.
pub fn print_json_error(error: &Error) {
    say_json(&mut std::io::stdout(), &Event::Error { kind: error.kind(), message: error.message() });
}

enum Sink {
    Live(ProgressBar),
    Plain(Box<dyn Write + Send>),
    Json(Box<dyn Write + Send>),
    Quiet(Box<dyn Write + Send>),
}

impl Progress {
    /// Creates a display of progress towards `total_steps` of `tokens_per_step` tokens (over all ranks);
    /// `floor` is the lowest possible loss in nats per token, if known.
    pub fn new(mode: Mode, total_steps: u64, tokens_per_step: u64, floor: Option<f64>) -> Self {
        let sink = match mode {
            Mode::Auto if std::io::stderr().is_terminal() => Sink::Live(live_line(total_steps)),
            Mode::Auto | Mode::Plain => Sink::Plain(Box::new(std::io::stderr())),
            Mode::Json => Sink::Json(Box::new(std::io::stdout())),
            Mode::Quiet => Sink::Quiet(Box::new(std::io::stderr())),
        };
        Self::with_sink(sink, total_steps, tokens_per_step, floor)
    }

    fn with_sink(sink: Sink, total_steps: u64, tokens_per_step: u64, floor: Option<f64>) -> Self {
        Self { sink, total_steps, tokens_per_step, floor, rate: None, last_val: None, last_line: None }
    }

    /// Announces the run's folder and the number of this process to programs that read JSON.
    pub fn begin(&mut self, run: &Path) {
        if let Sink::Json(out) = &mut self.sink {
            say_json(out, &Event::Begin { run, pid: std::process::id() });
        }
    }

    /// Shows a finished step. `tok_s` is its speed in tokens per second over all ranks.
    pub fn step(&mut self, row: &MetricsRow, tok_s: f64) {
        if tok_s.is_finite() && tok_s > 0.0 {
            self.rate = Some(self.rate.map_or(tok_s, |rate| rate + RATE_WEIGHT * (tok_s - rate)));
        }
        self.last_val = row.val_loss.or(self.last_val);
        let remaining = self.total_steps.saturating_sub(row.step) as f64 * self.tokens_per_step as f64;
        let eta_s = self.rate.map(|rate| remaining / rate);
        let text = self.describe(row, eta_s);
        match &mut self.sink {
            Sink::Live(bar) => {
                bar.set_position(row.step);
                bar.set_message(text);
            }
            Sink::Plain(out) => {
                let now = Instant::now();
                let waited = self.last_line.is_none_or(|last| now - last >= PLAIN_INTERVAL);
                if waited || row.val_loss.is_some() || row.step == self.total_steps {
                    self.last_line = Some(now);
                    say(out, &format!("step {}/{}  {text}", row.step, self.total_steps));
                }
            }
            Sink::Json(out) => {
                let (total_steps, floor) = (self.total_steps, self.floor);
                say_json(out, &Event::Step { row, total_steps, floor, tok_s, eta_s });
            }
            Sink::Quiet(_) => {}
        }
    }

    /// Prints a line.
    pub fn note(&mut self, text: &str) {
        match &mut self.sink {
            Sink::Live(bar) => bar.suspend(|| say(&mut std::io::stderr(), text)),
            Sink::Plain(out) => say(out, text),
            Sink::Json(out) => say_json(out, &Event::Note { text }),
            Sink::Quiet(_) => {}
        }
    }

    /// Prints a line, in quiet mode too.
    pub fn warn(&mut self, text: &str) {
        match &mut self.sink {
            Sink::Quiet(out) => say(out, text),
            _ => self.note(text),
        }
    }

    /// Removes the live line and prints the result of the run.
    pub fn finish(mut self, summary: &Summary) {
        let text = result(summary);
        match &mut self.sink {
            Sink::Live(bar) => {
                bar.finish_and_clear();
                say(&mut std::io::stderr(), &text);
            }
            Sink::Plain(out) | Sink::Quiet(out) => say(out, &text),
            Sink::Json(out) => say_json(out, &Event::Finish { summary }),
        }
    }

    /// Describes losses, speed and remaining time.
    fn describe(&self, row: &MetricsRow, eta_s: Option<f64>) -> String {
        let mut parts = vec![format!("loss {:.3}", row.loss)];
        parts.extend(self.last_val.map(|val| format!("val {val:.3}")));
        parts.extend(self.floor.map(|floor| format!("floor {floor:.3}")));
        parts.extend(self.rate.map(|rate| format!("{} tok/s", short(rate))));
        let remaining = eta_s.filter(|_| row.step < self.total_steps);
        parts.extend(remaining.map(|seconds| format!("ETA {}", wall_time(seconds))));
        parts.join("  ")
    }
}

/// Returns the result of a run in a line or two.
pub fn result(summary: &Summary) -> String {
    let mut text = format!(
        "{}: {} of {} steps, {} tokens",
        summary.status.as_str(),
        summary.steps,
        summary.steps_planned,
        short(summary.tokens_seen as f64)
    );
    if let Some(seconds) = summary.wall_s {
        text += &format!(" in {}", wall_time(seconds));
    }
    if let Some(rate) = summary.tok_s {
        text += &format!(", {} tok/s", short(rate));
    }
    let step_ms = summary.steady_state.as_ref().and_then(|steady| steady.step_ms);
    if let (Some(measured), Some(predicted)) = (step_ms, summary.predicted_step_ms) {
        text += &format!(", {:.2} ms/step (predicted {predicted:.2})", measured.median);
    }
    if let Some(mfu) = summary.mfu_pct {
        text += &format!(", MFU {mfu:.1} %");
    }
    let contended = summary.gpu.as_ref().filter(|gpu| gpu.contended == Some(true));
    if contended.is_some() {
        text += ", contended";
    }
    if let Some(reason) = &summary.reason {
        text += &format!("\n{reason}");
    }
    if let Some(reason) = contended.and_then(|gpu| gpu.contended_because.as_ref()) {
        text += &format!("\ncontended: {reason}");
    }
    if let Some(train) = summary.train_loss.smoothed {
        text += &format!("\ntraining loss {:.4} ({})", train.loss, train.over());
    }
    if let Some(val) = summary.val_loss.last {
        text += &format!(", validation loss {:.4} nats per token", val.loss);
    }
    if let (Some(floor), Some(ratio)) = (summary.floor, summary.val_loss_over_floor) {
        text += &format!(": {ratio:.3} × the floor of {floor:.4}");
    }
    text
}

fn live_line(total_steps: u64) -> ProgressBar {
    // https://no-color.org: set and not empty means no colour.
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let bar = if plain { "{bar:20}" } else { "{bar:20.cyan/dim}" };
    let style = ProgressStyle::with_template(&format!("{bar} {{pos}}/{{len}}  {{msg}}"))
        .expect("the template is a constant that a test renders")
        .progress_chars("━╸─");
    ProgressBar::with_draw_target(Some(total_steps), ProgressDrawTarget::stderr()).with_style(style)
}

/// Writes a line to stderr; a closed pipe is not an error.
pub fn eprint_line(text: &str) {
    say(&mut std::io::stderr(), text);
}

/// Writes a line. A closed pipe must not end a training run.
fn say(out: &mut dyn Write, text: &str) {
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

fn say_json(out: &mut dyn Write, event: &Event<'_>) {
    let text = serde_json::to_string(event).expect("an event has text keys and no map of others");
    say(out, &text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::rows::{Phase, TimingRow};
    use crate::results::summary::{Gpu, LossAt, Losses, Status, TrainingLosses};
    use serde_json::json;
    use std::sync::{Arc, Mutex};

    /// A writer whose content a test can read.
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

    fn row(step: u64, val_loss: Option<f32>) -> MetricsRow {
        MetricsRow { step, tokens_seen: step * 1000, loss: 2.0, val_loss, lr: 1e-3, grad_norm: 0.5 }
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
        let mut progress = Progress::with_sink(Sink::Plain(Box::new(out.clone())), 40, 1000, Some(1.25));
        for step in 1..=40 {
            progress.step(&row(step, (step == 20).then_some(1.75)), if step == 1 { f64::NAN } else { 500.0 });
        }
        progress.note("saved");
        progress.finish(&summary());
        insta::assert_snapshot!(out.text(), @r"
        step 1/40  loss 2.000  floor 1.250
        step 20/40  loss 2.000  val 1.750  floor 1.250  500 tok/s  ETA 40 s
        step 40/40  loss 2.000  val 1.750  floor 1.250  500 tok/s
        saved
        ok: 40 of 40 steps, 40k tokens in 1m01s
        training loss 1.7500 (mean of the last 4 steps), validation loss 1.5000 nats per token: 1.200 × the floor of 1.2500
        ");
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

    #[test]
    fn a_measured_step_stands_beside_the_predicted_one() {
        let row = TimingRow { tok_s: Some(4e4), ..TimingRow::timed(40, Phase::Train, 61.0, 25.125) };
        let mut summary = summary();
        summary.measure(&[], &[row], 0);
        assert!(!result(&summary).contains("ms/step"));
        summary.predicted_step_ms = Some(20.5);
        let text = result(&summary);
        assert!(text.contains("40k tok/s, 25.12 ms/step (predicted 20.50)"), "{text}");
    }

    #[test]
    fn json_lines_are_json() {
        let out = Shared::default();
        let mut progress = Progress::with_sink(Sink::Json(Box::new(out.clone())), 2, 1000, None);
        progress.begin(Path::new("results/r/run"));
        progress.step(&MetricsRow { loss: f32::NAN, ..row(1, None) }, 500.0);
        progress.note("a \"note\"");
        progress.finish(&summary());
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
        let mut progress = Progress::with_sink(Sink::Quiet(Box::new(out.clone())), 2, 1000, None);
        progress.step(&row(1, Some(1.0)), 500.0);
        progress.note("saved");
        progress.warn("warning: not saved");
        progress.finish(&summary());
        assert_eq!(out.text(), format!("warning: not saved\n{}\n", result(&summary())));
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
        let mut progress = Progress::with_sink(Sink::Json(Box::new(Closed)), 2, 1000, None);
        progress.step(&row(1, None), 1.0);
        progress.finish(&summary());
    }

    #[test]
    fn the_live_line_shows_step_losses_speed_and_eta() {
        let terminal = indicatif::InMemoryTerm::new(4, 120);
        let bar = live_line(40);
        bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        let mut progress = Progress::with_sink(Sink::Live(bar.clone()), 40, 1000, Some(1.25));
        progress.step(&row(20, Some(1.75)), 500.0);
        bar.force_draw();
        let shown = terminal.contents();
        assert!(shown.contains("20/40  loss 2.000  val 1.750  floor 1.250  500 tok/s  ETA 40 s"), "{shown}");
    }
}
