//! Figures: a title, a legend and one panel or two above a common x axis, drawn to SVG.

use super::raster::{FAMILY, text_width};
use super::series::{Points, Scale, stretches, thin, ticks};
use super::theme::{Hue, Theme};
use crate::error::{Error, Result};
use crate::format::short;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The size of a figure in pixels. It is meant to be shown at half of that size, sharp on dense screens.
const SIZE: (u32, u32) = (1600, 900);
/// Space left of the panels, for y labels, and right of them, without and with labels of marks.
const LEFT: i32 = 128;
const RIGHT: i32 = 56;
const RIGHT_OF_MARKS: i32 = 132;
const BOTTOM: i32 = 104;
/// Space above the first panel for title, subtitle, legend and the name of its y axis.
const TOP: i32 = 226;
/// Space between two panels, with the name of the lower y axis.
const BETWEEN: i32 = 84;
/// Text sizes in pixels per em.
const TITLE: f64 = 36.0;
const TEXT: f64 = 25.0;
/// Maximum number of points, in pairs, that are distinguishable in one line; as dots, the maximum number.
const BUCKETS: usize = 1000;
const MAX_DOTS: usize = 60;

/// A figure.
#[derive(Clone, Debug)]
pub struct Figure {
    pub title: String,
    pub subtitle: String,
    /// Panels from top to bottom over the same x range.
    pub panels: Vec<Panel>,
    /// The name of the x axis.
    pub x_name: String,
    /// The range of x.
    pub x: (f64, f64),
    /// Positions of x ticks; `None` for round numbers.
    pub x_at: Option<Vec<f64>>,
}

/// A panel: series over a y axis.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The name of the y axis with its unit.
    pub y_name: String,
    /// The range of y. Points beyond are drawn at its edge.
    pub y: (f64, f64),
    pub scale: Scale,
    pub y_label: fn(f64) -> String,
    pub series: Vec<Series>,
    pub marks: Vec<Mark>,
}

/// A line through points.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its entry in the legend.
    pub name: String,
    pub hue: Hue,
    pub look: Look,
    pub points: Points,
}

/// The style of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Thin and pale: every measurement.
    Raw,
    /// Bold: the main curve.
    Bold,
    /// Of medium width, with each point marked where there are few: values that are measured at intervals.
    Dotted,
    /// Points without a line: values without an order.
    Dots,
}

/// A dashed line at a value, named right of the panel, where no data is.
#[derive(Clone, Debug)]
pub struct Mark {
    pub value: f64,
    /// Its name, one short word.
    pub name: &'static str,
    /// The value as text.
    pub label: String,
    /// Left end of the line.
    pub from_x: f64,
}

impl Figure {
    /// Returns the right edge of the panels.
    fn right(&self) -> i32 {
        let is_marked = self.panels.iter().any(|panel| !panel.marks.is_empty());
        SIZE.0 as i32 - if is_marked { RIGHT_OF_MARKS } else { RIGHT }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws a figure as SVG.
pub fn svg(figure: &Figure, theme: &Theme) -> Result<String> {
    let mut text = String::new();
    {
        let page = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        let corners = [(0, 0), (SIZE.0 as i32, SIZE.1 as i32)];
        page.draw(&Rectangle::new(corners, theme.page.filled())).map_err(cannot_draw)?;
        write(&page, &figure.title, (LEFT, 58), Style::new(theme.ink).title())?;
        write(&page, &figure.subtitle, (LEFT, 104), Style::new(theme.muted))?;
        legend(&page, figure, theme)?;
        let count = figure.panels.len().max(1) as i32;
        let height = (SIZE.1 as i32 - TOP - BOTTOM - BETWEEN * (count - 1)) / count;
        for (index, panel) in figure.panels.iter().enumerate() {
            let top = TOP + index as i32 * (height + BETWEEN);
            draw_panel(&page, figure, panel, (top, top + height), theme)?;
        }
        write(
            &page,
            &figure.x_name,
            ((LEFT + figure.right()) / 2, SIZE.1 as i32 - 30),
            Style::new(theme.muted).anchor(HPos::Center),
        )?;
        page.present().map_err(cannot_draw)?;
    }
    // Plotters has no word for round joins, and pointed ones overshoot on noisy lines.
    Ok(text.replacen("<svg ", "<svg stroke-linejoin=\"round\" stroke-linecap=\"round\" ", 1))
}

/// Draws one row of swatches and names below the subtitle.
fn legend(page: &Area<'_>, figure: &Figure, theme: &Theme) -> Result<()> {
    let mut x = LEFT;
    let y = 150;
    for series in figure.panels.iter().flat_map(|panel| &panel.series) {
        if series.look != Look::Dots {
            let line = series.look.line(theme.hue(series.hue));
            page.draw(&PathElement::new([(x, y), (x + 44, y)], line)).map_err(cannot_draw)?;
        }
        if matches!(series.look, Look::Dotted | Look::Dots) {
            page.draw(&Circle::new((x + 22, y), 7, theme.hue(series.hue).filled())).map_err(cannot_draw)?;
        }
        write(page, &series.name, (x + 58, y), Style::new(theme.ink))?;
        x += 58 + text_width(&series.name, TEXT)?.ceil() as i32 + 40;
    }
    Ok(())
}

fn draw_panel(
    page: &Area<'_>,
    figure: &Figure,
    panel: &Panel,
    (top, bottom): (i32, i32),
    theme: &Theme,
) -> Result<()> {
    let place = |value: f64| panel.scale.place(value.clamp(panel.y.0, panel.y.1));
    let right = figure.right();
    let x_range = figure.x.0..figure.x.1;
    let y_range = panel.scale.place(panel.y.0)..panel.scale.place(panel.y.1);
    let coordinates = Cartesian2d::<
        plotters::coord::types::RangedCoordf64,
        plotters::coord::types::RangedCoordf64,
    >::new(x_range.clone(), y_range, (LEFT..right, bottom..top));
    let plot = page.clone().apply_coord_spec(coordinates);
    let is_last = bottom > SIZE.1 as i32 - BOTTOM - 2;

    let thin_line = theme.grid.stroke_width(2);
    for tick in ticks(panel.y.0, panel.y.1, panel.scale, ((bottom - top) / 75) as usize) {
        let (_, y) = plot.map_coordinate(&(figure.x.0, place(tick)));
        page.draw(&PathElement::new([(LEFT, y), (right, y)], thin_line)).map_err(cannot_draw)?;
        write(page, &(panel.y_label)(tick), (LEFT - 16, y), Style::new(theme.muted).anchor(HPos::Right))?;
    }
    page.draw(&PathElement::new([(LEFT, bottom), (right, bottom)], theme.axis.stroke_width(2)))
        .map_err(cannot_draw)?;
    // There is no step between two steps.
    let whole = |tick: &f64| tick.fract() == 0.0;
    let round = || ticks(figure.x.0, figure.x.1, Scale::Linear, 8).into_iter().filter(whole).collect();
    for tick in figure.x_at.clone().unwrap_or_else(round) {
        let (x, _) = plot.map_coordinate(&(tick, place(panel.y.0)));
        page.draw(&PathElement::new([(x, bottom), (x, bottom + 9)], theme.axis.stroke_width(2)))
            .map_err(cannot_draw)?;
        if is_last {
            let label = if figure.x_at.is_some() { tick.to_string() } else { short(tick) };
            write(page, &label, (x, bottom + 30), Style::new(theme.muted).anchor(HPos::Center))?;
        }
    }
    write(page, &panel.y_name, (LEFT, top - 28), Style::new(theme.muted))?;

    for series in &panel.series {
        let colour = theme.hue(series.hue);
        let points = thin(&series.points, BUCKETS);
        for stretch in stretches(&points) {
            let placed: Points = stretch.iter().map(|&(x, y)| (x, place(y))).collect();
            let is_dotted = series.look == Look::Dotted && points.len() <= MAX_DOTS;
            if placed.len() == 1 || is_dotted || series.look == Look::Dots {
                for point in &placed {
                    plot.draw(&Circle::new(*point, 7, colour.filled())).map_err(cannot_draw)?;
                }
            }
            if series.look != Look::Dots {
                plot.draw(&PathElement::new(placed, series.look.line(colour))).map_err(cannot_draw)?;
            }
        }
    }
    for mark in &panel.marks {
        let (from, y) = plot.map_coordinate(&(mark.from_x, place(mark.value)));
        for x in (from.max(LEFT)..right).step_by(22) {
            let dash = [(x, y), ((x + 12).min(right), y)];
            page.draw(&PathElement::new(dash, theme.ink.stroke_width(3))).map_err(cannot_draw)?;
        }
        for (text, y) in [(mark.name, y - 15), (mark.label.as_str(), y + 15)] {
            write(page, text, (right + 14, y), Style::new(theme.ink))?;
        }
    }
    Ok(())
}

impl Look {
    fn line(self, colour: RGBColor) -> ShapeStyle {
        match self {
            Look::Raw => colour.mix(0.4).stroke_width(2),
            Look::Bold => colour.stroke_width(5),
            Look::Dotted | Look::Dots => colour.stroke_width(3),
        }
    }
}

/// Size, colour and anchor of a text.
struct Style {
    colour: RGBColor,
    size: f64,
    bold: bool,
    anchor: HPos,
}

impl Style {
    fn new(colour: RGBColor) -> Self {
        Self { colour, size: TEXT, bold: false, anchor: HPos::Left }
    }

    fn title(self) -> Self {
        Self { size: TITLE, bold: true, ..self }
    }

    fn anchor(self, anchor: HPos) -> Self {
        Self { anchor, ..self }
    }
}

/// Writes a line of text, vertically centred on a position.
fn write(page: &Area<'_>, text: &str, at: (i32, i32), style: Style) -> Result<()> {
    // The SVG back end divides sizes by this factor.
    let size = style.size * 1.24;
    let weight = if style.bold { FontStyle::Bold } else { FontStyle::Normal };
    let font = (FAMILY, size, weight).into_text_style(page);
    let font = font.color(&style.colour).pos(Pos::new(style.anchor, VPos::Center));
    page.draw_text(text, &font, at).map_err(cannot_draw)
}

fn cannot_draw(error: impl std::fmt::Display) -> Error {
    Error::failed(format!("cannot draw a figure: {error}"))
}
