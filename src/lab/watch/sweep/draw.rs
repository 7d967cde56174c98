//! Draws the frame of a sweep, with a row per cell.

use super::{Step, SweepView, WatchedCell};
use crate::curve::finite_range;
use crate::format::{plural, short, wall_time};
use crate::results::ledger::CellStatus;
use crate::watch::canvas::{Canvas, Field};
use crate::watch::looks::Role;
use crate::watch::view::{Show, heading, progress, unreadable};
use std::collections::BTreeMap;

/// Rows of the frame that are not cells: heading, counts, remark, keys, column names, and how many cells are
/// above and below.
const ROWS_BESIDE_CELLS: u16 = 7;

/// Columns for the state, and for each number after the settings.
const STATE: u16 = 17;
const NUMBERS: [(&str, u16); 5] = [("steps", 10), ("loss", 8), ("val. loss", 10), ("tok/s", 7), ("time", 7)];

/// Frames at least `WIDE` columns wide also mark the validation losses on a common scale of `SCALE` columns.
const WIDE: u16 = 120;
const SCALE: u16 = 40;

impl SweepView {
    /// Returns the height of a frame that shows all cells.
    pub(super) fn height(&self) -> u16 {
        u16::try_from(self.cells.len()).unwrap_or(u16::MAX).saturating_add(ROWS_BESIDE_CELLS)
    }

    /// Draws the frame of the sweep.
    pub(super) fn draw_frame(&self, canvas: &mut Canvas, show: &Show) {
        let width = canvas.width();
        let (done, all) = (self.done(), self.cells.len());
        let (state, role) = match () {
            () if done == all => ("● done", Role::Good),
            () if self.condition.is_held => ("● running", Role::Training),
            () => ("✗ no sweep runs", Role::Bad),
        };
        heading(canvas, &format!("sweep {}", self.name), state, role);
        progress(canvas, done as f64 / all.max(1) as f64, &counts(self, done, all));
        let mut y = 2;
        if let Some((text, role)) = remark(self, done, all) {
            y += canvas.paragraph(0, y, (width, 2), &text, role);
        }
        canvas.text(0, y, width, &format!("cells differ in {}", self.keys.join(", ")), Role::Muted);
        header(canvas, y + 1);
        let top = y + 2;
        let rows = usize::from(canvas.height().saturating_sub(top + 1));
        let first = first_row(self, show, rows);
        let best = self.best();
        for (at, cell) in self.cells.iter().enumerate().skip(first).take(rows) {
            row(self, canvas, top + (at - first) as u16, cell, best == Some(at));
        }
        let below = all.saturating_sub(first + rows);
        if first > 0 || below > 0 {
            let text = format!("{first} above, {below} below: ↑ ↓ PgUp PgDn");
            canvas.text(0, canvas.height() - 1, width, &text, Role::Muted);
        }
    }
}

/// Returns the first cell to show: the chosen one, or two above the first that is running or to come.
fn first_row(view: &SweepView, show: &Show, rows: usize) -> usize {
    let last = view.cells.len().saturating_sub(rows);
    let is_open = |cell: &WatchedCell| !cell.status().is_some_and(CellStatus::is_final);
    let open = view.cells.iter().position(is_open).unwrap_or(0);
    show.first.unwrap_or(open.saturating_sub(2)).min(last)
}

fn counts(view: &SweepView, done: usize, all: usize) -> Vec<Field> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for status in view.cells.iter().filter_map(WatchedCell::status) {
        *counts.entry(status.as_str()).or_default() += 1;
    }
    let mut fields = vec![Field::new("", format!("{done} of {all} cell{} done", plural(all)), Role::Strong)];
    fields.extend(
        left(view).map(|seconds| Field::new("about", format!("{} left", wall_time(seconds)), Role::Text)),
    );
    fields.extend(
        counts.into_iter().map(|(status, count)| Field::new("", format!("{count} {status}"), Role::Text)),
    );
    let to_come = view.count(|status| status.is_none());
    if to_come > 0 {
        fields.push(Field::new("", format!("{to_come} to come"), Role::Muted));
    }
    fields
}

/// Estimates the seconds left, assuming that the cells to come take as long as those that trained to their
/// end, and that as many run at once as now.
fn left(view: &SweepView) -> Option<f64> {
    let ok = view.cells.iter().filter(|cell| cell.status() == Some(CellStatus::Ok));
    let times: Vec<f64> = ok.filter_map(WatchedCell::seconds).collect();
    let running: Vec<&WatchedCell> =
        view.cells.iter().filter(|cell| cell.status() == Some(CellStatus::Running)).collect();
    if times.is_empty() || running.is_empty() || !view.condition.is_held {
        return None;
    }
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let eta = |cell: &WatchedCell| cell.progress.as_ref()?.last.as_ref()?.eta_s;
    let rest = |cell: &&WatchedCell| eta(cell).unwrap_or(mean / 2.0);
    let to_come = view.count(|status| status.is_none()) as f64 * mean;
    Some((running.iter().map(rest).sum::<f64>() + to_come) / running.len() as f64)
}

fn remark(view: &SweepView, done: usize, all: usize) -> Option<(String, Role)> {
    if let Some(trouble) = &view.condition.trouble {
        return Some(unreadable(trouble));
    }
    (done < all && !view.condition.is_held).then(|| {
        let running = view.count(|status| status == Some(CellStatus::Running));
        let alone = match running {
            0 => String::new(),
            _ => format!(
                "; the cells it left running ({running}) finish on their own, unless they were killed too"
            ),
        };
        (format!("no process works on it{alone}. The command that started it continues it"), Role::Bad)
    })
}

/// Returns the columns for the settings.
fn settings_width(width: u16) -> u16 {
    let numbers: u16 = NUMBERS.iter().map(|(_, width)| width).sum();
    let scale = if width >= WIDE { SCALE + 2 } else { 0 };
    width.saturating_sub(STATE + numbers + scale).min(60)
}

fn header(canvas: &mut Canvas, y: u16) {
    let width = canvas.width();
    canvas.text(0, y, STATE, "cell", Role::Muted);
    canvas.text(STATE, y, 20, "settings", Role::Muted);
    let mut end = STATE + settings_width(width);
    for (name, columns) in NUMBERS {
        end += columns;
        canvas.text_to(end, y, name, Role::Muted);
    }
    if width >= WIDE {
        canvas.text(end + 2, y, SCALE, "val. loss, lowest to highest", Role::Muted);
    }
}

fn row(view: &SweepView, canvas: &mut Canvas, y: u16, cell: &WatchedCell, is_best: bool) {
    let width = canvas.width();
    let (glyph, role) = match cell.status() {
        None => ('·', Role::Muted),
        Some(CellStatus::Running) => ('▶', Role::Training),
        Some(CellStatus::Ok) if is_best => ('★', Role::Good),
        Some(CellStatus::Ok) => ('●', Role::Good),
        Some(CellStatus::Halted | CellStatus::Dropped | CellStatus::Skipped) => ('○', Role::Muted),
        Some(_) => ('✗', Role::Bad),
    };
    canvas.glyph(0, y, glyph, role);
    let state = cell.status().map_or("to come", CellStatus::as_str);
    canvas.text(2, y, STATE - 3, state, role);
    let settings = settings_width(width);
    let name_role = if is_best { Role::Strong } else { Role::Text };
    let reason = cell.last.as_ref().and_then(|last| last.reason.as_ref());
    canvas.text(STATE, y, settings.saturating_sub(1), &view.name_of(&cell.cell), name_role);
    if let Some(reason) = reason.filter(|_| cell.figure("steps").is_none()) {
        let (from, reason) = (STATE + settings + 1, reason.split(';').next().unwrap_or_default());
        canvas.text(from, y, width.saturating_sub(from), reason, Role::Muted);
        return;
    }
    let mut end = STATE + settings;
    for ((_, columns), text) in NUMBERS.into_iter().zip(numbers(cell)) {
        end += columns;
        canvas.text_to(end, y, &text, name_role);
    }
    if width >= WIDE {
        scale(view, canvas, (end + 2, y), cell);
    }
}

/// Formats the time of a cell. The ledger has whole seconds.
fn whole_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => "< 1 s".to_owned(),
        s if s < 10.0 => format!("{s:.0} s"),
        s => wall_time(s),
    }
}

/// Formats steps, losses, speed and time of a cell; unknown ones are empty.
fn numbers(cell: &WatchedCell) -> [String; 5] {
    let loss = |loss: f64| format!("{loss:.4}");
    let time = cell.seconds().map(whole_seconds).unwrap_or_default();
    if let Some(progress) = &cell.progress {
        let Some(Step { step, total_steps, loss: last, tok_s, .. }) = &progress.last else {
            return ["starting".to_owned(), String::new(), String::new(), String::new(), time];
        };
        let (last, rate) = (last.map(loss).unwrap_or_default(), tok_s.map(short).unwrap_or_default());
        return [format!("{step}/{total_steps}"), last, String::new(), rate, time];
    }
    let figure = |key: &str, text: &dyn Fn(f64) -> String| cell.figure(key).map(text).unwrap_or_default();
    [
        figure("steps", &|steps| format!("{steps:.0}")),
        figure("train_loss", &loss),
        figure("val_loss", &loss),
        figure("tok_s", &short),
        time,
    ]
}

/// Marks the validation loss of a cell on a scale from the lowest to the highest.
fn scale(view: &SweepView, canvas: &mut Canvas, (x, y): (u16, u16), cell: &WatchedCell) {
    let losses = view.cells.iter().filter_map(|cell| cell.figure("val_loss"));
    let (low, high) = finite_range(losses).unwrap_or_default();
    let Some(loss) = cell.figure("val_loss").filter(|loss| loss.is_finite()) else { return };
    for column in 0..SCALE {
        canvas.glyph(x + column, y, '·', Role::Muted);
    }
    let share = if high > low { (loss - low) / (high - low) } else { 0.0 };
    canvas.glyph(x + (share * f64::from(SCALE - 1)).round() as u16, y, '◆', Role::Validation);
}
