//! The progress of a run: one live line on a terminal, plain lines in a pipe, JSON lines for programs.

use super::losses::HeldOutPart;
use super::rows::MetricsRow;
use super::summary::Summary;
use crate::error::{Error, ErrorKind};
use crate::format::{harmless_json, printable, short, wall_time};
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
    val_part: Option<HeldOutPart>,
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
    print_event(&Event::Error { kind: error.kind(), message: error.message() });
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
        Self {
            sink,
            total_steps,
            tokens_per_step,
            floor,
            val_part: None,
            rate: None,
            last_val: None,
            last_line: None,
        }
    }

    /// Sets the part of the held-out text that validation losses are measured on.
    pub fn with_val_part(self, val_part: Option<HeldOutPart>) -> Self {
        Self { val_part, ..self }
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
        let over = self.val_part.map(|part| format!(" ({part})")).unwrap_or_default();
        parts.extend(self.last_val.map(|val| format!("val {val:.3}{over}")));
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
        text += &summary.val_part.map(|part| format!(" {part}")).unwrap_or_default();
    }
    if let (Some(floor), Some(ratio)) = (summary.floor, summary.val_loss_over_floor) {
        text += &format!(": {ratio:.3} × the floor of {floor:.4}");
    }
    if let Some(worse) = summary.worse_than_guessing() {
        text += &format!("\n{worse}");
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

/// Writes a line to stderr, with control characters as their pictures; a closed pipe is not an error.
pub fn eprint_line(text: &str) {
    say(&mut std::io::stderr(), text);
}

/// Writes an event as a line of JSON to stdout; a closed pipe is not an error.
pub fn print_event(event: &impl Serialize) {
    say_json(&mut std::io::stdout(), event);
}

/// Writes a line for people: what others wrote into names, texts and messages is shown, not obeyed.
fn say(out: &mut dyn Write, text: &str) {
    write_line(out, &printable(text));
}

fn say_json(out: &mut dyn Write, event: &impl Serialize) {
    let text = serde_json::to_string(event).expect("an event has text keys and no map of others");
    write_line(out, &harmless_json(&text));
}

/// Writes a line. A closed pipe must not end a training run.
fn write_line(out: &mut dyn Write, text: &str) {
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests;
