//! What PyTorch computed, and how far something is from it.

use safetensors::{Dtype, SafeTensors};
use std::path::Path;

/// One of the files that `scripts/parity.py` writes.
pub struct Fixture(Vec<u8>);

impl Fixture {
    /// The file of that name.
    pub fn open(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/parity/fixtures").join(name);
        Self(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    /// The names of all tensors.
    pub fn names(&self) -> Vec<String> {
        self.tensors().names().into_iter().map(str::to_string).collect()
    }

    /// A tensor, widened.
    pub fn get(&self, name: &str) -> Vec<f64> {
        let tensors = self.tensors();
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let bytes = tensor.data();
        match tensor.dtype() {
            Dtype::F64 => bytes.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
            Dtype::F32 => bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
            Dtype::BF16 => {
                bytes.as_chunks().0.iter().map(|&b| half::bf16::from_le_bytes(b).to_f64()).collect()
            }
            other => panic!("{name} is {other:?}"),
        }
    }

    /// A tensor of one number.
    pub fn number(&self, name: &str) -> f64 {
        self.get(name)[0]
    }

    /// What f64 gives for a tensor of the model.
    pub fn truth(&self, name: &str) -> Vec<f64> {
        let rest = self.get(&format!("rest.{name}"));
        self.get(&format!("fp32.{name}")).iter().zip(rest).map(|(value, rest)| value + rest).collect()
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).unwrap_or_else(|e| panic!("a fixture does not parse: {e}"))
    }
}

/// `‖x‖`.
pub fn norm(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// `‖x - to‖ / ‖to‖`.
pub fn relative(x: &[f64], to: &[f64]) -> f64 {
    assert_eq!(x.len(), to.len());
    norm(&x.iter().zip(to).map(|(a, b)| a - b).collect::<Vec<_>>()) / norm(to)
}

/// `x·y / (‖x‖·‖y‖)`.
pub fn cosine(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len());
    x.iter().zip(y).map(|(a, b)| a * b).sum::<f64>() / (norm(x) * norm(y))
}

/// Mean and 99th percentile of `|x - to|` over the root mean square of `to`.
pub fn spread(x: &[f64], to: &[f64]) -> (f64, f64) {
    assert_eq!(x.len(), to.len());
    let rms = norm(to) / (to.len() as f64).sqrt();
    let mut apart: Vec<f64> = x.iter().zip(to).map(|(a, b)| (a - b).abs() / rms).collect();
    apart.sort_by(f64::total_cmp);
    let p99 = apart[(0.99 * apart.len() as f64).ceil() as usize - 1];
    (apart.iter().sum::<f64>() / apart.len() as f64, p99)
}
