//! Finds earlier comparisons of the same change, to report them with a verdict and to keep their seeds from
//! being reused.

use super::question::Question;
use super::seeds::pair_of;
use crate::error::{Error, Result};
use crate::results::experiment::{Design, EarlierExperiment, Experiment};
use crate::results::find;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A stored comparison and its folder.
#[derive(Clone, Debug)]
pub struct StoredExperiment {
    /// Its folder.
    pub folder: PathBuf,
    /// Its record.
    pub experiment: Experiment,
}

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

/// Summarizes the stored comparisons of a new one's change. `seeds` are those of the new one.
pub fn summaries(
    new: &Experiment,
    stored: &[StoredExperiment],
    seeds: &[[u64; 2]],
) -> Vec<EarlierExperiment> {
    let earlier = new.change().map(|change| same_change(stored, change)).unwrap_or_default();
    earlier.into_iter().map(|old| summarize_earlier(old, seeds)).collect()
}

/// Summarizes an earlier comparison for the record of a new one with these seeds.
pub fn summarize_earlier(earlier: &Experiment, seeds: &[[u64; 2]]) -> EarlierExperiment {
    let used = earlier.seeds();
    let findings = earlier.findings.iter();
    let ended: Vec<String> =
        findings.map(|finding| format!("{}: {}", finding.measure, finding.verdict.words())).collect();
    EarlierExperiment {
        comparison: earlier.full_name(),
        pairs: earlier.ended_pairs(),
        shared_seeds: seeds.iter().filter(|pair| pair.iter().any(|seed| used.contains(seed))).count(),
        ended: if earlier.finished { ended.join(", ") } else { "did not finish".to_owned() },
    }
}

/// Rejects a change of pairs after a verdict: add pairs until you like the verdict, and you will find
/// differences that do not exist.
///
/// Once the verdict is known, only the same pairs, all of them, may be judged again, and by the same design.
/// More or fewer pairs would be another look at known results, and the interval for a fixed number of pairs
/// allows no second look. Nor does a sequential design that starts with these pairs: its boundary pays for
/// its own looks, not for the one that was taken before it was chosen.
///
/// # Errors
/// A usage error that says what to do instead.
pub fn check_peeking(question: &Question, earlier: &[&Experiment]) -> Result<()> {
    let asked: BTreeSet<u64> = question.seeds.iter().flatten().copied().collect();
    for old in earlier.iter().filter(|old| old.finished) {
        let used = old.seeds();
        if used.is_disjoint(&asked) {
            continue;
        }
        // A sequential comparison stops at the first look that decides, so reordering known pairs could
        // change where it stops.
        let old_pairs: Vec<[u64; 2]> =
            old.pairs().map(|pair| pair.seeds().map(Option::unwrap_or_default)).collect();
        let begins_with_it = question.seeds.starts_with(&old_pairs);
        let is_same = match (&old.design, &question.design) {
            (Design::Pairs { .. }, Design::Pairs { .. }) => used == asked,
            (Design::Pairs { .. }, Design::Sequential { .. }) => false,
            (Design::Sequential { max_pairs, .. }, Design::Sequential { max_pairs: asked_max, .. }) => {
                max_pairs == asked_max && begins_with_it
            }
            (Design::Sequential { .. }, Design::Pairs { .. }) => false,
            // Trials have no seeds.
            (Design::Trials { .. }, _) | (_, Design::Trials { .. }) => true,
        };
        if is_same {
            continue;
        }
        let name = old.full_name();
        let shared = used.intersection(&asked).count();
        return Err(Error::usage(format!(
            "the verdict of {name} is known, and it used {shared} of these seeds. Changing the pairs after a \
             verdict, or when they are looked at, is peeking, which finds differences that do not exist. \
             Repeat it with fresh seeds, `xrun compare --confirm {name}`"
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
