//! Charts in terminal cells. A curve is drawn in Braille characters, two by four dots per cell.

use super::canvas::{Canvas, columns};
use super::looks::Role;
use ratatui_core::layout::Rect;

/// Dots per cell across and down, as in a Braille character.
const DOTS: (usize, usize) = (2, 4);

/// The smallest chart that is drawn, in columns and rows.
const MIN_SIZE: (u16, u16) = (24, 4);

/// A part of a chart. Layers are drawn in order.
#[derive(Clone, Debug)]
pub enum Layer {
    /// A horizontal line across the whole width.
    Level(f64, Role),
    /// Points joined by a line, with gaps at values that are not finite.
    Line(Vec<(f64, f64)>, Role),
    /// Single points, each drawn as a glyph.
    Marks(Vec<(f64, f64)>, char, Role),
    /// Estimates with error bars: x, low end, estimate, high end.
    ErrorBars(Vec<[f64; 4]>, Role),
}

/// A chart with its axes.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Values at the left and right edges.
    pub x: (f64, f64),
    /// Texts below these edges.
    pub x_names: [String; 2],
    /// Values at the lower and upper edges.
    pub y: (f64, f64),
    /// True for a logarithmic y axis; both edges must then be positive.
    pub is_log: bool,
    /// Formats a value for the y axis.
    pub y_text: fn(f64) -> String,
    /// What the chart shows.
    pub layers: Vec<Layer>,
}

/// A chart placed on the canvas.
struct Plot<'a> {
    chart: &'a Chart,
    canvas: &'a mut Canvas,
    /// Cells of the plotted area.
    area: Rect,
}

impl Chart {
    /// Draws the chart into `area`.
    pub fn draw(&self, canvas: &mut Canvas, area: Rect) {
        if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
            return;
        }
        let rows = area.height - 1;
        // Label the upper edge, the middle and the lower edge.
        let shares = [
            (0, 1.0),
            ((rows - 1) / 2, 1.0 - f64::from((rows - 1) / 2) / f64::from(rows - 1)),
            (rows - 1, 0.0),
        ];
        let texts = shares.map(|(row, share)| (row, (self.y_text)(self.value(share))));
        let margin = texts.iter().map(|(_, text)| columns(text)).max().unwrap_or(0) + 1;
        if margin + MIN_SIZE.0 / 2 > area.width {
            return;
        }
        let left = area.x + margin;
        for (row, text) in texts {
            canvas.text_to(left - 1, area.y + row, &text, Role::Muted);
        }
        for row in 0..rows {
            canvas.glyph(left, area.y + row, '│', Role::Muted);
        }
        let [first, last] = &self.x_names;
        canvas.text(left, area.y + rows, area.right() - left, first, Role::Muted);
        canvas.text_to(area.right(), area.y + rows, last, Role::Muted);
        let area = Rect::new(left + 1, area.y, area.right() - left - 1, rows);
        let mut plot = Plot { chart: self, canvas, area };
        self.layers.iter().for_each(|layer| plot.draw(layer));
    }

    fn place(&self, y: f64) -> f64 {
        if self.is_log { y.max(f64::MIN_POSITIVE).ln() } else { y }
    }

    /// Returns the height of a value as a share: 0 at the lower edge, 1 at the upper one.
    fn share(&self, y: f64) -> f64 {
        let (low, high) = (self.place(self.y.0), self.place(self.y.1));
        (self.place(y) - low) / (high - low)
    }

    fn value(&self, share: f64) -> f64 {
        let (low, high) = (self.place(self.y.0), self.place(self.y.1));
        let place = low + share * (high - low);
        if self.is_log { place.exp() } else { place }
    }
}

impl Plot<'_> {
    fn draw(&mut self, layer: &Layer) {
        match layer {
            Layer::Level(y, role) => self.level(*y, *role),
            Layer::Line(points, role) => self.line(points, *role),
            Layer::Marks(points, glyph, role) => {
                for (x, y) in points.iter().filter(|point| point.1.is_finite()) {
                    self.mark(*x, *y, *glyph, *role);
                }
            }
            Layer::ErrorBars(bars, role) => {
                for [x, low, estimate, high] in bars {
                    self.bar((*x, *low, *high), *role);
                    self.mark(*x, *estimate, '●', *role);
                }
            }
        }
    }

    fn glyph(&mut self, column: usize, row: usize, glyph: char, role: Role) {
        self.canvas.glyph(self.area.x + column as u16, self.area.y + row as u16, glyph, role);
    }

    fn bar(&mut self, (x, low, high): (f64, f64, f64), role: Role) {
        if let (Some(column), Some(top), Some(bottom)) =
            (self.column(x, 1), self.row(high, 1), self.row(low, 1))
        {
            (top..=bottom).for_each(|row| self.glyph(column, row, '│', role));
        }
    }

    fn level(&mut self, y: f64, role: Role) {
        let is_inside = (0.0..=1.0).contains(&self.chart.share(y));
        if let Some(row) = self.row(y, 1).filter(|_| is_inside) {
            (0..self.area.width.into()).for_each(|column| self.glyph(column, row, '┄', role));
        }
    }

    fn mark(&mut self, x: f64, y: f64, glyph: char, role: Role) {
        if let (Some(column), Some(row)) = (self.column(x, 1), self.row(y, 1)) {
            self.glyph(column, row, glyph, role);
        }
    }

    /// Draws a line dot by dot.
    fn line(&mut self, points: &[(f64, f64)], role: Role) {
        let width = usize::from(self.area.width);
        let mut cells = vec![0u8; width * usize::from(self.area.height)];
        let mut dot = |x: usize, y: usize| {
            // Bits of a Braille character, starting at the upper left dot.
            const BITS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
            cells[y / DOTS.1 * width + x / DOTS.0] |= BITS[x % DOTS.0][y % DOTS.1];
        };
        let place = |(x, y): (f64, f64)| Some((self.column(x, DOTS.0)?, self.row(y, DOTS.1)?));
        let mut before: Option<(usize, usize)> = None;
        for point in points {
            let Some((x, y)) = place(*point).filter(|_| point.1.is_finite()) else {
                before = None;
                continue;
            };
            let (from_x, from_y) = before.unwrap_or((x, y));
            let steps = x.abs_diff(from_x).max(y.abs_diff(from_y)).max(1);
            let between = |from: usize, to: usize, step: usize| {
                let share = step as f64 / steps as f64;
                (from as f64 + share * (to as f64 - from as f64)).round() as usize
            };
            (0..=steps).for_each(|step| dot(between(from_x, x, step), between(from_y, y, step)));
            before = Some((x, y));
        }
        for (at, bits) in cells.iter().enumerate().filter(|(_, bits)| **bits != 0) {
            let glyph = char::from_u32(0x2800 + u32::from(*bits)).unwrap_or('·');
            self.glyph(at % width, at / width, glyph, role);
        }
    }

    /// Returns the dot column of `x`, with `dots` per cell, or `None` outside the chart.
    fn column(&self, x: f64, dots: usize) -> Option<usize> {
        let (first, last) = self.chart.x;
        let share = if last > first { (x - first) / (last - first) } else { 0.0 };
        let columns = usize::from(self.area.width) * dots;
        (0.0..=1.0).contains(&share).then(|| (share * (columns - 1) as f64).round() as usize)
    }

    /// Returns the dot row of `y`, with `dots` per cell. Values beyond an edge go to that edge.
    fn row(&self, y: f64, dots: usize) -> Option<usize> {
        let share = self.chart.share(y);
        let rows = usize::from(self.area.height) * dots;
        share.is_finite().then(|| ((1.0 - share.clamp(0.0, 1.0)) * (rows - 1) as f64).round() as usize)
    }
}
