//! The help page: the keys, and what the shapes of a frame mean.

use super::canvas::Canvas;
use super::looks::Role;

/// Keys and what they do.
const KEYS: [(&str, &str); 7] = [
    ("q, Esc, Ctrl-C", "leave; the watched process keeps running"),
    ("?", "this page, and back"),
    ("l", "the axis of losses: logarithmic, linear"),
    ("w", "the axis of steps: steps so far, the whole run"),
    ("Tab", "the next measure of a comparison"),
    ("↑ ↓ PgUp PgDn Home", "scroll cells of a sweep, pairs of a comparison"),
    ("End", "back to what is happening now"),
];

/// Shapes and what they mean.
const SHAPES: [(&str, &str); 7] = [
    ("░", "each step, from its lowest to its highest value"),
    ("⣀⠤⠒", "training loss and other figures, smoothed"),
    ("◆", "validation loss"),
    ("┄", "floor; no difference, and the smallest that matters"),
    ("│ ●", "an interval, and its estimate"),
    ("● ▶ ○ ✗ ·", "a cell: ok, running, halted or skipped, failed, to come"),
    ("★", "lowest validation loss of the sweep so far"),
];

/// Columns for keys and shapes.
const KEY_COLUMNS: u16 = 22;

/// Draws the help page.
pub fn draw(canvas: &mut Canvas) {
    let width = canvas.width();
    canvas.text(0, 0, width, "xrun watch", Role::Strong);
    let mut y = 2;
    for list in [&KEYS[..], &SHAPES[..]] {
        for (key, meaning) in list {
            canvas.text(2, y, KEY_COLUMNS, key, Role::Strong);
            canvas.text(2 + KEY_COLUMNS, y, width.saturating_sub(2 + KEY_COLUMNS), meaning, Role::Text);
            y += 1;
        }
        y += 1;
    }
    let files = "It only reads files, twice a second while a process is running.";
    canvas.text(2, y, width.saturating_sub(2), files, Role::Muted);
}

/// Tells the user that the terminal is too small for anything else.
pub fn too_small(canvas: &mut Canvas) {
    canvas.text(0, 0, canvas.width(), "too small; 80 by 24 shows all", Role::Text);
}

/// Draws the last row, a reminder of the keys.
pub fn footer(canvas: &mut Canvas, y: u16) {
    let keys = "q leave   ? help   l log axis   w whole run   Tab measure   ↑↓ scroll";
    canvas.text(0, y, canvas.width(), keys, Role::Muted);
}
