//! The terminal: taken over while something is watched, and restored however that ends.

use crate::error::{IoContext, Result};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color as CellColor, Modifier};
use std::io::{self, BufWriter, Stdout, Write};
use std::path::Path;
use std::sync::Once;

/// The terminal's screen. Dropping it restores the terminal; so does a panic, before it is reported.
#[derive(Debug)]
pub struct Screen {
    out: BufWriter<Stdout>,
    /// The frame on screen.
    shown: Buffer,
}

impl Screen {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// If the terminal refuses.
    pub fn enter() -> Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                report(panic);
            }));
        });
        let screen = Self { out: BufWriter::new(io::stdout()), shown: Buffer::empty(Rect::ZERO) };
        terminal_result(enable_raw_mode())?;
        terminal_result(execute!(io::stdout(), EnterAlternateScreen, Hide))?;
        Ok(screen)
    }

    /// Shows a frame by writing the cells that changed.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub fn show(&mut self, frame: Buffer) -> Result<()> {
        let written = self.write(&frame);
        self.shown = frame;
        terminal_result(written)
    }

    fn write(&mut self, frame: &Buffer) -> io::Result<()> {
        if self.shown.area != frame.area {
            queue!(self.out, Clear(ClearType::All))?;
            self.shown = Buffer::empty(frame.area);
        }
        let mut next = None;
        let mut style = None;
        for (x, y, cell) in self.shown.diff(frame) {
            if next != Some((x, y)) {
                queue!(self.out, MoveTo(x, y))?;
            }
            let wanted = (cell.fg, cell.modifier);
            if style != Some(wanted) {
                queue!(
                    self.out,
                    SetAttribute(Attribute::Reset),
                    SetForegroundColor(terminal_color(cell.fg))
                )?;
                if cell.modifier.contains(Modifier::BOLD) {
                    queue!(self.out, SetAttribute(Attribute::Bold))?;
                }
                style = Some(wanted);
            }
            queue!(self.out, Print(cell.symbol()))?;
            // Terminals disagree about where the cursor is after a wide character, so move it explicitly.
            next = cell.symbol().is_ascii().then_some((x + 1, y));
        }
        queue!(self.out, SetAttribute(Attribute::Reset))?;
        self.out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal. Errors are ignored because a terminal that is gone needs no restoring.
fn restore() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Returns the columns and rows of the terminal.
///
/// # Errors
/// If the terminal is gone.
pub fn size() -> Result<(u16, u16)> {
    terminal_result(crossterm::terminal::size())
}

/// Names the terminal in an error.
pub fn terminal_result<T>(result: io::Result<T>) -> Result<T> {
    result.at("use", Path::new("the terminal"))
}

/// Converts the color of a cell. Only the colors of [`Looks`](super::looks::Looks) occur.
fn terminal_color(cell_color: CellColor) -> Color {
    match cell_color {
        CellColor::Indexed(index) => Color::AnsiValue(index),
        CellColor::Red => Color::DarkRed,
        CellColor::Green => Color::DarkGreen,
        CellColor::Yellow => Color::DarkYellow,
        CellColor::Magenta => Color::DarkMagenta,
        CellColor::Cyan => Color::DarkCyan,
        _ => Color::Reset,
    }
}
