//! Random numbers of simulations.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Standard normal numbers from a seed (Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958).
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
        let (sin, cos) = (std::f64::consts::TAU * self.uniform()).sin_cos();
        self.second = Some(radius * sin);
        radius * cos
    }
}
