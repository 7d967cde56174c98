//! A comparison as it is watched, of speed or of quality: its pairs, and how its interval closes.

mod draw;

use super::canvas::Canvas;
use super::liveness::Condition;
use super::view::{Show, View};
use crate::compare::quality::after_pairs;
use crate::compare::statistics::ratio;
use crate::error::{Error, Result};
use crate::results::comparison::{COMPARISON, Comparison};
use crate::results::find::id_of;
use crate::results::follow::ReplacedFile;
use crate::results::quality::{Pair, QUALITY, QualityComparison};
use std::path::Path;

/// A comparison that is watched.
pub struct ComparisonView {
    name: String,
    file: ReplacedFile,
    condition: Condition,
    kind: Compared,
    /// For each measure, the interval after each number of pairs that has one.
    closing: Vec<Vec<Interval>>,
}

/// What a comparison is of.
enum Compared {
    /// Not read yet.
    Unknown,
    Speed(Box<Comparison>),
    Quality(Box<QualityComparison>),
}

/// The interval after so many pairs: the difference of a loss, or the change of a speed as a share of the
/// baseline's.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Interval {
    pairs: usize,
    low: f64,
    estimate: f64,
    high: f64,
}

impl ComparisonView {
    /// Creates the view of the comparison in a folder.
    pub fn new(folder: &Path) -> Self {
        let file = if folder.join(QUALITY).is_file() { QUALITY } else { COMPARISON };
        Self {
            name: id_of(folder),
            file: ReplacedFile::new(&folder.join(file)),
            condition: Condition::new(folder),
            kind: Compared::Unknown,
            closing: Vec::new(),
        }
    }

    fn read(&mut self) -> Result<bool> {
        let read = self.read_new();
        if read.is_err() {
            // It is tried again, and the error stays until it is one no more.
            self.file.forget();
        }
        read
    }

    fn read_new(&mut self) -> Result<bool> {
        let Some(bytes) = self.file.poll()? else { return Ok(false) };
        let path = self.file.path();
        let wrong = |e: serde_json::Error| {
            Error::failed(format!("{}:{}: not a comparison: {e}", path.display(), e.line()))
        };
        if path.ends_with(QUALITY) {
            let comparison: QualityComparison = serde_json::from_slice(&bytes).map_err(wrong)?;
            self.closing = closing_of_quality(&comparison);
            self.kind = Compared::Quality(Box::new(comparison));
        } else {
            let comparison: Comparison = serde_json::from_slice(&bytes).map_err(wrong)?;
            self.closing = vec![closing_of_speed(&comparison)];
            self.kind = Compared::Speed(Box::new(comparison));
        }
        Ok(true)
    }

    /// Returns the pairs that have ended, and all; what is not known is what has ended.
    fn pairs(&self) -> (usize, usize) {
        match &self.kind {
            Compared::Unknown => (0, 0),
            Compared::Speed(comparison) => {
                let done = comparison.trials.len() / 2;
                (done, comparison.trials_planned.map_or(done, |trials| trials / 2))
            }
            Compared::Quality(comparison) => {
                let done = comparison.pairs.iter().filter(|pair| pair.has_ended()).count();
                (done, comparison.pairs.len())
            }
        }
    }

    fn is_finished(&self) -> bool {
        match &self.kind {
            Compared::Unknown => false,
            Compared::Speed(comparison) => comparison.finished,
            Compared::Quality(comparison) => comparison.finished,
        }
    }
}

/// Returns the intervals of a comparison of speed after each of its pairs of trials, as changes.
fn closing_of_speed(comparison: &Comparison) -> Vec<Interval> {
    let blocks = |is_candidate: bool| -> Vec<Vec<f64>> {
        let of_arm = comparison.trials.iter().filter(|trial| trial.is_candidate == is_candidate);
        of_arm.map(|trial| trial.blocks.clone()).collect()
    };
    let (baseline, candidate) = (blocks(false), blocks(true));
    // One pair does not show how runs differ.
    let after = |pairs: usize| {
        let ratio = ratio(&baseline[..pairs], &candidate[..pairs])?;
        Some(Interval { pairs, low: ratio.low - 1.0, estimate: ratio.estimate - 1.0, high: ratio.high - 1.0 })
    };
    (2..=baseline.len().min(candidate.len())).filter_map(after).collect()
}

/// Returns the intervals of each measure of a comparison of quality after each of its pairs.
fn closing_of_quality(comparison: &QualityComparison) -> Vec<Vec<Interval>> {
    let mut closing = vec![Vec::new(); comparison.measures.len()];
    let ended = comparison.pairs.iter().filter(|pair| Pair::has_ended(pair)).count();
    for pairs in 2..=ended {
        for (intervals, judged) in closing.iter_mut().zip(after_pairs(comparison, pairs).measures) {
            intervals.extend(judged.interval.map(|interval| Interval {
                pairs,
                low: interval.low,
                estimate: interval.estimate,
                high: interval.high,
            }));
        }
    }
    closing
}

impl View for ComparisonView {
    fn poll(&mut self) -> bool {
        let read = self.read();
        let is_new = self.condition.has_read(read);
        self.condition.look(is_new, self.is_finished())
    }

    fn is_live(&self) -> bool {
        self.condition.is_held
    }

    fn rows(&self, _width: u16) -> u16 {
        self.rows_of_frame()
    }

    fn draw(&self, canvas: &mut Canvas, show: &Show) {
        self.draw_frame(canvas, show);
    }
}
