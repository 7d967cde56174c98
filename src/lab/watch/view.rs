//! What every view has in common.

use super::canvas::{Canvas, Field, columns};
use super::looks::Role;

/// A view reads the files of what is watched, and draws them.
pub trait View {
    /// Reads what is new. Returns true if that changes the frame.
    fn poll(&mut self) -> bool;

    /// Returns true while something may still be written at any time.
    fn is_live(&self) -> bool;

    /// Returns why the watched data is damaged or cannot be read.
    fn fault(&self) -> Option<String> {
        None
    }

    /// Returns how many rows a frame needs to show everything.
    fn rows(&self) -> u16 {
        0
    }

    /// Draws a frame.
    fn draw(&self, canvas: &mut Canvas, show: &Show);
}

/// What the user has chosen with keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Show {
    /// Show losses on a linear axis instead of a logarithmic one.
    pub is_linear: bool,
    /// Extend the step axis to the whole run instead of the steps so far.
    pub is_whole: bool,
    /// The first row of a long list; `None` follows what is happening.
    pub first: Option<usize>,
    /// Which measure of a comparison to show.
    pub measure: usize,
    /// Show the help page instead of a frame.
    pub is_help: bool,
}

/// Draws the first row of a frame: a name, and a status at the right end.
pub fn heading(canvas: &mut Canvas, name: &str, status: &str, role: Role) {
    let width = canvas.width();
    canvas.text_to(width, 0, status, role);
    canvas.text(0, 0, width.saturating_sub(columns(status) + 2), name, Role::Strong);
}

/// Draws the second row of a frame: how much is done, as a bar and in fields.
pub fn progress(canvas: &mut Canvas, share: f64, fields: &[Field]) {
    let width = canvas.width();
    let bar = width / 4;
    canvas.bar(0, 1, bar, share);
    canvas.fields(bar + 2, 1, width - bar - 2, fields);
}

/// Returns the remark about files that cannot be read.
pub fn unreadable(trouble: &str) -> (String, Role) {
    (format!("cannot read it: {trouble}"), Role::Bad)
}
