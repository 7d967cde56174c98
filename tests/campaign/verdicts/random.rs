//! Random numbers of simulations, and differences of real runs.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::f64::consts::{SQRT_2, TAU};
use std::path::Path;

/// Standard normal numbers from a seed (Box and Muller, "A Note on the Generation of Random Normal Deviates",
/// 1958).
pub struct Normals {
    rng: ChaCha8Rng,
    second: Option<f64>,
}

impl Normals {
    pub fn from_seed(seed: u64) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(seed), second: None }
    }

    /// Returns a uniform number in (0, 1).
    fn uniform(&mut self) -> f64 {
        ((self.rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Returns a uniform whole number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.uniform() * n as f64) as usize
    }

    pub fn draw(&mut self) -> f64 {
        if let Some(second) = self.second.take() {
            return second;
        }
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        let (sin, cos) = (TAU * self.uniform()).sin_cos();
        self.second = Some(radius * sin);
        radius * cos
    }
}

/// Validation losses of the two sides of a pair of real runs.
struct Pair {
    baseline: f64,
    candidate: f64,
}

/// The pairs of a set of `tests/compare/paired-differences.csv`.
fn real_pairs(set: &str) -> Vec<Pair> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compare/paired-differences.csv");
    let mut reader = csv::Reader::from_path(path).unwrap();
    let rows = reader.deserialize::<std::collections::HashMap<String, String>>().map(Result::unwrap);
    let number = |text: &str| text.parse::<f64>().unwrap();
    let pairs: Vec<Pair> = rows
        .filter(|row| row["set"] == set)
        .map(|row| {
            let pair = Pair {
                baseline: number(&row["baseline_val_loss"]),
                candidate: number(&row["candidate_val_loss"]),
            };
            let difference = number(&row["difference"]);
            assert!((pair.candidate - pair.baseline - difference).abs() < 1e-6, "{row:?}");
            pair
        })
        .collect();
    assert!(pairs.len() >= 64, "{set}: {} pairs", pairs.len());
    pairs
}

/// Where the differences of a simulated comparison come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// Normal, of deviation 1.
    Normal,
    /// Real differences of a set, less their mean, in units of their deviation: the mean of a finite pool is
    /// not 0, even where the true one is.
    Centered(&'static str),
    /// Real differences of a set, as they are, in nats.
    Real(&'static str),
    /// Differences of real runs of one recipe under disjoint seeds, in units of their deviation: any two
    /// runs of the pool.
    Disjoint,
}

impl Source {
    /// Returns comparisons of a thing with itself: a function from numbers of pairs to differences.
    pub fn open(self, seed: u64) -> impl FnMut(usize) -> Vec<f64> {
        let mut normals = Normals::from_seed(seed);
        let pool: Vec<f64> = match self {
            Self::Normal => Vec::new(),
            Self::Centered(set) => standardized(differences(set)),
            Self::Disjoint => {
                let runs = real_pairs("disjoint");
                standardized(runs.iter().flat_map(|pair| [pair.baseline, pair.candidate]).collect())
            }
            Self::Real(set) => differences(set),
        };
        move |pairs| match self {
            Self::Normal => (0..pairs).map(|_| normals.draw()).collect(),
            Self::Centered(_) | Self::Real(_) => {
                (0..pairs).map(|_| pool[normals.below(pool.len())]).collect()
            }
            Self::Disjoint => {
                // The first of a shuffled deck: no run is drawn twice.
                let mut deck = pool.clone();
                (0..2 * pairs).for_each(|k| deck.swap(k, k + normals.below(pool.len() - k)));
                (0..pairs).map(|k| (deck[2 * k] - deck[2 * k + 1]) / SQRT_2).collect()
            }
        }
    }
}

fn differences(set: &str) -> Vec<f64> {
    real_pairs(set).iter().map(|pair| pair.candidate - pair.baseline).collect()
}

fn standardized(values: Vec<f64>) -> Vec<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    // Of the pool itself, from which the differences are drawn: divided by n.
    let deviation = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
    values.iter().map(|x| (x - mean) / deviation).collect()
}

#[test]
fn drawn_numbers_are_what_they_are_called() {
    let mut normals = Normals::from_seed(1);
    let drawn: Vec<f64> = (0..20_000).map(|_| normals.draw()).collect();
    let share = |below: f64| drawn.iter().filter(|x| **x < below).count() as f64 / 2e4;
    assert!((share(0.0) - 0.5).abs() < 0.011 && (share(-1.645) - 0.05).abs() < 0.005);
    for source in [Source::Centered("qk_norm"), Source::Centered("lr")] {
        let pool = source.open(1)(20_000);
        let mean = xrun::statistics::mean(&pool);
        let deviation = xrun::statistics::variance(&pool).sqrt();
        assert!(mean.abs() < 0.03 && (deviation - 1.0).abs() < 0.05, "{source:?}: {mean} ± {deviation}");
    }
    assert!(Source::Disjoint.open(1)(44).iter().all(|x| *x != 0.0), "different runs");
}
