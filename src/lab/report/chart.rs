//! Figures: a title, a legend and one or more panels above a common x axis, drawn to SVG.

use super::axis::ticks;
use super::glyphs::{self, Anchor, Line, Style, TEXT, text_width};
use super::picture::{Svgs, in_themes};
use super::theme::{Hue, Theme};
use crate::curve::{Points, Scale, stretches, thin};
use crate::error::{Error, Result};
use crate::format::short;
use plotters::coord::Shift;
use plotters::element::{Drawable, PointCollection};
use plotters::prelude::*;
use std::cell::RefCell;
use std::collections::HashSet;

/// The size of a figure in pixels. Figures are meant to be shown at half this size, to be sharp on dense
/// screens.
pub(super) const SIZE: (u32, u32) = (1600, 900);
/// Least space left of the panels, for y labels; space right of them without and with labels of marks.
const LEFT: i32 = 128;
const RIGHT: i32 = 56;
const RIGHT_OF_MARKS: i32 = 132;
/// Space between a y label and its panel.
const LABEL_GAP: i32 = 16;
const BOTTOM: i32 = 104;
/// Space above the first panel for title, subtitle, legend and the name of its y axis.
const TOP: i32 = 226;
/// Space between two panels, with the name of the lower y axis.
const BETWEEN: i32 = 84;
/// Most points, in pairs, that can be told apart in one line; and most points drawn as dots.
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
    /// Positions of x ticks with their labels; `None` for round numbers.
    pub x_at: Option<Vec<(f64, String)>>,
}

/// A panel: series over a y axis.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The name of the y axis with its unit.
    pub y_name: String,
    /// The range of y. Points beyond it are drawn at its edge.
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

impl Series {
    /// Creates a series. An empty name has no entry in the legend.
    pub fn new(name: impl Into<String>, hue: Hue, look: Look, points: Points) -> Self {
        Self { name: name.into(), hue, look, points }
    }
}

/// The style of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Thin and pale: every measurement.
    Raw,
    /// Bold: the main curve.
    Bold,
    /// Of medium width, with dots if points are few: values measured at intervals.
    Dotted,
    /// Points without a line: values without an order.
    Dots,
    /// A line from the low to the high end of an interval, without an entry in the legend.
    ErrorBar,
    /// A pale area whose outline the points are. Gaps separate several areas.
    Band,
}

/// A dashed line at a value, named right of the panel, where there is no data.
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
    /// Draws the figure in every theme.
    ///
    /// # Errors
    /// If a text cannot be drawn.
    pub fn draw(&self) -> Result<Svgs> {
        in_themes(|theme| svg(self, theme))
    }

    /// Returns the height of a panel.
    fn panel_height(&self) -> i32 {
        let count = self.panels.len().max(1) as i32;
        (SIZE.1 as i32 - TOP - BOTTOM - BETWEEN * (count - 1)) / count
    }

    /// Returns the left edge of the panels, which leaves room for the longest y label.
    fn left(&self) -> Result<i32> {
        let height = self.panel_height();
        let mut left = LEFT;
        for panel in &self.panels {
            for tick in panel.ticks(height) {
                left = left.max(text_width(&(panel.y_label)(tick), TEXT)?.ceil() as i32 + 2 * LABEL_GAP);
            }
        }
        Ok(left)
    }

    /// Returns the right edge of the panels.
    fn right(&self) -> i32 {
        let is_marked = self.panels.iter().any(|panel| !panel.marks.is_empty());
        SIZE.0 as i32 - if is_marked { RIGHT_OF_MARKS } else { RIGHT }
    }
}

impl Panel {
    /// Creates a panel with a linear y axis and without marks.
    pub fn new(
        y_name: impl Into<String>,
        y: (f64, f64),
        y_label: fn(f64) -> String,
        series: Vec<Series>,
    ) -> Self {
        Self { y_name: y_name.into(), y, scale: Scale::Linear, y_label, series, marks: Vec::new() }
    }

    /// Returns the ticks of the y axis of a panel that is `height` pixels high.
    fn ticks(&self, height: i32) -> Vec<f64> {
        ticks(self.y.0, self.y.1, self.scale, (height / 75) as usize)
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A figure being drawn. Text is collected as outlines and put above everything else.
pub(super) struct Canvas<'a> {
    page: Area<'a>,
    lines: RefCell<Vec<Line>>,
    /// SVG of shapes that plotters lacks.
    raw: RefCell<String>,
}

impl<'a> Canvas<'a> {
    pub(super) fn draw<'b, E>(&self, element: &'b E) -> Result<()>
    where
        &'b E: PointCollection<'b, (i32, i32)>,
        E: Drawable<SVGBackend<'a>>,
    {
        self.page.draw(element).map_err(cannot_draw)
    }

    /// Draws a dashed horizontal line between two x positions.
    fn draw_dashed(&self, (from, to): (i32, i32), y: i32, RGBColor(r, g, b): RGBColor) {
        self.raw.borrow_mut().push_str(&format!(
            "<path d=\"M{from} {y}H{to}\" fill=\"none\" stroke=\"#{r:02X}{g:02X}{b:02X}\" stroke-width=\"3\" \
             stroke-dasharray=\"12 10\"/>\n"
        ));
    }

    /// Writes a line of text, vertically centered on a position.
    pub(super) fn write(&self, text: &str, at: (i32, i32), style: Style) {
        self.lines.borrow_mut().push(Line { text: text.to_owned(), at, style });
    }
}

/// Draws a figure as SVG.
fn svg(figure: &Figure, theme: &Theme) -> Result<String> {
    let left = figure.left()?;
    page(theme, |page| {
        page.write(&figure.title, (left, 58), Style::new(theme.ink).title());
        page.write(&figure.subtitle, (left, 104), Style::new(theme.muted));
        legend(page, figure, left, theme)?;
        let height = figure.panel_height();
        for (index, panel) in figure.panels.iter().enumerate() {
            let top = TOP + index as i32 * (height + BETWEEN);
            draw_panel(page, figure, panel, (top, top + height), theme)?;
        }
        page.write(
            &figure.x_name,
            ((left + figure.right()) / 2, SIZE.1 as i32 - 30),
            Style::new(theme.muted).anchor(Anchor::Middle),
        );
        Ok(())
    })
}

/// Draws a page as SVG.
pub(super) fn page(theme: &Theme, draw: impl FnOnce(&Canvas<'_>) -> Result<()>) -> Result<String> {
    let mut text = String::new();
    let (lines, raw) = {
        let page = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        let page = Canvas { page, lines: RefCell::default(), raw: RefCell::default() };
        let corners = [(0, 0), (SIZE.0 as i32, SIZE.1 as i32)];
        page.draw(&Rectangle::new(corners, theme.page.filled()))?;
        draw(&page)?;
        page.page.present().map_err(cannot_draw)?;
        (page.lines.into_inner(), page.raw.into_inner())
    };
    let end = text.rfind("</svg>").unwrap_or(text.len());
    text.insert_str(end, &format!("{raw}{}", glyphs::svg(&lines)?));
    // Attributes at their defaults are a third of what plotters writes.
    for default in [" opacity=\"1\"", " stroke=\"none\" stroke-width=\"1\"", " stroke=\"none\""] {
        text = text.replace(default, "");
    }
    // Plotters cannot set round joins, and pointed ones overshoot on noisy lines.
    Ok(text.replacen("<svg ", "<svg stroke-linejoin=\"round\" stroke-linecap=\"round\" ", 1))
}

/// Draws one row of swatches and names below the subtitle.
fn legend(page: &Canvas<'_>, figure: &Figure, left: i32, theme: &Theme) -> Result<()> {
    let mut x = left;
    let y = 150;
    // Series without a name are described by the subtitle.
    let listed = |series: &&Series| !series.name.is_empty() && series.look != Look::ErrorBar;
    for series in figure.panels.iter().flat_map(|panel| &panel.series).filter(listed) {
        if series.look == Look::Band {
            let area = Rectangle::new([(x, y - 12), (x + 44, y + 12)], Look::area(theme.hue(series.hue)));
            page.draw(&area)?;
        } else if series.look != Look::Dots {
            let line = series.look.line(theme.hue(series.hue));
            page.draw(&PathElement::new([(x, y), (x + 44, y)], line))?;
        }
        if matches!(series.look, Look::Dotted | Look::Dots) {
            page.draw(&Circle::new((x + 22, y), 7, theme.hue(series.hue).filled()))?;
        }
        page.write(&series.name, (x + 58, y), Style::new(theme.ink));
        x += 58 + text_width(&series.name, TEXT)?.ceil() as i32 + 40;
    }
    Ok(())
}

/// Returns whole round numbers in a range, with their labels. Fractions are dropped because there is no step
/// between two steps.
fn whole_ticks((low, high): (f64, f64)) -> Vec<(f64, String)> {
    let at: Vec<f64> =
        ticks(low, high, Scale::Linear, 8).into_iter().filter(|tick| tick.fract() == 0.0).collect();
    // Numbers far from zero and close together differ in digits that a short label would drop.
    let shown: HashSet<String> = at.iter().map(|tick| short(*tick)).collect();
    let label = |tick: f64| if shown.len() == at.len() { short(tick) } else { tick.to_string() };
    at.iter().map(|&tick| (tick, label(tick))).collect()
}

fn draw_panel(
    page: &Canvas<'_>,
    figure: &Figure,
    panel: &Panel,
    (top, bottom): (i32, i32),
    theme: &Theme,
) -> Result<()> {
    let place = |value: f64| panel.scale.place(value.clamp(panel.y.0, panel.y.1));
    let (left, right) = (figure.left()?, figure.right());
    let x_range = figure.x.0..figure.x.1;
    let y_range = panel.scale.place(panel.y.0)..panel.scale.place(panel.y.1);
    let coordinates = Cartesian2d::<
        plotters::coord::types::RangedCoordf64,
        plotters::coord::types::RangedCoordf64,
    >::new(x_range.clone(), y_range, (left..right, bottom..top));
    let plot = page.page.clone().apply_coord_spec(coordinates);
    let is_last = bottom > SIZE.1 as i32 - BOTTOM - 2;

    let thin_line = theme.grid.stroke_width(2);
    for tick in panel.ticks(bottom - top) {
        let (_, y) = plot.map_coordinate(&(figure.x.0, place(tick)));
        page.draw(&PathElement::new([(left, y), (right, y)], thin_line))?;
        page.write(&(panel.y_label)(tick), (left - LABEL_GAP, y), Style::new(theme.muted).tick(Anchor::End));
    }
    page.draw(&PathElement::new([(left, bottom), (right, bottom)], theme.axis.stroke_width(2)))?;
    for (tick, label) in figure.x_at.clone().unwrap_or_else(|| whole_ticks(figure.x)) {
        let (x, _) = plot.map_coordinate(&(tick, place(panel.y.0)));
        page.draw(&PathElement::new([(x, bottom), (x, bottom + 9)], theme.axis.stroke_width(2)))?;
        if is_last {
            page.write(&label, (x, bottom + 30), Style::new(theme.muted).tick(Anchor::Middle));
        }
    }
    page.write(&panel.y_name, (left, top - 28), Style::new(theme.muted));

    for series in &panel.series {
        let colour = theme.hue(series.hue);
        if series.look == Look::Band {
            for outline in stretches(&series.points) {
                let outline: Points = outline.iter().map(|&(x, y)| (x, place(y))).collect();
                plot.draw(&Polygon::new(outline, Look::area(colour))).map_err(cannot_draw)?;
            }
            continue;
        }
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
        page.draw_dashed((from.max(left), right), y, theme.ink);
        for (text, y) in [(mark.name, y - 15), (mark.label.as_str(), y + 15)] {
            page.write(text, (right + 14, y), Style::new(theme.ink));
        }
    }
    Ok(())
}

impl Look {
    fn line(self, colour: RGBColor) -> ShapeStyle {
        match self {
            Look::Raw => colour.mix(0.4).stroke_width(2),
            Look::Bold => colour.stroke_width(5),
            Look::Dotted | Look::Dots | Look::Band => colour.stroke_width(3),
            Look::ErrorBar => colour.mix(0.6).stroke_width(4),
        }
    }

    /// Returns the style of a [`Look::Band`].
    fn area(colour: RGBColor) -> ShapeStyle {
        colour.mix(0.2).filled()
    }
}

fn cannot_draw(error: impl std::fmt::Display) -> Error {
    Error::failed(format!("cannot draw a figure: {error}"))
}
