//! Heat maps: the figures of every combination of two keys, shaded by rank.

use super::chart::{Canvas, SIZE, page};
use super::glyphs::{Anchor, Style, TEXT, text_width};
use super::theme::{Hue, Theme};
use crate::error::Result;
use plotters::prelude::*;

/// Pixels around the cells. The left margin grows with the longest label.
const TOP_MARGIN: i32 = 190;
const RIGHT_MARGIN: i32 = 56;
const BOTTOM_MARGIN: i32 = 110;
const MIN_LEFT_MARGIN: i32 = 128;
/// Pixels between a label and its row.
const LABEL_GAP: i32 = 16;
/// Pixels between cells.
const CELL_GAP: i32 = 6;
const OUTLINE_WIDTH: u32 = 5;

/// A heat map.
#[derive(Clone, Debug)]
pub struct HeatMap {
    pub title: String,
    pub subtitle: String,
    /// The names of the axes.
    pub x_name: String,
    pub y_name: String,
    /// Labels of the columns, from left to right, and of the rows, from top to bottom.
    pub columns: Vec<String>,
    pub rows: Vec<String>,
    /// Cells row by row; `None` where nothing was measured.
    pub cells: Vec<Vec<Option<HeatCell>>>,
}

/// A cell of a heat map.
#[derive(Clone, Debug)]
pub struct HeatCell {
    /// From 0, pale, to 1, the best.
    pub goodness: f64,
    /// The figure.
    pub label: String,
    /// True if the cell is outlined.
    pub is_marked: bool,
}

/// Draws a heat map as SVG.
///
/// # Errors
/// If a text cannot be drawn.
pub fn svg(map: &HeatMap, theme: &Theme) -> Result<String> {
    let mut left = MIN_LEFT_MARGIN;
    for row in &map.rows {
        left = left.max(text_width(row, TEXT)?.ceil() as i32 + 2 * LABEL_GAP);
    }
    page(theme, |canvas| draw(canvas, map, left, theme))
}

fn draw(canvas: &Canvas<'_>, map: &HeatMap, left: i32, theme: &Theme) -> Result<()> {
    let (right, bottom) = (SIZE.0 as i32 - RIGHT_MARGIN, SIZE.1 as i32 - BOTTOM_MARGIN);
    let width = (right - left) / map.columns.len().max(1) as i32;
    let height = (bottom - TOP_MARGIN) / map.rows.len().max(1) as i32;
    canvas.write(&map.title, (left, 58), Style::new(theme.ink).title());
    canvas.write(&map.subtitle, (left, 104), Style::new(theme.muted));
    canvas.write(&map.y_name, (left, TOP_MARGIN - 28), Style::new(theme.muted));
    for (r, (name, row)) in map.rows.iter().zip(&map.cells).enumerate() {
        let top = TOP_MARGIN + r as i32 * height;
        let middle = top + height / 2;
        canvas.write(name, (left - LABEL_GAP, middle), Style::new(theme.muted).tick(Anchor::End));
        for (c, cell) in row.iter().enumerate() {
            let x = left + c as i32 * width;
            let corners = [(x, top), (x + width - CELL_GAP, top + height - CELL_GAP)];
            let Some(cell) = cell else {
                canvas.draw(&Rectangle::new(corners, theme.grid.stroke_width(2)))?;
                continue;
            };
            let shade = mix(theme.grid, theme.hue(Hue::Blue), cell.goodness);
            canvas.draw(&Rectangle::new(corners, shade.filled()))?;
            if cell.is_marked {
                // A path, because plotters draws the outline of a rectangle only one pixel wide.
                let [(x0, y0), (x1, y1)] = corners;
                let outline = [(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)];
                canvas
                    .draw(&PathElement::new(outline, theme.hue(Hue::Orange).stroke_width(OUTLINE_WIDTH)))?;
            }
            let ink = if is_light(shade) { RGBColor(31, 35, 40) } else { RGBColor(255, 255, 255) };
            let at = (x + (width - CELL_GAP) / 2, top + (height - CELL_GAP) / 2);
            canvas.write(&cell.label, at, Style::new(ink).anchor(Anchor::Middle));
        }
    }
    for (c, name) in map.columns.iter().enumerate() {
        let x = left + c as i32 * width + (width - CELL_GAP) / 2;
        canvas.write(name, (x, bottom + 22), Style::new(theme.muted).tick(Anchor::Middle));
    }
    let below = ((left + right) / 2, SIZE.1 as i32 - 34);
    canvas.write(&map.x_name, below, Style::new(theme.muted).anchor(Anchor::Middle));
    Ok(())
}

/// Returns the color between two others, at `share` of the way.
fn mix(from: RGBColor, to: RGBColor, share: f64) -> RGBColor {
    let between = |a: u8, b: u8| (f64::from(a) + share.clamp(0.0, 1.0) * (f64::from(b) - f64::from(a))) as u8;
    RGBColor(between(from.0, to.0), between(from.1, to.1), between(from.2, to.2))
}

/// Returns true if dark text is easier to read than light text on a color, by its luma (ITU-R BT.601).
fn is_light(RGBColor(r, g, b): RGBColor) -> bool {
    0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b) > 128.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::theme::THEMES;

    #[test]
    fn cells_are_shaded_outlined_or_blank() {
        let cell =
            |goodness, is_marked| Some(HeatCell { goodness, label: format!("{goodness:.2}"), is_marked });
        let map = HeatMap {
            title: "a".into(),
            subtitle: "b".into(),
            x_name: "x".into(),
            y_name: "y".into(),
            columns: vec!["1".into(), "2".into()],
            rows: vec!["3".into(), "4".into()],
            cells: vec![vec![cell(1.0, true), cell(0.0, false)], vec![None, cell(0.5, false)]],
        };
        let svg = svg(&map, &THEMES[0]).unwrap();
        let blue = svg.matches("#0072B2").count();
        assert_eq!(blue, 1, "the best is the full colour: {svg}");
        assert_eq!(svg.matches("#D55E00").count(), 1, "one outline");
        assert_eq!(svg.matches("<rect").count(), 1 + 4, "the page and four cells");
    }
}
