//! The power of a sequential design, by simulating its own decisions.
//!
//! With a true difference, the path of t depends on the deviation too, so there is no integral over one
//! variable as for the boundary. A simulation with fixed numbers counts everything that ends a comparison:
//! the boundary, *no difference that matters*, and futility.

use super::{Direction, FIRST_LOOK, SequentialDesign, SequentialStop, Verdict};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::f64::consts::TAU;

/// Simulated comparisons for a figure that is shown; the standard error of a probability of 0.9 is 0.003.
pub const PATHS: usize = 10_000;

/// Simulated comparisons for a number of pairs that is recommended.
pub const MANY_PATHS: usize = 40_000;

/// The standard error of a probability of 0.9 from [`MANY_PATHS`].
pub const ERROR: f64 = 0.0015;

/// Seed of the simulation, so that equal plans are equal and a larger maximum is not worse by chance.
const SEED: u64 = 1979;

/// What a design decides, as shares of simulated comparisons.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequentialPower {
    /// A verdict in the direction of the true difference.
    pub seen: f64,
    /// *No difference that matters*.
    pub no_difference: f64,
}

impl SequentialDesign {
    /// Returns how often normal differences end each way. `effect` is the true difference and `min_effect`
    /// the smallest one that matters, both divided by the deviation. `paths` comparisons are simulated.
    pub fn power(&self, effect: f64, min_effect: f64, paths: usize) -> SequentialPower {
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let ends: Vec<Verdict> =
            (0..paths).map(|_| self.simulate(&mut rng, effect.abs(), min_effect).verdict).collect();
        let share =
            |verdict: Verdict| ends.iter().filter(|end| **end == verdict).count() as f64 / ends.len() as f64;
        SequentialPower { seen: share(Verdict::Better), no_difference: share(Verdict::NoDifference) }
    }

    /// Runs a comparison on differences of deviation 1. Each path begins at its own place in the stream of
    /// random numbers, so designs of any length see the same first differences.
    fn simulate(&self, rng: &mut ChaCha8Rng, effect: f64, min_effect: f64) -> SequentialStop {
        let mut path = ChaCha8Rng::seed_from_u64(rng.next_u64());
        let (mut mean, mut squares) = (0.0, 0.0);
        let mut spare = None;
        let mut pairs = 0;
        loop {
            pairs += 1;
            let difference = effect + normal(&mut path, &mut spare);
            // Welford, "Note on a method for calculating corrected sums of squares and products", 1962.
            let off = difference - mean;
            mean += off / pairs as f64;
            squares += off * (difference - mean);
            if pairs < FIRST_LOOK {
                continue;
            }
            let look = self.look_at(pairs, mean, (squares / (pairs as f64 - 1.0)).sqrt());
            let stop = look.and_then(|look| self.stop(pairs, &look, min_effect, Direction::HigherIsBetter));
            if let Some(stop) = stop {
                return stop;
            }
        }
    }
}

/// Returns a standard normal number (Box and Muller, "A Note on the Generation of Random Normal Deviates",
/// 1958).
fn normal(rng: &mut ChaCha8Rng, spare: &mut Option<f64>) -> f64 {
    if let Some(second) = spare.take() {
        return second;
    }
    let mut uniform = || ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let radius = (-2.0 * uniform().ln()).sqrt();
    let (sin, cos) = (TAU * uniform()).sin_cos();
    *spare = Some(radius * sin);
    radius * cos
}
