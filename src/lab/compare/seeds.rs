//! Parses and checks the seeds of pairs.

use crate::error::{Error, Result};
use crate::recipe::Recipe;
use std::collections::BTreeSet;

/// The largest seed, which is the largest TOML integer.
pub(super) const MAX_SEED: u64 = i64::MAX as u64;

/// The most pairs in a comparison.
pub const MAX_PAIRS: usize = 10_000;

/// Seeds as the user gave them.
#[derive(Clone, Debug, PartialEq)]
pub enum Seeds {
    /// A number of seeds, starting at the recipe's.
    Count(usize),
    /// The seeds themselves.
    Named(Vec<u64>),
}

impl Seeds {
    /// Parses a number of seeds, or several seeds separated by commas.
    ///
    /// # Errors
    /// A usage error if the text is neither, a seed repeats, or the number is out of range.
    pub fn parse(text: &str) -> Result<Self> {
        let number = |part: &str| part.trim().parse::<u64>().ok().filter(|seed| *seed <= MAX_SEED);
        let numbers: Option<Vec<u64>> = text.split(',').map(number).collect();
        let wrong = |why: String| Err(Error::usage(format!("--seeds {text}{why}")));
        match numbers.as_deref() {
            None => wrong(" is not a count, such as 8, or a list, such as 3,5,8".to_owned()),
            Some([count]) if (1..=MAX_PAIRS as u64).contains(count) => Ok(Self::Count(*count as usize)),
            Some([_]) => wrong(format!(": a comparison has from 1 to {MAX_PAIRS} pairs")),
            Some(seeds) => match seeds.iter().enumerate().find(|(at, seed)| seeds[..*at].contains(seed)) {
                Some((_, twice)) => wrong(format!(": {twice} is named twice")),
                None => Ok(Self::Named(seeds.to_vec())),
            },
        }
    }

    /// Returns the seeds of each pair. `base` and `other` are the recipes' own seeds; if they differ, every
    /// pair keeps their difference.
    ///
    /// # Errors
    /// A usage error if a seed exceeds the largest, or if two pairs share a seed, since pairs are judged as
    /// independent.
    pub fn pairs(&self, [base, other]: [u64; 2]) -> Result<Vec<[u64; 2]>> {
        let seeds: Vec<u64> = match self {
            Self::Count(count) => (0..*count as u64).map(|i| base.saturating_add(i)).collect(),
            Self::Named(seeds) => seeds.clone(),
        };
        let pairs: Vec<[u64; 2]> =
            seeds.iter().map(|&seed| pair_of(seed, base, other)).collect::<Result<_>>()?;
        let baselines: BTreeSet<u64> = seeds.into_iter().collect();
        match pairs.iter().find(|[own, candidate]| own != candidate && baselines.contains(candidate)) {
            None => Ok(pairs),
            Some([_, shared]) => Err(Error::usage(format!(
                "the seed {shared} would be in two of the {} pairs, which are judged as independent: the \
                 candidate's training.seed is {other} and the baseline's is {base}; move it further away, \
                 for example to training.seed={}",
                pairs.len(),
                base.saturating_add(1_000_000).min(MAX_SEED)
            ))),
        }
    }
}

/// Returns the seeds of a pair from the baseline's `seed` and both recipes' own seeds, `base` and `other`.
///
/// # Errors
/// A usage error if a seed exceeds the largest or is below 0.
pub fn pair_of(seed: u64, base: u64, other: u64) -> Result<[u64; 2]> {
    let candidate = i128::from(seed) + i128::from(other) - i128::from(base);
    let candidate = u64::try_from(candidate).ok().filter(|candidate| (*candidate).max(seed) <= MAX_SEED);
    candidate.map(|candidate| [seed, candidate]).ok_or_else(|| {
        Error::usage(format!(
            "a pair with the seed {seed} has no seed for the candidate: its training.seed is {other} and the \
             baseline's is {base}, and seeds are from 0 to {MAX_SEED}"
        ))
    })
}

/// Returns the seeds that a recipe fixes, as `seeds.order = 7`, although pairs should vary them.
///
/// # Errors
/// A usage error if it fixes every seed that training draws from.
pub fn fixed_seeds(label: &str, recipe: &Recipe) -> Result<Vec<String>> {
    let values = recipe.values();
    let drawn = [
        ("seeds.init", values.seeds.init, true),
        ("seeds.order", values.seeds.order, true),
        ("seeds.dropout", values.seeds.dropout, values.model.dropout > 0.0),
    ];
    let drawn: Vec<_> = drawn.into_iter().filter(|(.., is_drawn)| *is_drawn).collect();
    let is_fixed = |(_, seed, _): &&(&str, Option<u64>, bool)| seed.is_some();
    if drawn.iter().filter(is_fixed).count() == drawn.len() {
        let keys: Vec<&str> = drawn.iter().map(|(key, ..)| *key).collect();
        return Err(Error::usage(format!(
            "{label} sets {}, so every pair would have the same runs; leave one of them to training.seed",
            keys.join(", ")
        )));
    }
    Ok(drawn.iter().filter_map(|(key, seed, _)| Some(format!("{key} = {}", (*seed)?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(text: &str, bases: [u64; 2]) -> Result<Vec<[u64; 2]>> {
        Seeds::parse(text)?.pairs(bases)
    }

    #[test]
    fn seeds_are_counted_from_the_recipes_or_named() {
        assert_eq!(seeds("3", [4, 4]).unwrap(), [[4, 4], [5, 5], [6, 6]]);
        assert_eq!(seeds("3,5,8", [4, 4]).unwrap(), [[3, 3], [5, 5], [8, 8]]);
        // A candidate with its own seed: the arms have disjoint seeds.
        assert_eq!(seeds("2", [4, 104]).unwrap(), [[4, 104], [5, 105]]);
        assert_eq!(seeds("9,8", [4, 1]).unwrap(), [[9, 6], [8, 5]]);
    }

    #[test]
    fn no_seed_is_in_two_pairs() {
        assert_eq!(seeds("3", [1, 4]).unwrap(), [[1, 4], [2, 5], [3, 6]]);
        let error = seeds("4", [1, 4]).unwrap_err();
        assert!(error.message().contains("the seed 4 would be in two of the 4 pairs"), "{error}");
        assert!(seeds("3,9,5", [1, 3]).is_err(), "5 is the candidate's beside 3");
    }

    #[test]
    fn malformed_seeds_are_rejected() {
        let said = |text: &str, bases| seeds(text, bases).unwrap_err().message().to_owned();
        assert!(said("0", [0, 0]).contains("from 1 to 10000 pairs"));
        assert!(said("10001", [0, 0]).contains("from 1 to 10000 pairs"));
        for text in ["x", "", "-1", "1,,2", "9223372036854775808,1", "1.5"] {
            assert!(said(text, [0, 0]).contains("such as 8"), "{text}");
        }
        assert!(said("3,5,3", [0, 0]).contains("3 is named twice"));
        assert!(said("2", [MAX_SEED, MAX_SEED]).contains("no seed for the candidate"));
        assert!(said("2,9", [4, 1]).contains("no seed for the candidate"));
    }
}
