//! Confirms the best configuration: runs the two best again with fresh seeds, because the best of many looks
//! better than it is.

use super::axes::GridPoint;
use super::cell::{Cell, Corpora, Source};
use super::configuration_table::Measure;
use crate::error::{Error, Result};
use crate::results::configurations::{Configuration, Configurations, SEED, Settings};
use crate::results::confirmation::Confirmation;
use crate::results::ledger::{Attempt, CellStatus, Ledger};
use crate::statistics::{Direction, paired_difference, verdict};
use std::path::Path;

/// The subfolder for the tables of the confirmation's cells.
pub const CELLS_FOLDER: &str = "confirmation";

/// The cells of a confirmation.
#[derive(Debug)]
pub struct Contest {
    /// The cells, seed by seed: the best configuration's, then the second best's.
    pub cells: Vec<Cell>,
    settings: [Settings; 2],
    seeds: Vec<u64>,
}

impl Contest {
    /// Prepares the contest of the two best configurations, with `count` seeds above `last_seed`, the highest
    /// one used so far. `None` if there are fewer than two configurations.
    ///
    /// # Errors
    /// If too few seeds are left.
    pub fn new(
        found: &Configurations,
        sweep: &[Cell],
        ledger: &Ledger,
        (last_seed, count): (u64, usize),
        (source, build): (&Source<'_>, &str),
    ) -> Result<Option<Self>> {
        let Some(settings) = two_best(found, sweep, ledger) else { return Ok(None) };
        let end = last_seed.checked_add(count as u64).filter(|&end| i64::try_from(end).is_ok());
        let end = end.ok_or_else(|| {
            Error::usage(format!("fewer than {count} seeds are left after {last_seed}; set a smaller {SEED}"))
        })?;
        let seeds: Vec<u64> = (last_seed + 1..=end).collect();
        let mut corpora = Corpora::default();
        let mut cells = Vec::new();
        for seed in &seeds {
            for settings in &settings {
                let mut settings = settings.clone();
                settings.insert(SEED.to_owned(), seed.to_string());
                let point = GridPoint { settings, excluded: None };
                cells.push(Cell::new(source, &point, build, &mut corpora));
            }
        }
        Ok(Some(Self { cells, settings, seeds }))
    }

    /// Judges the contest by the last ledger lines of its cells.
    pub fn judge(
        &self,
        measure: &Measure,
        direction: Direction,
        ledger: &Ledger,
        results: &Path,
    ) -> Confirmation {
        let last = |side| self.cells.iter().skip(side).step_by(2).map(move |cell| ledger.row(&cell.key));
        let value = |line: Option<&Attempt>| measure.value(line?, results).filter(|value| value.is_finite());
        let values = [0, 1].map(|side| last(side).map(value).collect::<Vec<_>>());
        let is_diverged = |line: &&Attempt| line.status == CellStatus::Diverged;
        let diverged = [0, 1].map(|side| last(side).flatten().filter(is_diverged).count());
        let pairs = values[0].iter().zip(&values[1]);
        let differences: Option<Vec<f64>> = pairs.map(|(one, other)| Some((*one)? - (*other)?)).collect();
        let difference = differences.and_then(|all| paired_difference(&all, measure.confidence));
        Confirmation {
            measure: measure.figure.name().to_owned(),
            unit: measure.figure.metric().unit.to_owned(),
            direction,
            confidence: measure.confidence,
            configurations: self.settings.clone(),
            seeds: self.seeds.clone(),
            values,
            diverged,
            verdict: difference.as_ref().map(|difference| verdict(&difference.interval, 0.0, direction)),
            difference,
        }
    }
}

/// Returns the settings of the two best configurations. The second best may have been dropped at a rung.
fn two_best(found: &Configurations, cells: &[Cell], ledger: &Ledger) -> Option<[Settings; 2]> {
    let mut ranked = found.ranked().into_iter();
    let best = ranked.next()?;
    let second = ranked.next().or_else(|| best_dropped(found, cells, ledger))?;
    Some([best, second].map(|one| one.settings.clone()))
}

/// Returns the configuration that was dropped last; ties go to the lowest validation loss there.
fn best_dropped<'a>(found: &'a Configurations, cells: &[Cell], ledger: &Ledger) -> Option<&'a Configuration> {
    let all_dropped = |one: &&Configuration| {
        one.others.get(CellStatus::Dropped.as_str()).is_some_and(|&dropped| dropped == one.cells)
    };
    let steps_and_loss = |one: &Configuration| -> Option<(f64, f64)> {
        let own = |cell: &&Cell| {
            let settings = cell.settings.iter().filter(|(key, _)| *key != SEED);
            settings.eq(one.settings.iter())
        };
        let lines: Vec<_> = cells.iter().filter(own).filter_map(|cell| ledger.last(&cell.key)).collect();
        let figure =
            |key: &str| lines.iter().map(|line| line.measured.get(key)).collect::<Option<Vec<f64>>>();
        let steps = figure("steps")?.into_iter().fold(f64::INFINITY, f64::min);
        let losses = figure("val_loss")?;
        Some((-steps, losses.iter().sum::<f64>() / losses.len() as f64))
    };
    let dropped = found.configurations.iter().filter(all_dropped);
    let ranked = dropped.filter_map(|one| Some((steps_and_loss(one)?, one)));
    ranked.min_by(|((a, b), _), ((c, d), _)| a.total_cmp(c).then(b.total_cmp(d))).map(|(_, one)| one)
}
