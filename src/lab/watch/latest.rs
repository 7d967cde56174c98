//! The view of the newest run, which turns to a newer one when the run has ended.

use super::canvas::Canvas;
use super::run::RunView;
use super::view::{Show, View};
use crate::results::find::{self, LATEST};
use std::path::{Path, PathBuf};

/// Follows the newest run of a results folder.
pub struct LatestView {
    results: PathBuf,
    run: PathBuf,
    view: RunView,
}

impl LatestView {
    /// Creates the view of `run`, the newest of `results`.
    pub fn new(results: &Path, run: &Path) -> Self {
        Self { results: results.to_owned(), run: run.to_owned(), view: RunView::new(run) }
    }

    /// Turns to a run that began after this one. Returns true if there is one.
    fn turn(&mut self) -> bool {
        // While the folder cannot be read, the frame shows the last run.
        let newest = find::find(&self.results, LATEST).ok().filter(|newest| *newest != self.run);
        let Some(newest) = newest else { return false };
        (self.view, self.run) = (RunView::new(&newest), newest);
        true
    }
}

impl View for LatestView {
    fn poll(&mut self) -> bool {
        let has_turned = !self.view.is_live() && self.turn();
        self.view.poll() || has_turned
    }

    fn is_live(&self) -> bool {
        self.view.is_live()
    }

    fn fault(&self) -> Option<String> {
        self.view.fault()
    }

    fn rows(&self) -> u16 {
        self.view.rows()
    }

    fn draw(&self, canvas: &mut Canvas, show: &Show) {
        self.view.draw(canvas, show);
    }
}
