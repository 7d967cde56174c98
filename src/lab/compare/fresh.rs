//! Chooses seeds that neither arm has run with, and tells which seeds have.

use super::family::{Family, is_run_of};
use super::question::{Question, SeedChoice};
use super::seeds::{MAX_SEED, pair_of};
use crate::error::{Error, Result};
use crate::format::plural;
use crate::recipe::StoredKeys;
use crate::results::folder::{RESOLVED, read_summary};
use crate::results::ledger::{AskedArm, Ledger};
use crate::results::{Status, find, stored};
use std::collections::BTreeSet;
use std::path::Path;

/// Most seeds that a reason names.
const NAMED: usize = 6;

/// The seeds that the arms have run with in a results folder, the baseline's first. Runs with nearly the same
/// recipe count, because their outcome tells this one's.
#[derive(Clone, Debug, Default)]
pub struct SeedsBefore {
    /// The seeds of each arm.
    seeds: [BTreeSet<u64>; 2],
    /// How many of these runs have ended, and no line of the ledger names them: they were made alone, or the
    /// ledger lost lines.
    pub unnamed: usize,
}

impl SeedsBefore {
    /// Reads the recipes of all runs in a results folder.
    ///
    /// # Errors
    /// If the folder cannot be read. A run without a readable recipe has no outcome either.
    pub fn find(results: &Path, arms: &[AskedArm], ledger: &Ledger) -> Result<Self> {
        let mut before = Self::default();
        for run in find::runs(results)? {
            let text = stored::read(&run.join(RESOLVED)).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let Some(keys) = text.and_then(|text| StoredKeys::parse(&text).ok()) else { continue };
            let Some(seed) = keys.value("training.seed").and_then(|seed| seed.parse().ok()) else { continue };
            let mut is_own = false;
            for (at, seeds) in before.seeds.iter_mut().enumerate() {
                if arms.len() == 2 && is_run_of(arms, at, &keys) {
                    seeds.insert(seed);
                    is_own = true;
                }
            }
            // A run that was cut off has no outcome, and no line that names it yet.
            let has_ended = || {
                let status = read_summary(&run).map(|summary| summary.status);
                matches!(status, Ok(Status::Ok | Status::Diverged))
            };
            let is_unnamed = is_own && ledger.began(&find::folder_id(&run)).is_none() && has_ended();
            before.unnamed += usize::from(is_unnamed);
        }
        Ok(before)
    }

    fn has(&self, pair: [u64; 2]) -> bool {
        self.seeds.iter().zip(pair).any(|(seeds, seed)| seeds.contains(&seed))
    }

    /// Returns why an answer from these pairs is exploratory; `None` if all of them are fresh.
    fn reason(&self, pairs: &[[u64; 2]]) -> Option<String> {
        let known: Vec<String> =
            pairs.iter().filter(|pair| self.has(**pair)).map(|[seed, _]| seed.to_string()).collect();
        let more =
            if known.len() > NAMED { format!(" and {} more", known.len() - NAMED) } else { String::new() };
        (!known.is_empty()).then(|| {
            format!(
                "runs with the seed{} {}{more} were there before the question",
                plural(known.len()),
                known[..known.len().min(NAMED)].join(", ")
            )
        })
    }
}

/// Settles the seeds of a question about pairs, and returns why they make its answer exploratory.
///
/// A number of pairs gets the seeds that the same arms and measures had before, so that the same command asks
/// the same question; or else the next seeds that neither arm has run with.
///
/// # Errors
/// If no seeds are left.
pub fn settle(
    question: &Question,
    arms: &[AskedArm],
    family: &Family,
    before: &SeedsBefore,
) -> Result<(Question, Vec<String>)> {
    let mut settled = question.clone();
    let count = question.seeds.len();
    let [base, other] = question.base_seeds;
    let measures = question.measures();
    // An exploratory answer leaves the question open. What depends on the clock is measured anew, so an
    // answered question is asked again with other seeds.
    let may_repeat = |answer: &Option<String>| answer.is_none() || !question.is_timed();
    let asked = family.earlier.iter().find(|one| {
        one.asks_about(arms, &measures)
            && one.line.reasons.is_empty()
            && !one.line.seeds.is_empty()
            && may_repeat(&one.answer)
    });
    settled.seeds = match (question.choice, asked) {
        (SeedChoice::Named, _) => question.seeds.clone(),
        (SeedChoice::Counted, Some(asked)) => {
            let first = asked.line.seeds.iter().map(|pair| pair[0]).min().unwrap_or(base);
            block(first, count, base, other)?
        }
        (SeedChoice::Counted | SeedChoice::Fresh, _) => {
            let mut first = question.seeds.first().map_or(base, |pair| pair[0]);
            loop {
                let pairs = block(first, count, base, other)?;
                match pairs.iter().rev().find(|pair| before.has(**pair)) {
                    None => break pairs,
                    Some([seed, _]) => first = seed + 1,
                }
            }
        }
    };
    let reasons = match family.first_asked(&settled.hash(arms)) {
        Some(first) => first.line.reasons.clone(),
        None => before.reason(&settled.seeds).into_iter().collect(),
    };
    Ok((settled, reasons))
}

/// Returns `count` pairs of consecutive seeds.
fn block(first: u64, count: usize, base: u64, other: u64) -> Result<Vec<[u64; 2]>> {
    let last = first.checked_add(count as u64).filter(|last| *last <= MAX_SEED);
    let last =
        last.ok_or_else(|| Error::usage(format!("fewer than {count} seeds are left after {first}")))?;
    (first..last).map(|seed| pair_of(seed, base, other)).collect()
}
