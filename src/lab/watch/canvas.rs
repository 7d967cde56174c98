//! The surface that a frame is drawn on: texts and glyphs at positions, styled by role rather than by color.

use super::looks::{Looks, Role, in_ascii};
use crate::curve::finite_range;
use crate::format::printable;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::text::Span;

/// A frame that is being drawn.
#[derive(Debug)]
pub struct Canvas {
    buffer: Buffer,
    looks: Looks,
}

impl Canvas {
    /// Creates an empty frame with this many columns and rows.
    pub fn new(width: u16, height: u16, looks: Looks) -> Self {
        Self { buffer: Buffer::empty(Rect::new(0, 0, width, height)), looks }
    }

    /// Returns the width in columns.
    pub fn width(&self) -> u16 {
        self.buffer.area.width
    }

    /// Returns the height in rows.
    pub fn height(&self) -> u16 {
        self.buffer.area.height
    }

    /// Writes a text of at most `width` columns and returns the column after it. A longer text is cut and
    /// ends in an ellipsis. Control characters are shown, never sent to the terminal.
    pub fn text(&mut self, x: u16, y: u16, width: u16, text: &str, role: Role) -> u16 {
        let width = width.min(self.width().saturating_sub(x));
        if y >= self.height() || width == 0 {
            return x;
        }
        let text = printable(text).replace(['\n', '\t'], " ");
        let style = self.looks.style(role);
        if columns(&text) <= width {
            return self.buffer.set_stringn(x, y, &text, width.into(), style).0;
        }
        let (end, _) = self.buffer.set_stringn(x, y, &text, usize::from(width) - 1, style);
        self.glyph(end, y, '…', role);
        end + 1
    }

    /// Writes a text that ends before column `end`.
    pub fn text_to(&mut self, end: u16, y: u16, text: &str, role: Role) {
        let width = columns(&printable(text));
        self.text(end.saturating_sub(width), y, width, text, role);
    }

    /// Wraps a text into lines of `width` columns and returns how many rows it took, at most `rows`.
    pub fn paragraph(&mut self, x: u16, y: u16, (width, rows): (u16, u16), text: &str, role: Role) -> u16 {
        let lines = wrapped(text, width.into());
        for (row, line) in lines.iter().take(rows.into()).enumerate() {
            let is_cut = row + 1 == usize::from(rows) && lines.len() > usize::from(rows);
            let line = if is_cut { format!("{line}…") } else { line.clone() };
            self.text(x, y + row as u16, width, &line, role);
        }
        lines.len().min(rows.into()) as u16
    }

    /// Writes fields side by side, skipping those that do not fit whole in `width` columns.
    pub fn fields(&mut self, x: u16, y: u16, width: u16, fields: &[Field]) {
        let mut at = x;
        for field in fields {
            let gap = if field.name.is_empty() { 0 } else { 1 };
            let needed = columns(&printable(&field.name)) + gap + columns(&printable(&field.value));
            if at + needed > x + width {
                continue;
            }
            at = self.text(at, y, width, &field.name, Role::Muted) + gap;
            at = self.text(at, y, width, &field.value, field.role) + 3;
        }
    }

    /// Sets one cell. Does nothing outside the frame.
    pub fn glyph(&mut self, x: u16, y: u16, glyph: char, role: Role) {
        let style = self.looks.style(role);
        if let Some(cell) = self.buffer.cell_mut((x, y)) {
            cell.set_char(glyph).set_style(style);
        }
    }

    /// Draws a horizontal line of `width` columns, interrupted by a title.
    pub fn rule(&mut self, x: u16, y: u16, width: u16, title: &str) {
        for column in x..x + width {
            self.glyph(column, y, '─', Role::Muted);
        }
        if !title.is_empty() {
            self.text(x + 1, y, width.saturating_sub(2), &format!(" {title} "), Role::Muted);
        }
    }

    /// Draws a progress bar.
    pub fn bar(&mut self, x: u16, y: u16, width: u16, share: f64) {
        let done = (share.clamp(0.0, 1.0) * f64::from(width)).round() as u16;
        for column in 0..width {
            let (glyph, role) = if column < done { ('━', Role::Training) } else { ('─', Role::Muted) };
            self.glyph(x + column, y, glyph, role);
        }
    }

    /// Draws values as columns of eight heights. If they do not all fit, it draws the newest.
    pub fn sparkline(&mut self, x: u16, y: u16, width: u16, values: &[f64], role: Role) {
        const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let shown = &values[values.len().saturating_sub(width.into())..];
        let (low, high) = finite_range(shown.iter().copied()).unwrap_or_default();
        for (column, value) in shown.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            // A constant is drawn at half height.
            let share = if high > low { (value - low) / (high - low) } else { 0.5 };
            let height = HEIGHTS[(share * 7.0).round() as usize];
            self.glyph(x + column as u16, y, height, role);
        }
    }

    /// Returns the frame with another number of rows. Extra rows are empty; surplus rows are cut off at the
    /// bottom.
    pub fn with_rows(mut self, rows: u16) -> Self {
        self.buffer.resize(Rect { height: rows, ..self.buffer.area });
        self
    }

    /// Returns the finished frame, converted to ASCII if the terminal shows nothing else.
    pub fn finish(mut self) -> Buffer {
        if !self.looks.is_unicode {
            for cell in &mut self.buffer.content {
                let symbol = cell.symbol().chars().next().unwrap_or(' ');
                cell.set_char(in_ascii(symbol));
            }
        }
        self.buffer
    }
}

/// A value with its name.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name; empty if the value needs none.
    pub name: String,
    /// The value, formatted.
    pub value: String,
    /// The role of the value.
    pub role: Role,
}

impl Field {
    /// Creates a field.
    pub fn new(name: &str, value: impl Into<String>, role: Role) -> Self {
        Self { name: name.to_owned(), value: value.into(), role }
    }
}

/// Returns how many columns a text takes.
pub fn columns(text: &str) -> u16 {
    Span::raw(text).width().min(u16::MAX.into()) as u16
}

/// Wraps a text into lines of at most `width` columns, breaking between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            let needed = usize::from(columns(&line)) + 1 + usize::from(columns(word));
            if !line.is_empty() && needed > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line += word;
        }
        if !line.is_empty() {
            lines.push(line);
        }
    }
    lines
}

/// Returns the rows of a frame as text, without trailing spaces.
pub fn to_lines(frame: &Buffer) -> Vec<String> {
    let rows = frame.content.chunks(usize::from(frame.area.width).max(1));
    rows.map(|cells| {
        let mut line = String::new();
        let mut covered = 0;
        for cell in cells {
            // A wide character also covers the cell after it.
            if covered == 0 {
                line += cell.symbol();
                covered = usize::from(columns(cell.symbol())).max(1);
            }
            covered -= 1;
        }
        line.trim_end().to_owned()
    })
    .collect()
}
