//! Finds earlier comparisons of the same change, to report them with a verdict and to keep their seeds from
//! being reused.

use super::family::Family;
use super::question::Question;
use super::seeds::pair_of;
use super::setting::StoredExperiment;
use crate::error::{Error, Result};
use crate::results::experiment::Experiment;
use crate::results::find;
use crate::results::ledger::AskedArm;
use std::collections::BTreeSet;
use std::path::Path;

/// Reads all paired comparisons below a results folder, oldest first.
///
/// # Errors
/// If one cannot be read: skipping it could hide what it says about a change.
pub fn stored(results: &Path) -> Result<Vec<StoredExperiment>> {
    let mut found = Vec::new();
    for folder in find::comparisons(results)?.into_iter().rev() {
        let experiment = Experiment::read(&folder)?;
        if !experiment.has_trials() {
            found.push(StoredExperiment { folder, experiment });
        }
    }
    Ok(found)
}

/// Returns the comparisons of a change: those with the same two recipes, apart from seeds.
pub fn same_change<'a>(stored: &'a [StoredExperiment], change: [&str; 2]) -> Vec<&'a Experiment> {
    let experiments = stored.iter().map(|one| &one.experiment);
    experiments.filter(|experiment| experiment.change() == Some(change)).collect()
}

/// Rejects a change of pairs after a verdict: add pairs until you like the verdict, and you will find
/// differences that do not exist.
///
/// Once a measure of these arms, in either order, has an answer, only the same pairs may be asked about
/// again, and then no run is fresh. Other measures of the same arms are other questions of the family, which
/// share its error.
///
/// # Errors
/// A usage error that says what to do instead.
pub fn check_peeking(question: &Question, arms: &[AskedArm], family: &Family) -> Result<()> {
    let asked: BTreeSet<u64> = question.seeds.iter().flatten().copied().collect();
    let measures = question.measures();
    let answered = family.earlier.iter().filter(|old| old.has_verdict() && old.asks_about(arms, &measures));
    for old in answered {
        let used: BTreeSet<u64> = old.line.seeds.iter().flatten().copied().collect();
        if used.is_disjoint(&asked) || used == asked {
            continue;
        }
        let name = &old.line.comparison;
        let shared = used.intersection(&asked).count();
        return Err(Error::usage(format!(
            "the verdict of {name} ({}) is known, and it used {shared} of these seeds. Changing the pairs after a \
             verdict is peeking, which finds differences that do not exist. Repeat it with fresh seeds: `xrun \
             compare --confirm {name}`",
            old.relation
        )));
    }
    Ok(())
}

/// Returns `count` pairs of seeds that no earlier comparison of the change has used.
///
/// # Errors
/// A usage error if no seeds are left above the used ones.
pub fn fresh_seeds(count: usize, bases: [u64; 2], earlier: &[&Experiment]) -> Result<Vec<[u64; 2]>> {
    let used = earlier.iter().flat_map(|old| old.runs.iter().chain(&old.pilot)).filter_map(|run| run.seed);
    let [base, other] = bases;
    // Start above every seed that either arm has used, far enough that the candidate's seeds are fresh too.
    let highest = used.max().unwrap_or(base.max(other));
    let first = highest.saturating_add(1).saturating_add(base.saturating_sub(other));
    (0..count as u64).map(|i| pair_of(first.saturating_add(i), base, other)).collect()
}
