//! The keys, and what the shapes of a frame mean.

use super::canvas::Canvas;
use super::looks::Role;

/// Keys with their meaning.
const KEYS: [(&str, &str); 7] = [
    ("q, Esc, Ctrl-C", "leave; what is watched goes on"),
    ("?", "this page, and back"),
    ("l", "the axis of losses: logarithmic, linear"),
    ("w", "the axis of steps: those so far, the whole run"),
    ("Tab", "the next measure of a comparison"),
    ("↑ ↓ PgUp PgDn Home", "scroll cells of a sweep, pairs of a comparison"),
    ("End", "back to where something happens"),
];

/// Shapes with their meaning.
const SHAPES: [(&str, &str); 7] = [
    ("░", "each step, from its lowest to its highest value"),
    ("⣀⠤⠒", "training loss and other figures, smoothed"),
    ("◆", "validation loss"),
    ("┄", "floor; no difference, and the smallest that matters"),
    ("│ ●", "an interval, and its estimate"),
    ("● ▶ ○ ✗ ·", "a cell that is ok, running, left, has failed, is to come"),
    ("★", "lowest validation loss of the sweep so far"),
];

/// Columns of keys and shapes.
const FIRST: u16 = 22;

/// Draws the page of help.
pub fn draw(canvas: &mut Canvas) {
    let width = canvas.width();
    canvas.text(0, 0, width, "xrun watch", Role::Strong);
    let mut y = 2;
    for list in [&KEYS[..], &SHAPES[..]] {
        for (key, meaning) in list {
            canvas.text(2, y, FIRST, key, Role::Strong);
            canvas.text(2 + FIRST, y, width.saturating_sub(2 + FIRST), meaning, Role::Text);
            y += 1;
        }
        y += 1;
    }
    let files = "It reads files alone, twice a second while something goes on.";
    canvas.text(2, y, width.saturating_sub(2), files, Role::Muted);
}

/// Says that a terminal is too small for anything else.
pub fn too_small(canvas: &mut Canvas) {
    canvas.text(0, 0, canvas.width(), "too small; 80 by 24 shows all", Role::Text);
}

/// Draws the last row.
pub fn footer(canvas: &mut Canvas, y: u16) {
    canvas.text(
        0,
        y,
        canvas.width(),
        "q leave   ? help   l log axis   w whole run   Tab measure   ↑↓ scroll",
        Role::Muted,
    );
}
