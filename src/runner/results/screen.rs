//! The terminal on which live lines are drawn. It may become narrower between two draws.

use super::streams::{Handle, Lines, Stream};
use crate::lock::lock;
use console::{Term, measure_text_width};
use indicatif::{ProgressDrawTarget, TermLike};
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard};

/// Moves to the first column and clears everything from there to the end of the screen.
const CLEAR_BELOW: &str = "\r\x1b[J";

/// Returns true if live lines are drawn: stderr is a terminal that can move its cursor. `TERM=dumb`, as in
/// Emacs and in some CI, says that it cannot.
pub fn draws_on_stderr() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns the terminal on stderr, for drawing live lines.
pub fn terminal() -> ProgressDrawTarget {
    // https://no-color.org: an empty variable switches nothing off, which `console` does.
    if std::env::var_os("NO_COLOR").is_some_and(|value| value.is_empty()) {
        console::set_colors_enabled(true);
        console::set_colors_enabled_stderr(true);
    }
    ProgressDrawTarget::term_like(Box::new(Screen::new(Unblocked::default())))
}

/// The terminal on stderr, where a paused one (Ctrl-S) stops no run: what is drawn waits for it.
#[derive(Debug)]
struct Unblocked {
    terminal: Term,
    out: Mutex<Handle>,
}

impl Default for Unblocked {
    fn default() -> Self {
        Self { terminal: Term::stderr(), out: Mutex::new(Handle::new(Stream::Err, Lines::ForPeople)) }
    }
}

impl Unblocked {
    /// Moves the cursor by `count` in the direction of an ANSI code.
    fn move_cursor(&self, count: usize, direction: char) -> io::Result<()> {
        if count == 0 { Ok(()) } else { self.write_str(&format!("\x1b[{count}{direction}")) }
    }
}

impl TermLike for Unblocked {
    fn width(&self) -> u16 {
        self.terminal.size().1
    }

    fn height(&self) -> u16 {
        self.terminal.size().0
    }

    fn move_cursor_up(&self, rows: usize) -> io::Result<()> {
        self.move_cursor(rows, 'A')
    }

    fn move_cursor_down(&self, rows: usize) -> io::Result<()> {
        self.move_cursor(rows, 'B')
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.move_cursor(columns, 'C')
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.move_cursor(columns, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)?;
        self.write_str("\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        lock(&self.out).write_all(text.as_bytes())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.write_str("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        lock(&self.out).flush()
    }
}

/// A terminal that redraws its live lines completely after it became narrower.
///
/// When a terminal becomes narrower, it breaks longer lines into several rows. indicatif counts rows when it
/// draws, so it would then clear too few. It also pads each line with spaces up to the last column, which
/// makes every line break. This terminal leaves out the padding, and starts a new row where the next line is
/// drawn.
#[derive(Debug)]
struct Screen<T> {
    terminal: T,
    drawn: Mutex<Drawn>,
}

/// The live lines on the screen.
#[derive(Debug, Default)]
struct Drawn {
    /// Width of each line, in columns.
    widths: Vec<usize>,
    /// True after the text of a line was written, because its padding comes next.
    filler_is_next: bool,
}

impl Drawn {
    /// Returns how many rows, beyond one each, these lines take on a terminal of `width` columns.
    fn broken_rows(&self, width: usize) -> usize {
        self.widths.iter().map(|columns| columns.div_ceil(width.max(1)).saturating_sub(1)).sum()
    }
}

impl<T> Screen<T> {
    fn new(terminal: T) -> Self {
        Self { terminal, drawn: Mutex::default() }
    }

    fn drawn(&self) -> MutexGuard<'_, Drawn> {
        lock(&self.drawn)
    }
}

impl<T: TermLike> TermLike for Screen<T> {
    fn width(&self) -> u16 {
        self.terminal.width()
    }

    fn height(&self) -> u16 {
        self.terminal.height()
    }

    /// After a draw, indicatif first moves up to the first drawn row in order to clear it.
    fn move_cursor_up(&self, rows: usize) -> io::Result<()> {
        let drawn = std::mem::take(&mut *self.drawn());
        if drawn.widths.is_empty() {
            return self.terminal.move_cursor_up(rows);
        }
        self.terminal.move_cursor_up(rows + drawn.broken_rows(self.width().into()))?;
        self.terminal.write_str(CLEAR_BELOW)
    }

    fn move_cursor_down(&self, rows: usize) -> io::Result<()> {
        self.terminal.move_cursor_down(rows)
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.terminal.move_cursor_right(columns)
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.terminal.move_cursor_left(columns)
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.terminal.write_line(text)
    }

    /// indicatif writes a line in two parts: its text and its padding.
    fn write_str(&self, text: &str) -> io::Result<()> {
        let mut drawn = self.drawn();
        if std::mem::take(&mut drawn.filler_is_next) {
            return Ok(());
        }
        let is_first = drawn.widths.is_empty();
        drawn.widths.push(measure_text_width(text));
        drawn.filler_is_next = true;
        if !is_first {
            self.terminal.write_str("\r\n")?;
        }
        self.terminal.write_str(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.terminal.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.terminal.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, Ordering};

    /// A terminal that rewraps its rows when it becomes narrower, as most do.
    #[derive(Clone, Debug)]
    struct Reflowing {
        width: Arc<AtomicU16>,
        rows: Arc<Mutex<(Vec<String>, usize)>>,
    }

    impl Reflowing {
        fn new(width: u16) -> Self {
            let rows = Arc::new(Mutex::new((vec![String::new()], 0)));
            Self { width: Arc::new(AtomicU16::new(width)), rows }
        }

        fn narrow(&self, width: u16) {
            self.width.store(width, Ordering::Relaxed);
            let (rows, row) = &mut *self.rows.lock().unwrap();
            let broken = |text: &String| {
                let cells: Vec<char> = text.chars().collect();
                let parts: Vec<String> =
                    cells.chunks(width.into()).map(|part| part.iter().collect()).collect();
                if parts.is_empty() { vec![String::new()] } else { parts }
            };
            *row = rows[..=*row].iter().map(|text| broken(text).len()).sum::<usize>() - 1;
            *rows = rows.iter().flat_map(broken).collect();
        }

        fn shown(&self) -> Vec<String> {
            let rows = self.rows.lock().unwrap().0.clone();
            rows.iter().map(|text| text.trim_end().to_owned()).filter(|text| !text.is_empty()).collect()
        }
    }

    impl TermLike for Reflowing {
        fn width(&self) -> u16 {
            self.width.load(Ordering::Relaxed)
        }
        fn move_cursor_up(&self, n: usize) -> io::Result<()> {
            self.rows.lock().unwrap().1 -= n;
            Ok(())
        }
        fn move_cursor_down(&self, n: usize) -> io::Result<()> {
            self.rows.lock().unwrap().1 += n;
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)?;
            self.write_str("\r\n")
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            let width = usize::from(self.width());
            let (rows, row) = &mut *self.rows.lock().unwrap();
            match text {
                CLEAR_BELOW => {
                    rows.truncate(*row);
                    rows.push(String::new());
                }
                "\r\n" => {
                    *row += 1;
                    rows.truncate(*row);
                    rows.push(String::new());
                }
                text => {
                    for c in text.chars() {
                        if rows[*row].chars().count() == width {
                            *row += 1;
                            rows.insert(*row, String::new());
                        }
                        rows[*row].push(c);
                    }
                }
            }
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            let (rows, row) = &mut *self.rows.lock().unwrap();
            if *row == rows.len() {
                rows.push(String::new());
            }
            rows[*row].clear();
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Draws two lines, makes the terminal narrower, and draws them again.
    fn narrowed(target: ProgressDrawTarget, terminal: &Reflowing) -> Vec<String> {
        let all = MultiProgress::with_draw_target(target);
        let line = |text: &'static str| {
            let style = ProgressStyle::with_template("{wide_msg}").unwrap();
            let line = all.add(ProgressBar::new_spinner().with_style(style));
            line.set_message(text);
            line.force_draw();
            line
        };
        let lines = [line("the first line of thirty-three!!!"), line("second")];
        terminal.narrow(20);
        lines.iter().for_each(ProgressBar::force_draw);
        let shown = terminal.shown();
        lines.iter().for_each(ProgressBar::finish_and_clear);
        assert_eq!(terminal.shown(), Vec::<String>::new(), "a finished line is cleared");
        shown
    }

    #[test]
    fn a_terminal_that_becomes_narrower_keeps_no_remnants() {
        let terminal = Reflowing::new(60);
        let target = ProgressDrawTarget::term_like(Box::new(Screen::new(terminal.clone())));
        assert_eq!(narrowed(target, &terminal), ["the first line of th", "second"]);
    }
}
