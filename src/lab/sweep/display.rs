//! Displays a sweep: a live table on a terminal, plain lines in a pipe, JSON lines for programs.

use super::attempt::RunningAttempt;
use super::axes::name_of;
use crate::format::{printable, short, wall_time};
use crate::results::ledger::{Attempt, CellStatus};
use crate::results::progress::{Mode, begin_json_stream, eprint_line, print_event};
use crate::results::screen::{draws_on_stderr, terminal};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Displays a sweep. If stdout or stderr is closed, the sweep continues.
pub struct Display {
    sink: Sink,
    /// The keys that vary; their values name a cell.
    keys: Vec<String>,
    /// Number of cells in the sweep.
    cells: usize,
    /// Lines to show after the heading, as arguments of [`Display::line`]; `None` if lines are shown at once.
    held_back: Option<Vec<(Attempt, usize, Option<Duration>)>>,
}

enum Sink {
    /// A table on a terminal: a bar for the sweep, and a line for each running cell by the cell's key.
    Live {
        all: MultiProgress,
        bar: ProgressBar,
        lines: BTreeMap<String, ProgressBar>,
    },
    Plain,
    Json,
    Quiet,
}

/// A line of JSON, for programs that read the output.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event<'a> {
    Cell {
        /// Number of cells that are done.
        done: usize,
        /// Number of all cells.
        cells: usize,
        #[serde(flatten)]
        attempt: &'a Attempt,
    },
    Note {
        text: &'a str,
    },
}

impl Display {
    /// Creates a display for `cells` cells, which are named after their values of `keys`.
    pub fn new(mode: Mode, keys: &[String], cells: usize) -> Self {
        let sink = match mode {
            Mode::Auto if draws_on_stderr() => {
                let all = MultiProgress::with_draw_target(terminal());
                let bar = all.add(ProgressBar::new(cells as u64).with_style(bar_style()));
                Sink::Live { all, bar, lines: BTreeMap::new() }
            }
            Mode::Auto | Mode::Plain => Sink::Plain,
            Mode::Json => {
                begin_json_stream();
                Sink::Json
            }
            Mode::Quiet => Sink::Quiet,
        };
        Self { sink, keys: keys.to_vec(), cells, held_back: None }
    }

    /// Holds back ledger lines until [`Display::release`]. The heading has to come first, and its counts
    /// already include them.
    pub fn hold(&mut self) {
        self.held_back.get_or_insert_default();
    }

    /// Shows the lines that were held back, and from now on all lines at once.
    pub fn release(&mut self) {
        for (attempt, done, took) in self.held_back.take().unwrap_or_default() {
            self.line(&attempt, done, took);
        }
    }

    /// Prints a line.
    pub fn note(&mut self, text: &str) {
        match &mut self.sink {
            Sink::Live { all, .. } => all.suspend(|| eprint_line(text)),
            Sink::Plain => eprint_line(text),
            Sink::Json => print_event(&Event::Note { text }),
            Sink::Quiet => {}
        }
    }

    /// Prints a warning, even in quiet mode.
    pub fn warn(&mut self, text: &str) {
        self.result(&format!("warning: {text}"));
    }

    /// Shows a new line of the ledger: the start or the end of an attempt. `done` is the number of cells that
    /// are done, and `took` the duration of the attempt if it ended here.
    pub fn line(&mut self, attempt: &Attempt, done: usize, took: Option<Duration>) {
        if let Some(held) = &mut self.held_back {
            held.push((attempt.clone(), done, took));
            return;
        }
        let (cells, name) = (self.cells, self.name(attempt));
        let begins = attempt.status == CellStatus::Running;
        let outcome = if begins { String::new() } else { outcome(attempt, took) };
        let text = format!("[{done}/{cells}] {:<13} {name}{outcome}", attempt.status);
        match &mut self.sink {
            Sink::Live { all, lines, .. } if begins => {
                let line = all.add(ProgressBar::new_spinner().with_style(line_style()));
                line.set_message(printable(&name).into_owned());
                lines.insert(attempt.key.clone(), line);
            }
            Sink::Live { all, bar, lines } => {
                if let Some(line) = lines.remove(&attempt.key) {
                    line.finish_and_clear();
                    all.remove(&line);
                }
                bar.set_position(done as u64);
                all.suspend(|| eprint_line(&text));
            }
            // Cells may take hours, so a log also says which ones have started.
            Sink::Plain => eprint_line(&text),
            Sink::Json => print_event(&Event::Cell { done, cells, attempt }),
            Sink::Quiet => {}
        }
    }

    /// Shows the progress of a running attempt in the live table; other outputs have no progress.
    pub fn step(&mut self, attempt: &Attempt, child: &RunningAttempt) {
        let (Sink::Live { lines, .. }, Some((step, steps, loss))) = (&self.sink, child.step) else { return };
        if let Some(line) = lines.get(&attempt.key) {
            let loss = loss.map(|loss| format!("  loss {loss:.3}")).unwrap_or_default();
            let names: Vec<String> = child.header.gpus.iter().map(ToString::to_string).collect();
            let gpu = if names.is_empty() { String::new() } else { format!("  GPU {}", names.join("+")) };
            // The name comes last because a narrow terminal cuts off the end of the line.
            line.set_message(format!("{step}/{steps}{loss}{gpu}  {}", self.name(attempt)));
        }
    }

    /// Removes the live table.
    pub fn clear(&mut self) {
        if let Sink::Live { bar, lines, .. } = &self.sink {
            lines.values().for_each(ProgressBar::finish_and_clear);
            bar.finish_and_clear();
        }
    }

    /// Removes the live table and prints the sweep's final line, even in quiet mode.
    pub fn finish(&mut self, text: &str) {
        self.clear();
        self.result(text);
    }

    /// Prints a result of the sweep, even in quiet mode.
    pub fn result(&mut self, text: &str) {
        match self.sink {
            Sink::Quiet => eprint_line(text),
            _ => self.note(text),
        }
    }

    /// Names a cell after the values that vary, or after its recipe if none does.
    fn name(&self, attempt: &Attempt) -> String {
        match name_of(&self.keys, &attempt.settings) {
            name if name.is_empty() => attempt.recipe.clone(),
            name => name,
        }
    }
}

/// Returns what is known about an attempt that ended, each part after two spaces: its figures if it ended
/// well, its duration, and the reason for its status.
fn outcome(attempt: &Attempt, took: Option<Duration>) -> String {
    let measured = &attempt.measured;
    let mut text = String::new();
    if matches!(attempt.status, CellStatus::Ok | CellStatus::Halted) {
        text +=
            &measured.get("train_loss").map(|loss| format!("  training loss {loss:.3}")).unwrap_or_default();
        text += &measured.get("val_loss").map(|loss| format!("  val {loss:.3}")).unwrap_or_default();
        text += &measured.get("tok_s").map(|rate| format!("  {} tok/s", short(rate))).unwrap_or_default();
    }
    text += &took.map(|took| format!("  {}", wall_time(took.as_secs_f64()))).unwrap_or_default();
    text += &attempt.reason.as_ref().map(|reason| format!("  {reason}")).unwrap_or_default();
    text
}

fn bar_style() -> ProgressStyle {
    // https://no-color.org: no color if set and not empty.
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let bar = if plain { "{bar:20}" } else { "{bar:20.cyan/dim}" };
    let template = format!("{bar} {{pos}}/{{len}} cells  {{elapsed}}");
    ProgressStyle::with_template(&template)
        .expect("the template is a constant that a test renders")
        .progress_chars("━╸─")
}

fn line_style() -> ProgressStyle {
    ProgressStyle::with_template("  {wide_msg}").expect("the template is a constant that a test renders")
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::ProgressDrawTarget;

    #[test]
    fn a_narrow_terminal_cuts_the_name_of_a_cell() {
        let terminal = indicatif::InMemoryTerm::new(6, 40);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let line = ProgressBar::with_draw_target(None, target).with_style(line_style());
        line.set_message("3/9  loss 2.500  optimizer.lr=0.0003 model.n_layers=12");
        line.force_draw();
        let shown = terminal.contents();
        assert!(shown.starts_with("  3/9  loss 2.500  optimizer.lr"), "{shown}");
        assert_eq!(shown.lines().count(), 1, "it wraps: {shown}");
    }

    #[test]
    fn the_live_table_has_a_line_per_running_cell() {
        let terminal = indicatif::InMemoryTerm::new(6, 100);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let all = MultiProgress::with_draw_target(target);
        let bar = all.add(ProgressBar::new(3).with_style(bar_style()));
        let keys = vec!["model.dim".to_owned()];
        let sink = Sink::Live { all, bar, lines: BTreeMap::new() };
        let mut display = Display { sink, keys, cells: 3, held_back: None };
        let attempt: Attempt = serde_json::from_value(serde_json::json!({
            "key": "k", "attempt": 1, "status": "running", "recipe": "r", "recipe_hash": "h", "build": "b",
            "settings": {"model.dim": "64", "training.steps": "9"}, "device": "d", "at": "t", "measured": {}
        }))
        .unwrap();
        display.hold();
        display.line(&attempt, 1, None);
        let Sink::Live { lines, .. } = &display.sink else { unreachable!() };
        assert!(lines.is_empty(), "the heading comes first");
        display.release();
        let Sink::Live { bar, lines, .. } = &display.sink else { unreachable!() };
        lines["k"].set_message("3/9  loss 2.500  model.dim=64");
        lines["k"].force_draw();
        bar.set_position(1);
        bar.force_draw();
        let shown = terminal.contents();
        assert!(shown.contains("1/3 cells") && shown.contains("  3/9  loss 2.500  model.dim=64"), "{shown}");
        display.line(&Attempt { status: CellStatus::Failed, ..attempt }, 2, None);
        let Sink::Live { bar, .. } = &display.sink else { unreachable!() };
        bar.force_draw();
        let shown = terminal.contents();
        assert!(shown.contains("2/3 cells") && !shown.contains("loss"), "{shown}");
    }
}
