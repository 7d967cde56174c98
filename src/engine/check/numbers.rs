//! The numbers of cases: a pure function of a name, a stream and a position.

use crate::device::DType;
use crate::device::philox::philox;
use crate::ir::{Fill, Spec};

/// The random numbers of a name. Its hash is taken once, not for every number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    key: u32,
}

impl Numbers {
    pub(super) fn new(name: &str) -> Self {
        let digest = blake3::hash(name.as_bytes());
        let [first, second, third, ..] = *digest.as_bytes();
        Self { key: u32::from_le_bytes([first, second, third, 0]) }
    }

    /// Returns 128 random bits for a stream and a position.
    pub(super) fn bits(self, stream: usize, at: usize) -> [u32; 4] {
        philox([at as u32, stream as u32, 0, 0], [self.key, 0x9d2c_5680])
    }

    /// Returns a number with mean 0 and standard deviation 1 from a distribution close to normal: the sum of
    /// four uniform numbers.
    pub(super) fn near_normal(self, stream: usize, at: usize) -> f64 {
        let sum: f64 = self.bits(stream, at).map(|bits| f64::from(bits) / 2f64.powi(32)).iter().sum();
        (sum - 2.0) * 3f64.sqrt()
    }
}

/// Returns the values of one tensor in a case, already rounded to a format.
pub(super) fn values(name: &str, stream: usize, spec: &Spec, fill: &Fill, format: DType) -> Vec<f64> {
    let unit = |bits: u32| (f64::from(bits) + 0.5) / 4_294_967_296.0;
    let numbers = Numbers::new(name);
    (0..spec.logical_elements())
        .map(|at| {
            let bits = numbers.bits(stream, at);
            let value = match fill {
                // Box–Muller transform.
                Fill::Normal(mean, std) => {
                    let radius = (-2.0 * unit(bits[0]).ln()).sqrt();
                    mean + std * radius * (std::f64::consts::TAU * unit(bits[1])).cos()
                }
                Fill::Uniform(low, high) => low + (high - low) * unit(bits[0]),
                Fill::Below(bound) => f64::from(bits[0] % bound),
                Fill::Values(values) => values[at % values.len()],
            };
            format.round(value)
        })
        .collect()
}
