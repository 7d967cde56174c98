//! Finds reasons why the times of pairs cannot be compared, by the rules that hold for trials.

use super::arms::Arms;
use super::judge::contention;
use super::trials::FinishedTrial;
use crate::results::experiment::{ARM_NAMES, Experiment};
use std::path::Path;

/// Records why times of the pairs cannot be compared, with remarks on other load. Every measure that depends
/// on the clock then has no verdict.
///
/// # Errors
/// If the rows of a run cannot be read.
pub fn check(experiment: &mut Experiment, arms: &Arms, results: &Path) -> crate::error::Result<()> {
    let mut trials = Vec::new();
    for record in &experiment.runs {
        let (Some(run), Some("ok")) = (&record.run, record.status.as_deref()) else { continue };
        let mut trial = FinishedTrial::from_stored_run(&results.join(run), record.arm)?;
        trial.record.seed = record.seed;
        trial.record.other_load = record.other_load;
        trials.push(trial);
    }
    for (arm, record) in experiment.arms.iter_mut().enumerate() {
        let environments = trials.iter().filter(|trial| trial.record.arm == arm);
        let device = environments.filter_map(|trial| trial.environment.as_ref()).next();
        record.device =
            device.map(|environment| environment.device_class()).filter(|device| !device.is_empty());
    }
    let named = trials.iter().flat_map(|trial| {
        let seed = trial.record.seed.unwrap_or_default();
        let in_run =
            move |reason: &String| format!("seed {seed} ({}): {reason}", ARM_NAMES[trial.record.arm]);
        trial.contended.iter().map(in_run)
    });
    let mut contended: Vec<String> = named.collect();
    contended.extend(contention::reasons(experiment, &trials, arms.change_devices()));
    experiment.contended = contended;
    experiment.notes.extend(contention::notes(&trials));
    Ok(())
}
