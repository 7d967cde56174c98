//! Measured memory bandwidth and product throughput of a GPU: the reference for op budgets.

use super::gpu::Gpu;
use crate::device::gpu::{Product, ProductShape, Queue, Requests};
use crate::device::{DType, ProductPrecision};
use crate::error::Result;
use std::collections::BTreeSet;

/// The measured limits of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes per second of a large copy; bytes read and bytes written both count.
    pub bandwidth: f64,
    /// FLOP/s of a large product of random numbers.
    pub flops: f64,
}

/// Number of bytes to copy: several times the size of any cache.
const COPY_BYTES: usize = 1 << 30;

/// Rows, columns and depth of the product.
const SIDE: usize = 8192;

/// Number of timed runs, after one warm-up run.
const RUNS: usize = 5;

/// Measures a GPU, with products in the given format and precision.
///
/// # Errors
/// If the GPU lacks the memory, or the driver reports an error.
pub fn measure(gpu: &Gpu, format: DType, precision: ProductPrecision) -> Result<Limits> {
    gpu.make_current()?;
    let memory = gpu.allocate(2 * COPY_BYTES)?;
    let (first, second) = (memory.address(), memory.address() + COPY_BYTES as u64);
    let shape = ProductShape {
        batch: None,
        m: SIDE,
        n: SIDE,
        k: SIDE,
        a_transposed: false,
        b_transposed: true,
        inputs: [format; 2],
        output: format,
        accumulate: false,
        precision,
    };
    let product = Product::new(shape, first, first + (SIDE * SIDE * format.size()) as u64, second);
    gpu.prepare(&Requests { products: BTreeSet::from([shape]), ..Requests::default() }, &|_| {})?;
    super::selection::randomize(&gpu.stream, &memory, format)?;
    let copied = seconds(gpu, || gpu.copy(second, first, COPY_BYTES))?;
    let multiplied = seconds(gpu, || gpu.product(&product))?;
    let operations = 2.0 * (SIDE as f64).powi(3);
    Ok(Limits { bandwidth: 2.0 * COPY_BYTES as f64 / copied, flops: operations / multiplied })
}

/// Returns the mean time of some work, in seconds.
fn seconds(gpu: &Gpu, work: impl Fn() -> Result<()>) -> Result<f64> {
    work()?;
    let milliseconds = gpu.stream.milliseconds(|| (0..RUNS).try_for_each(|_| work()))?;
    Ok(f64::from(milliseconds) / 1e3 / RUNS as f64)
}
