//! What a frame is drawn on: texts and glyphs at places, in roles rather than in colours.

use super::looks::{Looks, Role, in_ascii};
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
    /// Creates an empty frame of so many columns and rows.
    pub fn new(width: u16, height: u16, looks: Looks) -> Self {
        Self { buffer: Buffer::empty(Rect::new(0, 0, width, height)), looks }
    }

    /// Returns the columns of the frame.
    pub fn width(&self) -> u16 {
        self.buffer.area.width
    }

    /// Returns the rows of the frame.
    pub fn height(&self) -> u16 {
        self.buffer.area.height
    }

    /// Writes a text of at most `width` columns, and returns the column behind it. A longer one ends in an
    /// ellipsis. What a terminal would obey in it is shown instead.
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

    /// Writes a text that ends before a column.
    pub fn text_to(&mut self, end: u16, y: u16, text: &str, role: Role) {
        let width = columns(&printable(text));
        self.text(end.saturating_sub(width), y, width, text, role);
    }

    /// Writes a text over rows of `width` columns, and returns how many it took, `rows` at most.
    pub fn paragraph(&mut self, x: u16, y: u16, (width, rows): (u16, u16), text: &str, role: Role) -> u16 {
        let lines = wrapped(text, width.into());
        for (row, line) in lines.iter().take(rows.into()).enumerate() {
            let is_cut = row + 1 == usize::from(rows) && lines.len() > usize::from(rows);
            let line = if is_cut { format!("{line}…") } else { line.clone() };
            self.text(x, y + row as u16, width, &line, role);
        }
        lines.len().min(rows.into()) as u16
    }

    /// Writes fields side by side, as many as are whole in `width` columns.
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

    /// Sets a cell, inside of the frame.
    pub fn glyph(&mut self, x: u16, y: u16, glyph: char, role: Role) {
        let style = self.looks.style(role);
        if let Some(cell) = self.buffer.cell_mut((x, y)) {
            cell.set_char(glyph).set_style(style);
        }
    }

    /// Draws a line over `width` columns that a title interrupts.
    pub fn rule(&mut self, x: u16, y: u16, width: u16, title: &str) {
        for column in x..x + width {
            self.glyph(column, y, '─', Role::Muted);
        }
        if !title.is_empty() {
            self.text(x + 1, y, width.saturating_sub(2), &format!(" {title} "), Role::Muted);
        }
    }

    /// Draws how much of something is done.
    pub fn bar(&mut self, x: u16, y: u16, width: u16, share: f64) {
        let done = (share.clamp(0.0, 1.0) * f64::from(width)).round() as u16;
        for column in 0..width {
            let (glyph, role) = if column < done { ('━', Role::Training) } else { ('─', Role::Muted) };
            self.glyph(x + column, y, glyph, role);
        }
    }

    /// Draws values as columns of eight heights, the newest ones where they do not all fit.
    pub fn sparkline(&mut self, x: u16, y: u16, width: u16, values: &[f64], role: Role) {
        const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let shown = &values[values.len().saturating_sub(width.into())..];
        let finite = || shown.iter().copied().filter(|value| value.is_finite());
        let (low, high) = (finite().fold(f64::MAX, f64::min), finite().fold(f64::MIN, f64::max));
        for (column, value) in shown.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            // A constant lies in the middle.
            let share = if high > low { (value - low) / (high - low) } else { 0.5 };
            let height = HEIGHTS[(share * 7.0).round() as usize];
            self.glyph(x + column as u16, y, height, role);
        }
    }

    /// Returns the frame with another number of rows: what is below is cut off, new ones are empty.
    pub fn with_rows(mut self, rows: u16) -> Self {
        self.buffer.resize(Rect { height: rows, ..self.buffer.area });
        self
    }

    /// Returns the frame, in ASCII where the terminal has no other characters.
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

/// A figure with its name.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name; empty for a value that needs none.
    pub name: String,
    /// Its value.
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

/// Returns the columns that a text takes.
pub fn columns(text: &str) -> u16 {
    Span::raw(text).width().min(u16::MAX.into()) as u16
}

/// Cuts a text into lines of at most `width` characters, between words where there are any.
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

/// Returns the rows of a frame as text, without spaces at their ends.
pub fn to_lines(frame: &Buffer) -> Vec<String> {
    let rows = frame.content.chunks(usize::from(frame.area.width).max(1));
    rows.map(|cells| {
        let mut line = String::new();
        let mut covered = 0;
        for cell in cells {
            // A wide character covers the cell behind it.
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
