//! What every view has in common.

use super::canvas::{Canvas, columns};
use super::looks::Role;

/// Something that is watched: it reads files, and draws what they say.
pub trait View {
    /// Reads what is new. Returns true if that changes the frame.
    fn poll(&mut self) -> bool;

    /// Returns true while something may still be written at any time.
    fn is_live(&self) -> bool;

    /// Returns why what is watched is damaged, or cannot be read.
    fn fault(&self) -> Option<String> {
        None
    }

    /// Returns the rows that a frame of so many columns needs to show everything.
    fn rows(&self, _width: u16) -> u16 {
        0
    }

    /// Draws a frame.
    fn draw(&self, canvas: &mut Canvas, show: &Show);
}

/// What the keys have chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Show {
    /// A linear axis of losses instead of a logarithmic one.
    pub is_linear: bool,
    /// Steps to come on the axis too, instead of those so far.
    pub is_whole: bool,
    /// The first row of a long list; `None` for where something happens.
    pub first: Option<usize>,
    /// Which of several measures of a comparison.
    pub measure: usize,
    /// The keys and their meaning instead of a frame.
    pub is_help: bool,
}

/// Draws the first row of a frame: a name, and a status at its end.
pub fn heading(canvas: &mut Canvas, name: &str, status: &str, role: Role) {
    let width = canvas.width();
    canvas.text_to(width, 0, status, role);
    canvas.text(0, 0, width.saturating_sub(columns(status) + 2), name, Role::Strong);
}
