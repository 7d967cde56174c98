//! The view of a comparison: its pairs, and how its intervals narrow.

mod draw;

use super::canvas::Canvas;
use super::liveness::Condition;
use super::view::{Show, View};
use crate::compare::judge::{ClosingInterval, closing};
use crate::error::Result;
use crate::results::experiment::{Design, EXPERIMENT, Experiment};
use crate::results::find::folder_id;
use crate::results::follow::ReplacedFile;
use std::path::Path;

/// Follows a comparison.
pub struct ComparisonView {
    name: String,
    file: ReplacedFile,
    condition: Condition,
    /// `None` until the file has been read.
    experiment: Option<Box<Experiment>>,
    /// For each finding, the interval after each number of pairs that has one.
    closing: Vec<Vec<ClosingInterval>>,
}

impl ComparisonView {
    /// Creates the view of the comparison in a folder.
    pub fn new(folder: &Path) -> Self {
        Self {
            name: folder_id(folder),
            file: ReplacedFile::new(&folder.join(EXPERIMENT)),
            condition: Condition::new(folder),
            experiment: None,
            closing: Vec::new(),
        }
    }

    fn read(&mut self) -> Result<bool> {
        let Some(bytes) = self.file.poll()? else { return Ok(false) };
        let experiment = Experiment::parse(&bytes, self.file.path())?;
        self.closing = closing(&experiment);
        self.experiment = Some(Box::new(experiment));
        Ok(true)
    }

    /// Returns the number of pairs that have ended, and of all pairs in the design.
    fn pairs(&self) -> (usize, usize) {
        let Some(experiment) = &self.experiment else { return (0, 0) };
        let planned = match &experiment.design {
            Design::Trials { trials } => trials / 2,
            Design::Pairs { .. } | Design::Sequential { .. } => experiment.pairs().count(),
        };
        (experiment.ended_pairs(), planned)
    }

    fn is_finished(&self) -> bool {
        self.experiment.as_ref().is_some_and(|experiment| experiment.finished)
    }
}

impl View for ComparisonView {
    fn poll(&mut self) -> bool {
        // After an error, read the file again on the next poll; the error is shown until that succeeds.
        let read = self.read().inspect_err(|_| self.file.forget());
        let is_new = self.condition.record_read(read);
        self.condition.look(is_new, self.is_finished())
    }

    fn is_live(&self) -> bool {
        self.condition.is_held
    }

    fn rows(&self) -> u16 {
        self.height()
    }

    fn draw(&self, canvas: &mut Canvas, show: &Show) {
        self.draw_frame(canvas, show);
    }
}
