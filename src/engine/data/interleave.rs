//! Decides which source of a mixture each sequence of a training run is taken from.
//!
//! After any number of sequences, the count of each source is less than one away from its share, which is
//! the sum of its weights so far. The rule solves the chairman assignment problem (Tijdeman 1980, "The
//! chairman assignment problem"): the k-th sequence of a source may come once its share exceeds k - 1 and
//! must come before its share exceeds k, and of the sources that may come, the one that must come first
//! does. These windows of time always leave room for one sequence of each, because the weights of every
//! position add up to 1, and the earliest deadline meets all deadlines that can be met (Liu and Layland
//! 1973). The weights may change at any position.
//!
//! The choice depends on the weights and the position alone, so a run that resumes replays it from the
//! beginning, 10^8 positions in a second or two.

use crate::error::{Error, Result};

/// Fixed-point unit of weights: the weights of a stage add up to this.
const UNIT: u64 = 1 << 32;

/// A position that is never reached.
const NEVER: u64 = u64::MAX - 1;

/// Stands for the deadline of a sequence that may not come yet. One that may come is preferred, even if it
/// never must.
const NOT_YET: u64 = u64::MAX;

/// The weights of a mixture's sources from a sequence on.
#[derive(Clone, Debug, PartialEq)]
pub struct MixtureStage {
    /// Number of the first sequence that they hold for, counted over all steps.
    pub from: u64,
    /// A weight for each source, in the order of their names; their sum does not matter.
    pub weights: Vec<f64>,
}

/// Returns how many of the first `sequences` of a run each source gives, to within one.
///
/// # Errors
/// If the stages are not weights of `sources` sources.
pub fn mixture_shares(sources: usize, stages: &[MixtureStage], sequences: u64) -> Result<Vec<f64>> {
    let interleave = Interleave::new(sources, stages)?;
    Ok((0..sources).map(|source| interleave.share(source, sequences)).collect())
}

/// A stage with weights in units of 1 / [`UNIT`].
#[derive(Clone, Debug)]
struct Stage {
    from: u64,
    weights: Vec<u64>,
    /// The share of each source in the sequences before `from`, in units.
    before: Vec<u128>,
}

/// Walks through the sequences of a run and chooses a source for each.
#[derive(Clone, Debug)]
pub(super) struct Interleave {
    stages: Vec<Stage>,
    /// For each source, the position from which on its next sequence may come.
    releases: Vec<u64>,
    /// For each source, the position at which its next sequence must have come.
    deadlines: Vec<u64>,
    /// For each source, true if its share does not exceed at the deadline what is due there.
    exact: Vec<bool>,
    /// For each source, the number of sequences it gave.
    taken: Vec<u64>,
    /// Number of sequences that were assigned.
    at: u64,
}

impl Interleave {
    /// Starts at the first sequence of a run over `sources` sources.
    ///
    /// # Errors
    /// If there is no stage from the first sequence on, if stages are not in order, or if a stage has not one
    /// finite weight of at least 0 for each source and one above 0.
    pub fn new(sources: usize, stages: &[MixtureStage]) -> Result<Self> {
        let wrong = || Error::usage("the weights of a mixture are not one number from 0 on for each source");
        if stages.first().is_none_or(|first| first.from != 0) || !stages.is_sorted_by(|a, b| a.from < b.from)
        {
            return Err(Error::usage("the stages of a mixture do not begin at the first step, in order"));
        }
        let mut found: Vec<Stage> = Vec::new();
        for MixtureStage { from, weights } in stages {
            let is_weight = |weight: &f64| weight.is_finite() && *weight >= 0.0;
            if weights.len() != sources || !weights.iter().all(is_weight) {
                return Err(wrong());
            }
            let before = match found.last() {
                None => vec![0; sources],
                Some(last) => {
                    let length = u128::from(from - last.from);
                    last.before.iter().zip(&last.weights).map(|(b, w)| b + length * u128::from(*w)).collect()
                }
            };
            found.push(Stage { from: *from, weights: in_units(weights).ok_or_else(wrong)?, before });
        }
        let [releases, deadlines, taken] = [(); 3].map(|()| vec![0; sources]);
        let exact = vec![false; sources];
        let mut interleave = Self { stages: found, releases, deadlines, exact, taken, at: 0 };
        interleave.restart();
        Ok(interleave)
    }

    fn restart(&mut self) {
        self.at = 0;
        for source in 0..self.taken.len() {
            self.taken[source] = 0;
            self.releases[source] = self.reached(source, 1).0;
            (self.deadlines[source], self.exact[source]) = self.reached(source, u128::from(UNIT));
        }
    }

    /// Goes to sequence `number`: forward from where it is, or from the beginning.
    pub fn go_to(&mut self, number: u64) {
        if number < self.at {
            self.restart();
        }
        while self.at < number {
            self.assign();
        }
    }

    /// Assigns the next sequence. Returns its source, and how many sequences the source gave before.
    pub fn assign(&mut self) -> (usize, u64) {
        self.at += 1;
        let at = self.at;
        let both = self.releases.iter().zip(&self.deadlines);
        let candidates = both.map(|(release, deadline)| if *release <= at { *deadline } else { NOT_YET });
        let earliest = candidates.clone().min().unwrap_or(NOT_YET);
        // Of equal deadlines, the first source has precedence.
        let chosen = candidates.take_while(|deadline| *deadline != earliest).count();
        let number = self.taken[chosen];
        let units = |count: u64| u128::from(count) * u128::from(UNIT);
        // The next sequence may come once the share exceeds what was due at this deadline.
        self.releases[chosen] = match self.exact[chosen] {
            true => self.reached(chosen, units(number + 1) + 1).0,
            false => earliest,
        };
        (self.deadlines[chosen], self.exact[chosen]) = self.reached(chosen, units(number + 2));
        self.taken[chosen] = number + 1;
        (chosen, number)
    }

    /// Returns how many sequences a source gives in the first `sequences` of the run, to within one.
    fn share(&self, source: usize, sequences: u64) -> f64 {
        let last = self.stages.partition_point(|stage| stage.from < sequences).saturating_sub(1);
        let Stage { from, weights, before } = &self.stages[last];
        let units =
            before[source] + u128::from(sequences.saturating_sub(*from)) * u128::from(weights[source]);
        units as f64 / UNIT as f64
    }

    /// Returns the position, counted from 1, at which the share of a source reaches `units`, and true if it
    /// is `units` there and not more.
    fn reached(&self, source: usize, units: u128) -> (u64, bool) {
        // The last stage before which the source has less.
        let stage = self.stages.partition_point(|stage| stage.before[source] < units) - 1;
        let Stage { from, weights, before } = &self.stages[stage];
        let (missing, weight) = (units - before[source], weights[source]);
        if weight == 0 {
            return (NEVER, false);
        }
        // A division of 64 bits is several times faster than one of 128.
        let (more, rest) = match u64::try_from(missing) {
            Ok(missing) => (missing / weight, missing % weight),
            Err(_) => {
                let (missing, weight) = (missing, u128::from(weight));
                (u64::try_from(missing / weight).unwrap_or(NEVER), (missing % weight) as u64)
            }
        };
        (from.saturating_add(more).saturating_add(u64::from(rest > 0)).min(NEVER), rest == 0)
    }
}

/// Returns weights in units that add up to [`UNIT`]: each rounded down, and what is left goes to those that
/// lost most. `None` if all are 0.
fn in_units(weights: &[f64]) -> Option<Vec<u64>> {
    let largest = weights.iter().copied().fold(0.0, f64::max);
    // Divided first, so that the sum is finite.
    let sum: f64 = weights.iter().map(|weight| weight / largest).sum();
    if largest == 0.0 {
        return None;
    }
    let exact: Vec<f64> = weights.iter().map(|weight| weight / largest / sum * UNIT as f64).collect();
    let mut units: Vec<u64> = exact.iter().map(|exact| exact.floor() as u64).collect();
    let mut order: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] > 0.0).collect();
    order.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let mut missing = UNIT.saturating_sub(units.iter().sum());
    for &source in order.iter().cycle() {
        if missing == 0 {
            break;
        }
        units[source] += 1;
        missing -= 1;
    }
    let mut excess = units.iter().sum::<u64>().saturating_sub(UNIT);
    for unit in &mut units {
        let less = excess.min(*unit);
        *unit -= less;
        excess -= less;
    }
    Some(units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stage(from: u64, weights: &[f64]) -> MixtureStage {
        MixtureStage { from, weights: weights.to_vec() }
    }

    fn order(stages: &[MixtureStage], count: usize) -> Vec<usize> {
        let mut interleave = Interleave::new(stages[0].weights.len(), stages).unwrap();
        (0..count).map(|_| interleave.assign().0).collect()
    }

    /// Resumed runs rely on the order, so it must never change.
    #[test]
    fn the_order_never_changes() {
        let order: String = order(&[stage(0, &[5.0, 3.0, 2.0]), stage(20, &[1.0, 0.0, 9.0])], 40)
            .iter()
            .map(|source| char::from(b'a' + *source as u8))
            .collect();
        insta::assert_snapshot!(order, @"abacababacabacababacccccccccacccccccccac");
    }

    #[test]
    fn wrong_stages_are_refused() {
        for stages in [
            vec![],
            vec![stage(1, &[1.0])],
            vec![stage(0, &[1.0]), stage(0, &[1.0])],
            vec![stage(0, &[1.0, 1.0])],
            vec![stage(0, &[0.0])],
            vec![stage(0, &[-1.0])],
            vec![stage(0, &[f64::NAN])],
            vec![stage(0, &[f64::INFINITY])],
        ] {
            assert!(Interleave::new(1, &stages).is_err(), "{stages:?}");
        }
        assert_eq!(in_units(&[f64::MAX, f64::MAX]).unwrap(), [UNIT / 2; 2]);
        assert_eq!(in_units(&[f64::MIN_POSITIVE, 1e300]).unwrap().iter().sum::<u64>(), UNIT);
    }

    /// A weight of one unit in 2^32, and shares beyond 64 bits of units.
    #[test]
    fn positions_far_from_the_beginning_are_reached() {
        let interleave = Interleave::new(2, &[stage(0, &[1.0, (UNIT - 1) as f64])]).unwrap();
        assert_eq!(interleave.reached(0, u128::from(UNIT)), (UNIT, true));
        assert_eq!(interleave.reached(0, u128::from(UNIT) << 20), (UNIT << 20, true));
        assert_eq!(interleave.reached(0, u128::from(UNIT) << 40).0, NEVER);
    }

    proptest! {
        /// At every position, each source is less than one sequence from its share, its sequences are
        /// numbered one by one, and a walk that begins anywhere agrees.
        #[test]
        fn shares_are_met_at_every_position(
            weights in proptest::collection::vec(proptest::collection::vec(0.001f64..1.0, 12), 1..4),
            exponent in 0.0f64..3.0,
            sources in 1usize..13,
            lengths in proptest::collection::vec(1u64..400, 3),
            left_out in proptest::collection::vec(proptest::collection::vec(proptest::bool::ANY, 12), 3),
        ) {
            let mut from = 0;
            let mut stages = Vec::new();
            for (weights, length) in weights.iter().zip(&lengths) {
                let mut weights: Vec<f64> = weights[..sources].iter().map(|w| w.powf(exponent)).collect();
                // All but the first may be left out of a stage.
                let left_out = &left_out[stages.len()];
                weights.iter_mut().zip(left_out).skip(1).filter(|(_, out)| **out).for_each(|(w, _)| *w = 0.0);
                stages.push(MixtureStage { from, weights });
                from += length;
            }
            let mut interleave = Interleave::new(sources, &stages).unwrap();
            let mut shares = vec![0.0; sources];
            let mut counts = vec![0u64; sources];
            let mut seen = Vec::new();
            for at in 0..1000u64 {
                let stage = &stages[stages.partition_point(|stage| stage.from <= at) - 1];
                let sum: f64 = stage.weights.iter().sum();
                shares.iter_mut().zip(&stage.weights).for_each(|(share, weight)| *share += weight / sum);
                let (source, number) = interleave.assign();
                prop_assert_eq!(number, counts[source]);
                counts[source] += 1;
                for (source, (share, count)) in shares.iter().zip(&counts).enumerate() {
                    prop_assert!((share - *count as f64).abs() < 1.0 + 1e-6, "{at}: {shares:?} {counts:?}");
                    prop_assert!((interleave.share(source, at + 1) - share).abs() < 1e-5);
                }
                seen.push((source, number));
            }
            for start in [999, 1, 500, 0] {
                interleave.go_to(start);
                prop_assert_eq!(interleave.assign(), seen[start as usize]);
            }
        }
    }

    /// Times the replay of 10^8 positions:
    /// `cargo test --release -p xrun-engine -- --ignored --nocapture replay`.
    #[test]
    #[ignore = "a measurement"]
    fn replay_of_a_hundred_million_positions() {
        let weights: Vec<f64> = (0..12).map(|i| 0.6f64.powi(i)).collect();
        let mut interleave = Interleave::new(12, &[stage(0, &weights)]).unwrap();
        let began = std::time::Instant::now();
        interleave.go_to(100_000_000);
        println!("{:.2} s", began.elapsed().as_secs_f64());
    }
}
