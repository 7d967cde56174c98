//! Draws the frame of a run.

use super::RunView;
use crate::curve::{Points, robust_range, smooth, window};
use crate::format::{decimal, short, significant, thousands, wall_time};
use crate::results::Status;
use crate::results::scored_tasks::ScoredTask;
use crate::watch::canvas::{Canvas, Field, columns};
use crate::watch::chart::{Chart, Layer};
use crate::watch::looks::Role;
use crate::watch::view::{Show, View, heading, progress, unreadable};
use ratatui_core::layout::Rect;

/// Frames at least this wide, in columns, show the small charts beside the large one.
const WIDE: u16 = 120;

/// Frames at least this tall, in rows, give more rows to the sample and the log.
const TALL: u16 = 40;

/// Rows of a small chart, including its title.
const SMALL_CHART: u16 = 7;

/// Columns of the name before a sparkline, and of name and value together.
const SPARK_NAME: u16 = 13;
const SPARK_TEXT: u16 = 24;

/// A figure and its curve over the run.
struct Gauge<'a> {
    name: &'static str,
    value: String,
    text: fn(f64) -> String,
    points: &'a [(f64, f64)],
    role: Role,
}

impl<'a> Gauge<'a> {
    /// Creates the gauge of a curve, or `None` if it has no points.
    fn new(
        name: &'static str,
        points: &'a [(f64, f64)],
        text: fn(f64) -> String,
        unit: &str,
        role: Role,
    ) -> Option<Self> {
        let (_, last) = points.last()?;
        Some(Self { name, value: format!("{}{unit}", text(*last)), text, points, role })
    }
}

/// Smooths a curve as the plots do, to about two points per column, which is the resolution of a line.
fn smoothed(points: &[(f64, f64)], columns: u16) -> Points {
    smooth(points, window(points.len()), 2 * usize::from(columns))
}

impl RunView {
    /// Draws the frame of the run.
    pub(super) fn draw_frame(&self, canvas: &mut Canvas, show: &Show) {
        let (width, height) = (canvas.width(), canvas.height());
        let (words, role) = status(self);
        heading(canvas, &self.name, &words, role);
        // Without a readable summary the number of steps is unknown.
        if self.summary.is_some() || self.trouble.is_none() {
            steps_done(self, canvas);
        }
        losses(self, canvas, 2);
        let mut top = 3;
        let scores = scores(self);
        if !scores.is_empty() {
            canvas.fields(0, top, width, &scores);
            top += 1;
        }
        for (text, role) in remarks(self) {
            top += canvas.paragraph(0, top, (width, 3), &text, role);
        }
        let gauges = gauges(self);
        let has_samples = self.summary.as_ref().is_some_and(|summary| !summary.samples.is_empty());
        let (log_rows, sample_rows) = if height >= TALL { (4, 7) } else { (1, 3) };
        let sample_rows = if has_samples { sample_rows } else { 0 };
        let rank_rows = u16::from(self.ranks > Some(1));
        let side = if width >= WIDE { width / 3 } else { 0 };
        let spark_rows = if side > 0 { 0 } else { gauges.len().div_ceil(2) as u16 };
        let chart_rows = height.saturating_sub(top + spark_rows + rank_rows + sample_rows + log_rows);
        loss_chart(self, canvas, Rect::new(0, top, width - side, chart_rows), show);
        let mut at = top + chart_rows;
        if side > 0 {
            let area = Rect::new(width - side + 2, top, side - 2, chart_rows);
            side_charts(canvas, area, &gauges, steps(self, show));
        } else {
            sparklines(canvas, at, &gauges);
            at += spark_rows;
        }
        if rank_rows > 0 {
            canvas.fields(0, at, width, &ranks(self));
            at += rank_rows;
        }
        sample(self, canvas, at, sample_rows);
        log(self, canvas, at + sample_rows, log_rows);
    }
}

/// Returns the status in words, and its role.
fn status(view: &RunView) -> (String, Role) {
    let has_ended = view.status.is_some_and(|status| status != Status::Running);
    match view.status {
        // While a run goes on, a file may be half written, so only an ended run is called damaged.
        None if view.trouble.is_some() => ("✗ damaged".to_owned(), Role::Bad),
        Some(_) if has_ended && view.fault().is_some() => ("✗ damaged".to_owned(), Role::Bad),
        None => ("○ starting".to_owned(), Role::Muted),
        Some(Status::Running) => match view.quiet {
            Some(seconds) => (format!("● running, no row for {}", wall_time(seconds as f64)), Role::Training),
            None => ("● running".to_owned(), Role::Training),
        },
        Some(Status::Ok) => ("● ok".to_owned(), Role::Good),
        Some(other) => (format!("✗ {}", other.as_str()), Role::Bad),
    }
}

fn steps_done(view: &RunView, canvas: &mut Canvas) {
    let planned = view.summary.as_ref().map_or(0, |summary| summary.steps_planned);
    let in_summary = view.summary.as_ref().map_or(0, |summary| summary.steps);
    let step = view.last_metrics.as_ref().map_or(in_summary, |row| row.step);
    let share = if planned > 0 { step as f64 / planned as f64 } else { 0.0 };
    let count = |steps: u64| thousands(steps as usize);
    let mut fields = vec![
        Field::new("step", format!("{}/{}", count(step), count(planned)), Role::Strong),
        Field::new("", format!("{:.0} %", 100.0 * share), Role::Text),
    ];
    let wall = view.last_timing.as_ref().map(|row| row.wall_s);
    fields.extend(wall.map(|seconds| Field::new("after", wall_time(seconds), Role::Text)));
    fields.extend(view.seconds_left().map(|seconds| Field::new("left", wall_time(seconds), Role::Strong)));
    let tokens = view.last_metrics.as_ref().map(|row| row.tokens_seen as f64);
    fields.extend(tokens.map(|tokens| Field::new("tokens", short(tokens), Role::Text)));
    progress(canvas, share, &fields);
}

fn losses(view: &RunView, canvas: &mut Canvas, y: u16) {
    let mut fields = Vec::new();
    let (training, validation) = (Role::Training, Role::Validation);
    if let Some(row) = &view.last_metrics {
        fields.push(Field::new("loss", format!("{:.4}", row.loss), training));
    }
    if let Some((loss, count)) = view.smoothed_loss().filter(|(_, count)| *count > 1) {
        fields.push(Field::new(&format!("mean of {count}"), format!("{loss:.4}"), training));
    }
    if let Some((step, loss)) = view.metrics.column("val_loss").last() {
        fields.push(Field::new("validation", format!("{loss:.4} at step {step:.0}"), validation));
    }
    if let Some(summary) = &view.summary {
        fields.extend(summary.floor.map(|floor| Field::new("floor", format!("{floor:.4}"), Role::Bound)));
        let ema = summary.ema_val_loss.and_then(|losses| losses.last);
        fields.extend(ema.map(|last| Field::new("EMA", format!("{:.4}", last.loss), validation)));
        let bits = summary.bits_per_byte;
        fields.extend(bits.map(|bits| Field::new("bits/byte", format!("{bits:.4}"), validation)));
        fields.extend(summary.val_part.map(|part| Field::new("validation", part.to_string(), Role::Muted)));
        for (name, source) in &summary.source_losses {
            let last = source.losses.last;
            let label = format!("training {name}");
            fields.extend(last.map(|last| Field::new(&label, format!("{:.4}", last.loss), training)));
        }
        for (name, set) in summary.held_out.iter().filter(|(name, _)| !name.is_empty()) {
            let last = set.losses.last;
            fields.extend(last.map(|last| Field::new(name, format!("{:.4}", last.loss), validation)));
        }
    }
    canvas.fields(0, y, canvas.width(), &fields);
}

/// Returns the last figure of each task, with its error over items.
fn scores(view: &RunView) -> Vec<Field> {
    let field = |(name, task): (&String, &ScoredTask)| {
        let last = task.last()?;
        let error = task.error.map(|error| format!(" ± {error:.4}")).unwrap_or_default();
        let (label, value) = (format!("{name} {}", task.metric), format!("{:.4}{error}", last.value));
        Some(Field::new(&label, value, Role::Validation))
    };
    view.summary.iter().flat_map(|summary| &summary.tasks).filter_map(field).collect()
}

/// Returns what the user should know if the run is not simply progressing.
fn remarks(view: &RunView) -> Vec<(String, Role)> {
    let mut said = Vec::new();
    said.extend(view.trouble.as_deref().map(unreadable));
    said.extend(view.damage.as_ref().map(|why| (format!("damaged: {why}"), Role::Bad)));
    if view.status == Some(Status::Killed) {
        let process = view.owner.as_ref().map_or("its process", |owner| owner.words.as_str());
        let mut text = format!(
            "killed: {process} ended without recording a status (SIGKILL, out of memory, or a power cut). `xrun resume {}` continues it",
            view.name
        );
        if let Some(host) = view.owner.as_ref().and_then(|owner| owner.elsewhere.as_ref()) {
            text += &format!(" (or it runs on {host}, whose lock this host cannot see)");
        }
        said.push((text, Role::Bad));
    }
    let reason = view.summary.as_ref().and_then(|summary| summary.reason.clone());
    said.extend(reason.map(|reason| (reason, Role::Bad)));
    if let Some((step, _)) = view.metrics.column("loss").iter().find(|point| !point.1.is_finite()) {
        said.push((format!("the loss is not finite at step {step:.0}"), Role::Bad));
    }
    said
}

fn loss_chart(view: &RunView, canvas: &mut Canvas, area: Rect, show: &Show) {
    let (loss, validation) = (view.metrics.column("loss"), view.metrics.column("val_loss"));
    let title = if show.is_linear { "loss" } else { "loss, log axis" };
    canvas.rule(area.x, area.y, area.width, title);
    let Some(summary) = &view.summary else { return };
    let legend = [
        Some(("⣀⠤⠒", "training", Role::Training)),
        Some(("░", "each step", Role::Muted)),
        validation.last().map(|_| ("◆", "validation", Role::Validation)),
        summary.floor.map(|_| ("┄", "floor", Role::Bound)),
    ];
    let mut end = area.right().saturating_sub(1);
    for (glyph, name, role) in legend.into_iter().flatten().rev() {
        let entry = format!(" {glyph} {name} ");
        if end < area.x + columns(title) + columns(&entry) + 4 {
            break;
        }
        end -= columns(&entry);
        canvas.text(end, area.y, area.width, &entry, role);
    }
    let training = smoothed(loss, area.width);
    let Some((low, high)) = robust_range(loss, &training) else {
        canvas.text(area.x + 2, area.y + 1, area.width, "no step yet", Role::Muted);
        return;
    };
    let finite = validation.iter().map(|point| point.1).filter(|loss| loss.is_finite());
    let others = finite.chain(summary.floor);
    let low = others.fold(low, f64::min);
    let (first, last) = steps(view, show);
    let is_log = !show.is_linear && low > 0.0;
    let mut layers = vec![Layer::Marks(loss.to_vec(), '░', Role::Muted)];
    layers.extend(summary.floor.map(|floor| Layer::Level(floor, Role::Bound)));
    layers.push(Layer::Line(training, Role::Training));
    layers.push(Layer::Marks(validation.to_vec(), '◆', Role::Validation));
    let chart = Chart {
        x: (first as f64, last as f64),
        x_names: [format!("step {}", thousands(first as usize)), thousands(last as usize)],
        y: padded(low, high),
        is_log,
        y_text: |value| if value < 1e5 { format!("{value:.2}") } else { format!("{value:.1e}") },
        layers,
    };
    chart.draw(canvas, Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area });
}

/// Returns the first and the last step of the x axes.
fn steps(view: &RunView, show: &Show) -> (u64, u64) {
    let summary = view.summary.as_ref();
    let first = summary.and_then(|summary| summary.forked_from.as_ref()).map_or(0, |fork| fork.step);
    let so_far = view.last_metrics.as_ref().map_or(first, |row| row.step).max(first + 1);
    let planned = summary.filter(|_| show.is_whole).map_or(0, |summary| summary.steps_planned);
    (first, so_far.max(planned))
}

/// Widens a range of zero height.
fn padded(low: f64, high: f64) -> (f64, f64) {
    let reach = if high > low { 0.0 } else { 0.05 * low.abs().max(1e-12) };
    (low - reach, high + reach)
}

/// Returns the gauges that have a value in this run.
fn gauges(view: &RunView) -> Vec<Gauge<'_>> {
    let (metrics, timing) = (|column| view.metrics.column(column), |column| view.timing.column(column));
    // On a GPU, its own memory is the one that matters.
    let memory = match timing("gpu_reserved_mib") {
        [] => timing("rss_mib"),
        reserved => reserved,
    };
    let whole: fn(f64) -> String = |value| decimal(Some(value), 0);
    let tenths: fn(f64) -> String = |value| decimal(Some(value), 1);
    let all = [
        Gauge::new("tokens/s", timing("tok_s"), short, "", Role::Training),
        Gauge::new("memory", memory, whole, " MiB", Role::Good),
        Gauge::new("GPU load", timing("gpu_util_pct"), whole, " %", Role::Good),
        Gauge::new("MFU", timing("mfu_pct"), tenths, " %", Role::Good),
        Gauge::new("learning rate", metrics("lr"), significant, "", Role::Bound),
        Gauge::new("gradient", metrics("grad_norm"), significant, "", Role::Bound),
    ];
    all.into_iter().flatten().collect()
}

/// Draws gauges in two columns, each with a sparkline.
fn sparklines(canvas: &mut Canvas, y: u16, gauges: &[Gauge<'_>]) {
    let half = canvas.width() / 2;
    for (at, gauge) in gauges.iter().enumerate() {
        sparkline(canvas, ((at % 2) as u16 * half, y + (at / 2) as u16), half.saturating_sub(2), gauge);
    }
}

/// Draws a gauge as a row: name, value and sparkline.
fn sparkline(canvas: &mut Canvas, (x, y): (u16, u16), width: u16, gauge: &Gauge<'_>) {
    canvas.text(x, y, SPARK_NAME, gauge.name, Role::Muted);
    canvas.text_to(x + SPARK_TEXT - 1, y, &gauge.value, Role::Strong);
    let width = width.saturating_sub(SPARK_TEXT);
    let course = smooth(gauge.points, window(gauge.points.len()), width.into());
    let course: Vec<f64> = course.into_iter().map(|point| point.1).collect();
    canvas.sparkline(x + SPARK_TEXT, y, width, &course, gauge.role);
}

/// Draws as many gauges as fit as small charts, and the others as rows.
fn side_charts(canvas: &mut Canvas, area: Rect, gauges: &[Gauge<'_>], (first, last): (u64, u64)) {
    let needed = |charts: usize| charts as u16 * SMALL_CHART + (gauges.len() - charts) as u16;
    let fit = (0..=gauges.len()).rev().find(|charts| needed(*charts) <= area.height).unwrap_or(0);
    let rest = ((gauges.len() - fit) as u16).min(area.height);
    let rows = area.height.saturating_sub(rest) / (fit as u16).max(1);
    for (at, gauge) in gauges[..fit].iter().enumerate() {
        let y = area.y + at as u16 * rows;
        canvas.rule(area.x, y, area.width, &format!("{}  {}", gauge.name, gauge.value));
        let course = smoothed(gauge.points, area.width);
        let Some((low, high)) = robust_range(gauge.points, &course) else { continue };
        let chart = Chart {
            x: (first as f64, last as f64),
            x_names: [String::new(), String::new()],
            y: padded(low, high),
            is_log: false,
            y_text: gauge.text,
            layers: vec![Layer::Line(course, gauge.role)],
        };
        chart.draw(canvas, Rect::new(area.x, y + 1, area.width, rows - 1));
    }
    for (row, gauge) in gauges[fit..].iter().take(rest.into()).enumerate() {
        sparkline(canvas, (area.x, area.bottom() - rest + row as u16), area.width, gauge);
    }
}

fn ranks(view: &RunView) -> Vec<Field> {
    let count = view.ranks.unwrap_or(1);
    let mut fields = vec![Field::new("ranks", count.to_string(), Role::Strong)];
    if let Some(row) = &view.last_timing {
        fields.extend(row.slowest_rank.map(|rank| Field::new("slowest", rank.to_string(), Role::Text)));
        let ms = |value: f64| format!("{value:.2} ms");
        fields.extend(row.communication_ms.map(|time| Field::new("collectives", ms(time), Role::Text)));
        fields.extend(row.exposed_communication_ms.map(|time| Field::new("exposed", ms(time), Role::Text)));
    }
    let busy = view.summary.as_ref().map_or(&[][..], |summary| summary.rank_busy_pct.as_slice());
    if !busy.is_empty() {
        let busy: Vec<String> = busy.iter().map(|busy| format!("{busy:.0}")).collect();
        fields.push(Field::new("busy %", busy.join(" "), Role::Text));
    }
    fields
}

fn sample(view: &RunView, canvas: &mut Canvas, y: u16, rows: u16) {
    let Some(sample) = view.summary.as_ref().and_then(|summary| summary.samples.last()) else { return };
    let width = canvas.width();
    canvas.rule(0, y, width, &format!("sample after step {}", sample.step));
    let text = format!("{}{}", sample.prompt, sample.text);
    canvas.paragraph(2, y + 1, (width - 2, rows.saturating_sub(1)), &text, Role::Text);
}

fn log(view: &RunView, canvas: &mut Canvas, y: u16, rows: u16) {
    let shown = view.log_lines.iter().skip(view.log_lines.len().saturating_sub(rows.into()));
    for (row, line) in shown.enumerate() {
        canvas.text(0, y + row as u16, canvas.width(), line, Role::Muted);
    }
}
