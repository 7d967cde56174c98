//! Shows the progress of a run: one live line on a terminal, plain lines in a pipe, JSON lines for programs.
//!
//! Progress, notes and warnings go to stderr and the result of the run goes to stdout. JSON lines all go to
//! stdout.

mod live;

use super::held_out::MAIN_SET;
use super::losses::HeldOutPart;
use super::rows::{MetricsRow, Phase};
use super::screen::draws_on_stderr;
use super::streams::{Handle, Lines, Stream};
use super::summary::{SourceLosses, Summary};
use crate::error::{Error, ErrorKind};
use crate::format::{harmless_json, printable, short, shortened_lines, thousands, wall_time};
use crate::lock::lock;
use indicatif::WeakProgressBar;
use live::{Field, LiveLine};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How progress is displayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A live line if stderr is a terminal, plain lines otherwise.
    #[default]
    Auto,
    /// Plain lines.
    Plain,
    /// One JSON object per line on stdout.
    Json,
    /// Only warnings and the final result.
    Quiet,
}

/// Minimum time between two lines about an evaluation's progress, and between its beginning and the first
/// such line. Plain output gets fewer, because every line in a pipe stays.
const PAUSE_INTERVAL: Duration = Duration::from_secs(5);
const PLAIN_PAUSE_INTERVAL: Duration = Duration::from_secs(30);

/// The speed of a run and its remaining time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pace {
    /// Tokens per second over all ranks while training, smoothed; `None` before the first step was timed.
    pub tok_s: Option<f64>,
    /// Seconds to the end of the run, including evaluations, checkpoints and samples.
    pub eta_s: Option<f64>,
}

/// This process's live line, which other lines on stderr must not interrupt.
static LIVE: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// Shows the progress of one run. A closed stdout or stderr never ends the run, and one that nobody reads
/// never stops it.
pub struct Progress {
    sink: Sink,
    total_steps: u64,
    floor: Option<f64>,
    val_part: Option<HeldOutPart>,
    last_val: Option<f32>,
    /// The last step, and what the live line shows about it.
    last_step: u64,
    last_fields: Vec<(Field, String)>,
    /// When the current pause began, or when the last line about it was printed.
    last_pause: Option<Instant>,
}

/// A line for programs. Numbers are written as in the run's files: in their shortest form that reads back to
/// the same bits.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event<'a> {
    Stream {
        stream: &'a str,
        version: u32,
        xrun_version: &'a str,
    },
    Begin {
        run: &'a Path,
        pid: u32,
    },
    Step {
        #[serde(flatten)]
        row: &'a MetricsRow,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        set_losses: BTreeMap<&'a str, f32>,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        figures: BTreeMap<&'a str, f32>,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        scores: BTreeMap<&'a str, f32>,
        total_steps: u64,
        floor: Option<f64>,
        #[serde(flatten)]
        pace: Pace,
    },
    Pause {
        phase: Phase,
        done: u64,
        of: u64,
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

/// The name and version of the stream of lines for programs. Raise the version when a line loses a field or a
/// field changes its meaning; new events and new fields keep it.
const STREAM: &str = "xrun";
const STREAM_VERSION: u32 = 1;

/// Prints the first line of this process's stream to stdout: its name and version.
pub fn begin_json_stream() {
    let (stream, version, xrun_version) = (STREAM, STREAM_VERSION, env!("CARGO_PKG_VERSION"));
    print_event(&Event::Stream { stream, version, xrun_version });
}

/// Prints the error that ends this process to stdout, for programs that read JSON.
pub fn print_json_error(error: &Error) {
    print_event(&Event::Error { kind: error.kind(), message: error.message() });
}

/// The recipe of a first run, which ends with what to do next.
const FIRST_RECIPE: &str = "quickstart";

enum Sink {
    Live(LiveLine),
    Plain(Box<dyn Write + Send>),
    Json(Box<dyn Write + Send>),
    Quiet(Box<dyn Write + Send>),
}

impl Progress {
    /// Creates a display for a run of `total_steps` steps. `floor` is the lowest possible loss in nats per
    /// token, if known. `val_part` is the part of the held-out text on which validation losses are measured.
    pub fn new(mode: Mode, total_steps: u64, floor: Option<f64>, val_part: Option<HeldOutPart>) -> Self {
        let sink = match mode {
            Mode::Auto if draws_on_stderr() => {
                let line = LiveLine::on_stderr(total_steps);
                *lock(&LIVE) = Some(line.bar.downgrade());
                Sink::Live(line)
            }
            Mode::Auto | Mode::Plain => Sink::Plain(Box::new(stderr())),
            Mode::Json => Sink::Json(Box::new(json_stdout())),
            Mode::Quiet => Sink::Quiet(Box::new(stderr())),
        };
        Self { val_part, ..Self::with_sink(sink, total_steps, floor) }
    }

    fn with_sink(sink: Sink, total_steps: u64, floor: Option<f64>) -> Self {
        Self {
            sink,
            total_steps,
            floor,
            val_part: None,
            last_val: None,
            last_step: 0,
            last_fields: Vec::new(),
            last_pause: None,
        }
    }

    /// Reports where the run's files are. Programs that read JSON also get the id of this process.
    pub fn begin(&mut self, run: &Path) {
        match &mut self.sink {
            Sink::Json(out) => say_json(out, &Event::Begin { run, pid: std::process::id() }),
            _ => self.note(&format!("writing to {}", run.display())),
        }
    }

    /// Shows a finished step. A step with an evaluation stays on the screen as its own line.
    pub fn step(&mut self, row: &MetricsRow, pace: Pace) {
        let line = format!("step {}/{}  {}", row.step, self.total_steps, self.describe(row, pace));
        self.last_val = row.val_loss.or(self.last_val);
        self.last_fields = self.fields(row, pace, self.last_val);
        (self.last_step, self.last_pause) = (row.step, None);
        match &mut self.sink {
            Sink::Live(live) => {
                live.show(row.step, &self.last_fields);
                if row.val_loss.is_some() || !row.scores().is_empty() {
                    live.bar.suspend(|| say(&mut stderr(), &line));
                }
            }
            Sink::Plain(out) => say(out, &line),
            Sink::Json(out) => {
                let (total_steps, floor) = (self.total_steps, self.floor);
                let (set_losses, figures, scores) = (row.set_losses(), row.other_figures(), row.scores());
                say_json(out, &Event::Step { row, set_losses, figures, scores, total_steps, floor, pace });
            }
            Sink::Quiet(_) => {}
        }
    }

    /// Shows that the run does something other than steps: `done` out of `of` batches of an evaluation or
    /// requests of tasks, or 0 for a checkpoint or samples, which report no progress.
    pub fn pause(&mut self, phase: Phase, done: u64, of: u64) {
        let what = match phase {
            Phase::Eval => format!("evaluating {done}/{of}"),
            Phase::Save | Phase::Snapshot => "saving".to_owned(),
            Phase::Sample => "sampling".to_owned(),
            Phase::Tasks => format!("scoring tasks {done}/{of}"),
            Phase::Check => "comparing ranks".to_owned(),
            Phase::Warmup | Phase::Train => return,
        };
        let interval = match self.sink {
            Sink::Plain(_) => PLAIN_PAUSE_INTERVAL,
            _ => PAUSE_INTERVAL,
        };
        let due = self.last_pause.get_or_insert_with(Instant::now).elapsed() >= interval;
        match &mut self.sink {
            Sink::Live(live) => {
                let fields = [self.last_fields.as_slice(), &[(Field::Pause, what)]].concat();
                live.show(self.last_step, &fields);
            }
            Sink::Plain(out) if due => say(out, &what),
            Sink::Json(out) if due => say_json(out, &Event::Pause { phase, done, of }),
            Sink::Plain(_) | Sink::Json(_) | Sink::Quiet(_) => {}
        }
        if due {
            self.last_pause = Some(Instant::now());
        }
    }

    /// Prints a line, except in quiet mode.
    pub fn note(&mut self, text: &str) {
        match &mut self.sink {
            Sink::Live(live) => live.bar.suspend(|| say(&mut stderr(), text)),
            Sink::Plain(out) => say(out, text),
            Sink::Json(out) => say_json(out, &Event::Note { text }),
            Sink::Quiet(_) => {}
        }
    }

    /// Prints a line, even in quiet mode.
    pub fn warn(&mut self, text: &str) {
        match &mut self.sink {
            Sink::Quiet(out) => say(out, text),
            _ => self.note(text),
        }
    }

    /// Removes the live line, and prints the result of the run and where its files are. Leaves out why the
    /// run did not end as planned, because the error that follows says that.
    pub fn finish(self, summary: &Summary, run: &Path) {
        self.finish_to(&mut Handle::new(Stream::Out, Lines::ForPeople), summary, run);
    }

    fn finish_to(mut self, stdout: &mut dyn Write, summary: &Summary, run: &Path) {
        if let Sink::Live(live) = &self.sink {
            live.bar.finish_and_clear();
        }
        match &mut self.sink {
            Sink::Json(out) => say_json(out, &Event::Finish { summary }),
            _ => {
                let text = result(&Summary { reason: None, ..summary.clone() });
                say(stdout, &format!("{text}\nresults in {}", run.display()));
                if summary.recipe == FIRST_RECIPE && matches!(self.sink, Sink::Live(_) | Sink::Plain(_)) {
                    let next = "`xrun init mine.toml` creates a recipe of your own";
                    say(stdout, &format!("next: `xrun sample {}` generates text; {next}", run.display()));
                }
            }
        }
    }

    /// Describes losses, speed and remaining time. A validation loss is included only if this step measured
    /// it.
    pub fn describe(&self, row: &MetricsRow, pace: Pace) -> String {
        let mut text = String::new();
        for (field, part) in self.fields(row, pace, row.val_loss) {
            text += match field {
                _ if text.is_empty() => "",
                Field::ValPart => " ",
                _ => "  ",
            };
            text += &part;
        }
        text
    }

    fn fields(&self, row: &MetricsRow, pace: Pace, val: Option<f32>) -> Vec<(Field, String)> {
        let mut fields = vec![(Field::Loss, format!("loss {:.3}", row.loss))];
        if let Some(val) = val {
            fields.push((Field::Val, format!("val {val:.3}")));
            fields.extend(self.val_part.map(|part| (Field::ValPart, format!("({part})"))));
        }
        fields.extend(row.ema_val_loss.map(|loss| (Field::Ema, format!("EMA {loss:.3}"))));
        let on_set = |(name, loss): (&str, f32)| (Field::Sets, format!("{name} {loss:.3}"));
        fields.extend(row.set_losses().into_iter().map(on_set));
        fields.extend(row.other_figures().into_iter().map(on_set));
        fields.extend(row.scores().into_iter().map(on_set));
        fields.extend(self.floor.map(|floor| (Field::Floor, format!("floor {floor:.3}"))));
        fields.extend(pace.tok_s.map(|rate| (Field::Rate, format!("{} tok/s", short(rate)))));
        let remaining = pace.eta_s.filter(|_| row.step < self.total_steps);
        fields.extend(remaining.map(|seconds| (Field::Eta, format!("ETA {}", wall_time(seconds)))));
        fields
    }
}

/// Describes the result of a run, with the most important figures on the first line.
pub fn result(summary: &Summary) -> String {
    // For a fork, count only its own steps, because the time and the speed that follow are also its own.
    let own =
        summary.forked_from.as_ref().map(|_| format!(", {} of them since the fork", summary.own_steps()));
    let mut text = format!(
        "{}: {} of {} steps{}, {} tokens",
        summary.status.as_str(),
        summary.steps,
        summary.steps_planned,
        own.unwrap_or_default(),
        short(summary.own_tokens() as f64)
    );
    if let Some(seconds) = summary.wall_s {
        text += &format!(" in {}{}", wall_time(seconds), time_besides_training(summary, seconds));
    }
    if let Some(rate) = summary.tok_s {
        text += &format!(", {} tok/s while training", short(rate));
        if let Some(overall) = summary.overall_tok_s().filter(|_| summary.never_settled()) {
            text += &format!(" (never settled: {} over all steps)", short(overall));
        }
    }
    let step_ms = summary.steady_state.as_ref().and_then(|steady| steady.step_ms);
    if let (Some(measured), Some(predicted)) = (step_ms, summary.predicted_step_ms) {
        text += &format!(", {:.2} ms/step (predicted {predicted:.2})", measured.median);
    }
    text.extend(summary.mfu_pct.map(|mfu| format!(", MFU {mfu:.1} %")));
    let contended = summary.gpu.as_ref().filter(|gpu| gpu.contended == Some(true));
    text.extend(contended.map(|_| ", contended"));
    text.extend(summary.reason.as_ref().map(|reason| format!("\n{reason}")));
    if let Some(fork) = &summary.forked_from {
        let tokens = short(fork.tokens_seen as f64);
        text += &format!("\nfork of {} at step {}, after {tokens} tokens", fork.run, fork.step);
    }
    let because = contended.and_then(|gpu| gpu.contended_because.as_ref());
    text.extend(because.map(|reason| format!("\ncontended: {reason}")));
    let train = summary.train_loss.smoothed;
    text.extend(train.map(|train| format!("\ntraining loss {:.4} ({})", train.loss, train.over())));
    if let Some(val) = summary.val_loss.last {
        text += &format!(", validation loss {:.4} nats per token", val.loss);
        text.extend(summary.val_part.map(|part| format!(" {part}")));
    }
    if let (Some(floor), Some(ratio)) = (summary.floor, summary.val_loss_over_floor) {
        text += &format!(": {ratio:.3} × the floor of {floor:.4}");
    } else if let Some(bits) = summary.bits_per_byte {
        text += &format!(", {bits:.4} bits per byte");
    }
    if let Some(val) = summary.val_loss.last.filter(|val| val.loss.is_finite()) {
        text += &format!(", perplexity {}", short(f64::from(val.loss).exp()));
    }
    if let Some(last) = summary.ema_val_loss.and_then(|losses| losses.last) {
        text += &format!("\nmoving average of the weights: validation loss {:.4} nats per token", last.loss);
    }
    let of_source = |(source, losses): (&String, &SourceLosses)| {
        Some(format!("{source} {:.4}", losses.losses.smoothed?.loss))
    };
    let of_sources: Vec<String> = summary.source_losses.iter().filter_map(of_source).collect();
    if !of_sources.is_empty() {
        text += &format!("\ntraining loss by source: {}", of_sources.join(", "));
    }
    for (name, series) in summary.held_out.get(MAIN_SET).iter().flat_map(|set| &set.figures) {
        text.extend(series.last.map(|last| format!("\n{name} {:.4}", last.value)));
    }
    for (name, set) in summary.held_out.iter().filter(|(name, _)| *name != MAIN_SET) {
        if let Some(last) = set.losses.last {
            text += &format!("\n{name}: {:.4} nats per token", last.loss);
            text.extend(set.part.map(|part| format!(" {part}")));
            text.extend(set.bits_per_byte.map(|bits| format!(", {bits:.4} bits per byte")));
            let ema = set.ema.and_then(|losses| losses.last);
            text.extend(ema.map(|last| format!(", moving average {:.4}", last.loss)));
        }
    }
    for (name, task) in &summary.tasks {
        if let Some(last) = task.last() {
            text += &format!("\n{name}: {} {:.4}", task.metric, last.value);
            text.extend(task.error.map(|error| format!(" ± {error:.4}")));
            text.extend(task.chance.map(|chance| format!(", chance {chance:.4}")));
            text += &format!(", {} items", thousands(task.items));
        }
    }
    text.extend(summary.worse_than_guessing().map(|worse| format!("\n{worse}")));
    text
}

/// Time spent on something other than steps is reported from this share of the run's time.
const REPORTED_SHARE: f64 = 0.05;

/// Describes what else a run spent much time on. Then the tokens per second over its whole time are clearly
/// lower than its training speed.
fn time_besides_training(summary: &Summary, seconds: f64) -> String {
    let told = |(phase, of): (Phase, &str)| {
        let spent = summary.phase_s.get(phase).filter(|spent| *spent > REPORTED_SHARE * seconds)?;
        Some(format!("{} {of}", wall_time(spent)))
    };
    let phases = [
        (Phase::Eval, "evaluating"),
        (Phase::Save, "saving"),
        (Phase::Sample, "sampling"),
        (Phase::Tasks, "scoring tasks"),
        (Phase::Check, "comparing ranks"),
    ];
    let parts: Vec<String> = phases.into_iter().filter_map(told).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// Writes a line to stderr, above the live line if there is one. Control characters appear as their pictures.
/// A closed pipe is not an error.
pub fn eprint_line(text: &str) {
    let live = lock(&LIVE).clone();
    let text = shortened_lines(text.to_owned());
    let line = || say(&mut stderr(), &text);
    match live.and_then(|bar| bar.upgrade()) {
        Some(bar) => bar.suspend(line),
        None => line(),
    }
}

/// Writes an event to stdout as a line of JSON. A closed pipe is not an error.
pub fn print_event(event: &impl Serialize) {
    say_json(&mut json_stdout(), event);
}

/// Returns stderr, which takes lines without ever waiting for their reader.
fn stderr() -> Handle {
    Handle::new(Stream::Err, Lines::ForPeople)
}

/// Returns stdout for programs, which takes lines without ever waiting for their reader.
fn json_stdout() -> Handle {
    Handle::new(Stream::Out, Lines::Json)
}

/// Writes a line for people. Control characters in names, texts and messages are shown, not obeyed.
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
