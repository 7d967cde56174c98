//! Watches runs, sweeps and comparisons in a terminal: full screen while they go on, or one frame as text.
//!
//! ```text
//! files of a results folder ─▶ View::poll ─▶ View::draw ─▶ Canvas ─▶ frame ─▶ Screen, or lines of text
//!                     (run, sweep, comparison)             (roles, ASCII)      (what differs is written)
//! ```
//!
//! It only reads files, so it works from another terminal, over ssh, and after the process has ended.

mod canvas;
mod chart;
mod comparison;
mod help;
mod latest;
mod liveness;
mod looks;
mod run;
mod screen;
mod sweep;
mod view;

use crate::error::{Error, Result};
use crate::ranks::Stop;
use crate::results::find;
use canvas::{Canvas, to_lines};
use comparison::ComparisonView;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use latest::LatestView;
use looks::{Looks, is_dumb};
use ratatui_core::buffer::Buffer;
use run::RunView;
use screen::{Screen, terminal_result};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sweep::SweepView;
use view::{Show, View};

/// Time between two polls of the files: while a process runs, and after it has ended, in case it is resumed.
const PERIOD: Duration = Duration::from_millis(500);
const ENDED_PERIOD: Duration = Duration::from_secs(3);

/// After a poll that takes long, as on a slow network file system, wait this many times as long before the
/// next one.
const REST_FACTOR: u32 = 20;

/// The longest time that a signal waits to be noticed, because events are awaited this long.
const TICK: Duration = Duration::from_millis(200);

/// Columns and rows of a frame as text, unless the terminal or the content determines them.
const TEXT_SIZE: (u16, u16) = (80, 24);

/// The most rows of a frame as text.
const MAX_TEXT_ROWS: u16 = 2000;

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The run in a folder.
    Run(PathBuf),
    /// The newest run of a results folder: this one, and once it has ended, any that begins after it.
    Latest { results: PathBuf, run: PathBuf },
    /// The sweep in a folder.
    Sweep(PathBuf),
    /// The comparison in a folder.
    Comparison(PathBuf),
}

impl Subject {
    /// Finds what a name means in a results folder: a run, else a comparison, else a sweep, by the names that
    /// other commands accept.
    ///
    /// # Errors
    /// Fails with a usage error if the name means nothing.
    pub fn find(results: &Path, name: &str) -> Result<Self> {
        match (find::find(results, name), find::find_comparison(results, name)?) {
            (Ok(run), _) if name == find::LATEST => Ok(Self::Latest { results: results.to_owned(), run }),
            (Ok(run), _) => Ok(Self::Run(run)),
            (Err(_), Some(comparison)) => Ok(Self::Comparison(comparison)),
            (Err(error), None) => match crate::sweep::find(results, name)? {
                Some(sweep) => Ok(Self::Sweep(sweep)),
                None => Err(find::unknown_group_error(results, name)?.unwrap_or_else(|| {
                    let nor = "nor is it the name of a comparison or a sweep";
                    Error::new(error.kind(), format!("{}; {nor}", error.message()))
                })),
            },
        }
    }

    fn view(&self) -> Result<Box<dyn View>> {
        Ok(match self {
            Self::Run(folder) => Box::new(RunView::new(folder)),
            Self::Latest { results, run } => Box::new(LatestView::new(results, run)),
            Self::Sweep(folder) => Box::new(SweepView::new(folder)?),
            Self::Comparison(folder) => Box::new(ComparisonView::new(folder)),
        })
    }
}

/// How to watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Return one frame as text, even on a terminal.
    pub once: bool,
    /// Draw in ASCII, whatever the terminal can show.
    pub ascii: bool,
}

/// A frame as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The lines, each with a line break.
    pub text: String,
    /// Why the data shown is damaged or cannot be read.
    pub fault: Option<String>,
}

/// Watches something in the terminal until a key or a signal ends it. Returns one frame to print instead if
/// `once` is set, if stdout is not a terminal, or if the terminal cannot position text.
///
/// # Errors
/// If the terminal cannot be used. Files that cannot be read are reported in the frame.
pub fn watch(subject: &Subject, options: Options) -> Result<Option<Frame>> {
    let variable = |name: &str| std::env::var(name).ok();
    let mut looks = Looks::from_environment(variable);
    looks.is_unicode &= !options.ascii;
    let mut view = subject.view()?;
    let is_terminal = std::io::stdout().is_terminal();
    if options.once || !is_terminal || is_dumb(&variable("TERM").unwrap_or_default()) {
        let columns = if is_terminal { screen::size().ok().map(|(columns, _)| columns) } else { None };
        let columns = columns.or_else(|| variable("COLUMNS")?.parse().ok());
        return Ok(Some(once(&mut *view, columns.unwrap_or(TEXT_SIZE.0), looks)));
    }
    live(&mut *view, looks).map(|()| None)
}

/// Returns one frame as text.
fn once(view: &mut dyn View, columns: u16, looks: Looks) -> Frame {
    view.poll();
    if view.fault().is_some() {
        // A file that is truncated and rewritten during the read looks damaged once; read it again.
        std::thread::sleep(PERIOD);
        view.poll();
    }
    let columns = columns.clamp(40, 400);
    let rows = view.rows().clamp(TEXT_SIZE.1, MAX_TEXT_ROWS);
    let mut canvas = Canvas::new(columns, rows, looks);
    view.draw(&mut canvas, &Show::default());
    let lines = to_lines(&canvas.finish());
    let used = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    let text = lines[..used].iter().map(|line| format!("{line}\n")).collect();
    Frame { text, fault: view.fault() }
}

/// Shows frames until a key or a signal ends it.
fn live(view: &mut dyn View, looks: Looks) -> Result<()> {
    let stop = Stop::on_signals(None)?;
    let mut screen = Screen::enter()?;
    let mut show = Show::default();
    let mut next = Instant::now();
    let mut is_new = true;
    while !stop.requested() {
        if Instant::now() >= next {
            let began = Instant::now();
            is_new |= view.poll();
            let period = if view.is_live() { PERIOD } else { ENDED_PERIOD };
            next = Instant::now() + period.max(REST_FACTOR * began.elapsed());
        }
        if is_new {
            screen.show(frame(view, screen::size()?, looks, &show))?;
            is_new = false;
        }
        let wait = next.saturating_duration_since(Instant::now()).min(TICK);
        if !terminal_result(event::poll(wait))? {
            continue;
        }
        match terminal_result(event::read())? {
            Event::Key(key) if key.kind == KeyEventKind::Press => match press(key, &mut show) {
                Pressed::Leave => return Ok(()),
                Pressed::Changed => is_new = true,
                Pressed::Nothing => {}
            },
            Event::Resize(..) => is_new = true,
            _ => {}
        }
    }
    Ok(())
}

/// The smallest terminal that a frame is drawn for.
const MIN_SIZE: (u16, u16) = (40, 10);

/// Draws a frame for a terminal of the given size.
fn frame(view: &dyn View, (width, height): (u16, u16), looks: Looks, show: &Show) -> Buffer {
    let mut canvas = Canvas::new(width, height.saturating_sub(1), looks);
    match () {
        () if width < MIN_SIZE.0 || height < MIN_SIZE.1 => help::too_small(&mut canvas),
        () if show.is_help => help::draw(&mut canvas),
        () => view.draw(&mut canvas, show),
    }
    let mut canvas = canvas.with_rows(height);
    help::footer(&mut canvas, height.saturating_sub(1));
    canvas.finish()
}

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pressed {
    Leave,
    Changed,
    Nothing,
}

/// Rows to scroll for a page.
const PAGE: usize = 10;

fn press(key: KeyEvent, show: &mut Show) -> Pressed {
    let before = show.clone();
    let first = show.first.unwrap_or(0);
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Pressed::Leave,
        KeyCode::Char('q') => return Pressed::Leave,
        KeyCode::Esc if show.is_help => show.is_help = false,
        KeyCode::Esc => return Pressed::Leave,
        KeyCode::Char('?' | 'h') => show.is_help = !show.is_help,
        KeyCode::Char('l') => show.is_linear = !show.is_linear,
        KeyCode::Char('w') => show.is_whole = !show.is_whole,
        KeyCode::Tab => show.measure += 1,
        KeyCode::Down | KeyCode::Char('j') => show.first = Some(first + 1),
        KeyCode::Up | KeyCode::Char('k') => show.first = Some(first.saturating_sub(1)),
        KeyCode::PageDown => show.first = Some(first + PAGE),
        KeyCode::PageUp => show.first = Some(first.saturating_sub(PAGE)),
        KeyCode::Home => show.first = Some(0),
        KeyCode::End => show.first = None,
        _ => {}
    }
    if *show == before { Pressed::Nothing } else { Pressed::Changed }
}

#[cfg(test)]
mod tests;
