//! Figures of a run, drawn from its files: loss, throughput, learning rate and gradient norm.

use super::axis::pad;
use super::chart::{Figure, Look, Mark, Panel, Series};
use super::picture::Picture;
use super::theme::Hue;
use crate::curve::{Points, Scale, points, robust_range, smooth, window};
use crate::error::Result;
use crate::format::short;
use crate::liveness::report_progress;
use crate::regular;
use crate::results::atomic;
use crate::results::folder::{METRICS, PLOTS, SUMMARY, TIMING, read_summary};
use crate::results::rows::{self, MetricsRow, TimingRow};
use crate::results::stored;
use crate::results::summary::Summary;
use std::path::{Path, PathBuf};

/// Most points of a smoothed curve; more would not be visible.
const SMOOTH_POINTS: usize = 1000;

/// Draws the figures `loss`, `throughput` and `schedule` of a run from its `metrics.csv`, `timing.csv` and
/// `summary.json`. Leaves out a figure without a row to show. The same files give the same bytes.
///
/// # Errors
/// If a file cannot be read.
pub fn draw(run: &Path) -> Result<Vec<Picture>> {
    let summary = read_summary(run)?;
    let metrics: Vec<MetricsRow> = rows::read(&run.join(METRICS))?;
    let timing_path = run.join(TIMING);
    let has_timing = stored::is_file(&timing_path);
    let timing: Vec<TimingRow> = if has_timing { rows::read(&timing_path)? } else { Vec::new() };
    let figures = [
        ("loss", loss(&summary, &metrics)),
        ("throughput", throughput(&summary, &timing)),
        ("schedule", schedule(&summary, &metrics)),
    ];
    let drawn = figures.into_iter().filter_map(|(name, figure)| Some((name, figure?.draw())));
    drawn.map(|(name, svgs)| Ok(Picture { name: name.to_owned(), svgs: svgs? })).collect()
}

/// Which figures of a run to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pictures {
    All,
    /// Figures that are missing or older than the summary, because a run may have been killed before it drew
    /// its end. The others are not rewritten.
    Missing,
}

/// Writes the figures of [`draw`] into the run folder as `plots/NAME-THEME.svg` and, with the cargo feature
/// `png`, as `.png`. Returns the paths.
///
/// # Errors
/// If a file cannot be read or written.
pub fn render(run: &Path, which: Pictures) -> Result<Vec<PathBuf>> {
    let pictures = draw(run)?;
    let folder = run.join(PLOTS);
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let ended = modified(&run.join(SUMMARY));
    regular::create_folder(&folder)?;
    let mut paths = Vec::new();
    let is_wanted = |path: &Path| {
        let drawn = modified(path);
        which == Pictures::All || drawn.is_none() || drawn < ended
    };
    let mut write = |path: PathBuf, bytes: &[u8]| {
        report_progress();
        atomic::write(&path, bytes).map(|()| paths.push(path))
    };
    for picture in &pictures {
        for (path, svg) in picture.paths(run).into_iter().zip(&picture.svgs) {
            #[cfg(feature = "png")]
            let raster = path.with_extension("png");
            if is_wanted(&path) {
                write(path, svg.as_bytes())?;
            }
            #[cfg(feature = "png")]
            if is_wanted(&raster) {
                write(raster, &super::raster::png(svg)?)?;
            }
        }
    }
    Ok(paths)
}

/// Draws training and validation loss, and the floor.
fn loss(summary: &Summary, metrics: &[MetricsRow]) -> Option<Figure> {
    let x = x_range(metrics.first()?.step, metrics.last()?.step);
    let raw = points(metrics, "loss");
    let (val, average) = (points(metrics, "val_loss"), points(metrics, "ema_val_loss"));
    let floor = summary.floor.filter(|floor| floor.is_finite());
    let mut series = smoothed("training", Hue::Blue, raw.clone());
    let shown: Points = raw.iter().chain(&val).chain(&average).copied().collect();
    let (low, high) = robust_range(&shown, bold(&series)).or(floor.map(|floor| (floor, floor)))?;
    let range = floor.map_or((low, high), |floor| (low.min(floor), high.max(floor)));
    if !val.is_empty() {
        series.push(Series::new("validation", Hue::Orange, Look::Dotted, val));
    }
    if !average.is_empty() {
        let name = "validation of the moving average";
        series.push(Series::new(name, Hue::Green, Look::Dotted, average));
    }
    let marks = floor.map(|value| Mark { value, name: "floor", label: format!("{value:.3}"), from_x: x.0 });
    let mut parts = vec![described(summary)];
    if let Some(last) = summary.val_loss.last {
        let ratio = summary.val_loss_over_floor.map(|ratio| format!(" = {ratio:.3} × floor"));
        let over = summary.val_part.map(|part| format!(" {part}")).unwrap_or_default();
        parts.push(format!(
            "validation {:.3}{}{over} at step {}",
            last.loss,
            ratio.unwrap_or_default(),
            last.step
        ));
    }
    let average_loss = summary.ema_val_loss.and_then(|losses| losses.last);
    parts.extend(average_loss.map(|last| format!("moving average {:.3} at step {}", last.loss, last.step)));
    parts.extend(first_gap(&raw).map(|step| format!("not finite at step {step}")));
    Some(Figure {
        title: format!("{}: loss", summary.recipe),
        subtitle: parts.join("  ·  "),
        panels: vec![Panel {
            marks: marks.into_iter().collect(),
            ..scaled_panel("cross-entropy (nats per token)", range, series)
        }],
        x_name: "step".into(),
        x,
        x_at: None,
    })
}

/// Draws tokens per second of the training steps, and the steady state.
fn throughput(summary: &Summary, timing: &[TimingRow]) -> Option<Figure> {
    let mut steps = timing.iter().filter(|row| row.phase.is_step()).map(|row| row.step);
    let first = steps.next()?;
    let x = x_range(first, steps.next_back().unwrap_or(first));
    let raw = points(timing, "tok_s");
    let series = smoothed("training", Hue::Blue, raw.clone());
    let (_, high) = robust_range(&raw, bold(&series))?;
    let steady = summary.steady_state.as_ref();
    let median = steady.and_then(|steady| Some((steady.tok_s?, steady.first_step? as f64)));
    let marks = median.map(|(spread, from_x)| Mark {
        value: spread.median,
        name: "median",
        label: short(spread.median),
        from_x,
    });
    let mut parts = vec![described(summary)];
    if let Some(spread) = steady.and_then(|steady| steady.step_ms) {
        parts.push(format!(
            "{} ms per step (middle half {} to {})",
            short(spread.median),
            short(spread.p25),
            short(spread.p75)
        ));
    }
    parts.extend(summary.never_settled().then(|| "never settled".to_owned()));
    parts.extend(summary.mfu_pct.map(|mfu| format!("MFU {mfu:.1} %")));
    Some(Figure {
        title: format!("{}: throughput", summary.recipe),
        subtitle: parts.join("  ·  "),
        panels: vec![Panel {
            marks: marks.into_iter().collect(),
            ..Panel::new("tokens per second", from_zero(high, 0.15), short, series)
        }],
        x_name: median
            .map_or("step".to_owned(), |(_, from)| format!("step (the median is from step {from} on)")),
        x,
        x_at: None,
    })
}

/// Draws the learning rate above and the gradient norm below.
fn schedule(summary: &Summary, metrics: &[MetricsRow]) -> Option<Figure> {
    let x = x_range(metrics.first()?.step, metrics.last()?.step);
    let (rate, norm) = (points(metrics, "lr"), points(metrics, "grad_norm"));
    let norm_series = smoothed("gradient norm", Hue::Purple, norm.clone());
    let (_, highest_rate) = robust_range(&rate, &rate)?;
    let norms = robust_range(&norm, bold(&norm_series)).unwrap_or((0.0, 1.0));
    let rates = vec![Series::new("learning rate", Hue::Green, Look::Bold, rate)];
    let mut parts = vec![described(summary)];
    parts.extend(first_gap(&norm).map(|step| format!("gradient norm not finite at step {step}")));
    Some(Figure {
        title: format!("{}: learning rate and gradient norm", summary.recipe),
        subtitle: parts.join("  ·  "),
        panels: vec![
            Panel::new("learning rate", from_zero(highest_rate, 0.08), scientific, rates),
            scaled_panel("gradient norm before clipping (L2)", norms, norm_series),
        ],
        x_name: "step".into(),
        x,
        x_at: None,
    })
}

/// Returns every point, thin, and the median around it, bold; or the points alone if they are too few to
/// smooth.
fn smoothed(name: &str, hue: Hue, points: Points) -> Vec<Series> {
    let window = window(points.len());
    if window == 1 {
        return vec![Series::new(name, hue, Look::Bold, points)];
    }
    let median = smooth(&points, window, SMOOTH_POINTS);
    vec![
        Series::new(format!("{name}, each step"), hue, Look::Raw, points),
        Series::new(format!("{name}, median of {window}"), hue, Look::Bold, median),
    ]
}

/// Returns the bold one of [`smoothed`] series.
fn bold(series: &[Series]) -> &[(f64, f64)] {
    series.last().map_or(&[], |series| &series.points)
}

/// Returns a panel whose y axis is logarithmic if all values of its range are positive, with a little room.
pub(super) fn scaled_panel(y_name: &str, range: (f64, f64), series: Vec<Series>) -> Panel {
    let scale = if range.0 > 0.0 { Scale::Log } else { Scale::Linear };
    let y = pad(range, scale, 0.05, 0.05);
    Panel { scale, ..Panel::new(named_with_scale(y_name, scale), y, decimal, series) }
}

/// Returns a y range from 0 to a value, with room above it.
fn from_zero(high: f64, room: f64) -> (f64, f64) {
    (0.0, pad((0.0, high.max(0.0)), Scale::Linear, 0.0, room).1)
}

/// Returns the name of an axis, marked if it is logarithmic.
pub(super) fn named_with_scale(name: &str, scale: Scale) -> String {
    match scale {
        Scale::Linear => name.to_owned(),
        Scale::Log => format!("{name}, log scale"),
    }
}

/// Returns the range of the x axis. It begins with the state before the first step, which for a fork is the
/// parent's checkpoint.
fn x_range(first_step: u64, last_step: u64) -> (f64, f64) {
    let start = first_step.saturating_sub(1);
    (start as f64, last_step.max(start + 1) as f64)
}

/// Returns the first step whose value is not finite.
fn first_gap(points: &[(f64, f64)]) -> Option<u64> {
    points.iter().find(|p| !p.1.is_finite()).map(|p| p.0 as u64)
}

/// Describes the run and how much it trained.
fn described(summary: &Summary) -> String {
    let tokens = format!("{}  ·  {} tokens", summary.run, short(summary.own_tokens() as f64));
    match &summary.forked_from {
        Some(fork) => format!("{tokens}  ·  fork of {} at step {}", fork.run, fork.step),
        None => tokens,
    }
}

/// Formats a tick such as `1.5` or `0.02`.
pub(super) fn decimal(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e4).contains(&value.abs()) {
        return scientific(value);
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a tick such as `3e-4` or `2.5e-4`.
fn scientific(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    format!("{value:.1e}").replace(".0e", "e")
}

#[cfg(test)]
mod tests;
