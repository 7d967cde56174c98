//! Figures of coordinates: the size of each kind of activation, and of its change since the first step, over
//! the width of the model.

use super::chart::{Figure, Look, Panel, Series};
use super::picture::{Picture, write};
use super::plots::scaled_panel;
use super::theme::Hue;
use crate::curve::{Points, Scale, finite_range};
use crate::error::Result;
use crate::format::plural;
use crate::results::coordinates::{self, Coordinate, Coordinates, Slope};
use std::path::Path;

/// Least ratio of the ends of a y axis, so that what differs by a few percent looks flat.
const LEAST_RATIO: f64 = 4.0;

/// A value of a row.
type Value = fn(&Coordinate) -> f64;

/// A slope of a value.
type SlopeField = fn(&Slope) -> Option<f64>;

/// Draws the coordinates in a folder into `plots/QUANTITY-THEME.svg` and, with the cargo feature `png`,
/// `.png`.
///
/// # Errors
/// If a file cannot be read or written.
pub fn render(folder: &Path) -> Result<()> {
    let (found, rows) = coordinates::read(folder)?;
    let pictures = draw(&found, &rows)?;
    write(folder, &pictures)?;
    #[cfg(feature = "png")]
    for picture in &pictures {
        for (path, svg) in picture.paths(folder).iter().zip(&picture.svgs) {
            crate::results::atomic::write(&path.with_extension("png"), &super::raster::png(svg)?)?;
        }
    }
    Ok(())
}

fn draw(found: &Coordinates, rows: &[Coordinate]) -> Result<Vec<Picture>> {
    let mut quantities: Vec<&str> = Vec::new();
    for row in rows {
        if !quantities.contains(&row.quantity.as_str()) {
            quantities.push(&row.quantity);
        }
    }
    let drawn = quantities.into_iter().filter_map(|name| Some((name, figure(found, rows, name)?.draw())));
    drawn.map(|(name, svgs)| Ok(Picture { name: name.to_owned(), svgs: svgs? })).collect()
}

/// Returns the figure of a quantity, or `None` if none of its values is above zero.
fn figure(found: &Coordinates, rows: &[Coordinate], quantity: &str) -> Option<Figure> {
    let rows: Vec<&Coordinate> = rows.iter().filter(|row| row.quantity == quantity && row.step > 0).collect();
    let values: [(&str, Value, SlopeField); 2] = [
        ("RMS", |row| row.rms, |slope| slope.rms),
        ("RMS of its change since step 0", |row| row.change_rms, |slope| slope.change_rms),
    ];
    let panels: Vec<Panel> = values
        .iter()
        .enumerate()
        .filter_map(|(at, (name, value, _))| panel(found, &rows, name, *value, at == 0))
        .collect();
    if panels.is_empty() {
        return None;
    }
    let place = |width: usize| Scale::Log.place(width as f64);
    let ends = [found.widths.first()?, found.widths.last()?].map(|width| place(*width));
    let room = 0.06 * (ends[1] - ends[0]);
    Some(Figure {
        title: format!("{}: {quantity} over the width", found.recipe),
        subtitle: subtitle(found, quantity, &values),
        panels,
        x_name: "width of the residual stream, log scale".to_owned(),
        x: (ends[0] - room, ends[1] + room),
        x_at: Some(found.widths.iter().map(|&width| (place(width), width.to_string())).collect()),
    })
}

/// Returns the lines of a value: one for every step of a parametrization, the last one bold. Only lines of
/// the first panel are in the legend.
fn panel(
    found: &Coordinates,
    rows: &[&Coordinate],
    name: &str,
    value: Value,
    is_first: bool,
) -> Option<Panel> {
    let mut series = Vec::new();
    for (parametrization, hue) in [("mup", Hue::Blue), ("standard", Hue::Orange)] {
        for step in 1..=found.steps {
            let points: Points = found
                .widths
                .iter()
                .map(|&width| {
                    let is_here = |row: &&&Coordinate| {
                        row.parametrization == parametrization && row.step == step && row.width == width
                    };
                    let mean = geometric_mean(rows.iter().filter(is_here).map(|row| value(row)));
                    (Scale::Log.place(width as f64), mean)
                })
                .collect();
            if points.iter().all(|(_, y)| !y.is_finite()) {
                continue;
            }
            let look = if step == found.steps { Look::Bold } else { Look::Raw };
            let name = match look {
                Look::Bold if is_first => format!("{parametrization}, step {step}"),
                Look::Raw if is_first && step == 1 => format!("{parametrization}, earlier steps"),
                _ => String::new(),
            };
            series.push(Series::new(name, hue, look, points));
        }
    }
    let (low, high) = finite_range(series.iter().flat_map(|series| &series.points).map(|point| point.1))?;
    let widen = (LEAST_RATIO / (high / low)).max(1.0).sqrt();
    Some(scaled_panel(name, (low / widen, high * widen), series))
}

/// Returns the geometric mean; NaN, which draws a gap, if there is no value or one is not above zero.
fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    if mean.is_finite() { mean.exp() } else { f64::NAN }
}

/// Returns the slopes after the last step, and the number of seeds behind them.
fn subtitle(found: &Coordinates, quantity: &str, values: &[(&str, Value, SlopeField)]) -> String {
    let last = found.slopes.iter().filter(|slope| slope.quantity == quantity && slope.step == found.steps);
    let shown = |slope: Option<f64>| slope.map_or("none".to_owned(), |slope| format!("{slope:+.2}"));
    let mut parts: Vec<String> = last
        .map(|slope| {
            let [size, change] = [values[0].2, values[1].2].map(|of| shown(of(slope)));
            format!("{}: slopes {size} and {change}", slope.parametrization)
        })
        .collect();
    let seeds = found.seeds.len();
    parts.push(format!("{}, {seeds} seed{}", found.optimizer, plural(seeds)));
    parts.join("  ·  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coordinates() -> (Coordinates, Vec<Coordinate>) {
        let mut rows = Vec::new();
        for parametrization in ["mup", "standard"] {
            for width in [64, 128, 256] {
                for step in 0..=3 {
                    let grows = if parametrization == "mup" { 1.0 } else { width as f64 / 64.0 };
                    let (quantity, change_rms) = ("logits".to_owned(), grows * step as f64);
                    let parametrization = parametrization.to_owned();
                    let rms = 1.0 + change_rms;
                    rows.push(Coordinate {
                        parametrization,
                        width,
                        seed: 0,
                        step,
                        quantity,
                        rms,
                        change_rms,
                    });
                }
            }
        }
        let found = Coordinates {
            recipe: "r<i>".to_owned(),
            recipe_hash: String::new(),
            optimizer: "adamw".to_owned(),
            widths: vec![64, 128, 256],
            base_dim: Some(64),
            steps: 3,
            seeds: vec![0],
            rows: 10,
            flat: coordinates::MAX_FLAT_SLOPE,
            finished: true,
            slopes: coordinates::slopes(&rows),
        };
        (found, rows)
    }

    #[test]
    fn a_quantity_has_two_panels_of_both_parametrizations() {
        let (found, rows) = coordinates();
        let figure = figure(&found, &rows, "logits").unwrap();
        assert_eq!(figure.panels.len(), 2);
        let lines: Vec<(&str, usize)> =
            figure.panels[0].series.iter().map(|line| (line.name.as_str(), line.points.len())).collect();
        let named =
            ["mup, earlier steps", "", "mup, step 3", "standard, earlier steps", "", "standard, step 3"];
        assert_eq!(lines, named.map(|name| (name, 3)));
        assert!(figure.panels[1].series.iter().all(|line| line.name.is_empty()));
        assert!(figure.subtitle.contains("mup: slopes +0.00 and +0.00"), "{}", figure.subtitle);
        assert!(figure.subtitle.contains("standard: slopes +0.") && figure.subtitle.contains("+1.00"));
        let pictures = draw(&found, &rows).unwrap();
        assert_eq!(pictures.len(), 1);
        assert!(pictures[0].svgs.iter().all(|svg| svg.starts_with("<svg") && !svg.contains("r<i>")));
    }

    #[test]
    fn what_is_zero_everywhere_has_no_picture_and_what_is_flat_looks_so() {
        let (found, mut rows) = coordinates();
        rows.retain(|row| row.parametrization == "mup");
        let figure = figure(&found, &rows, "logits").unwrap();
        let (low, high) = figure.panels[1].y;
        assert!(high / low >= LEAST_RATIO, "{low} to {high}");
        rows.iter_mut().for_each(|row| (row.rms, row.change_rms) = (0.0, 0.0));
        assert!(super::figure(&found, &rows, "logits").is_none());
    }
}
