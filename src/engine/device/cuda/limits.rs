//! Measured memory bandwidth and product throughput of a GPU: the reference for op budgets.

use super::gpu::Gpu;
use crate::device::gpu::{Operand, Product, Queue, Requests};
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
    let side = |k: usize, size: usize| k * SIDE * SIDE * size;
    let product = Product {
        batch: None,
        m: SIDE,
        n: SIDE,
        k: SIDE,
        a: Operand::plain(first),
        b: Operand::transposed(first + side(1, format.size()) as u64),
        c: second,
        input: format,
        output: format,
        factor: 1.0,
        addend: None,
        precision,
    };
    gpu.prepare(&Requests { products: BTreeSet::from([product.shape()]), ..Requests::default() }, &|_| {})?;
    super::selection::randomize(gpu.stream(), &memory, format)?;
    let copied = seconds(gpu, || gpu.copy(second, first, COPY_BYTES))?;
    let multiplied = seconds(gpu, || gpu.product(&product))?;
    let operations = 2.0 * (SIDE as f64).powi(3);
    Ok(Limits { bandwidth: 2.0 * COPY_BYTES as f64 / copied, flops: operations / multiplied })
}

/// Returns the mean time of some work, in seconds.
fn seconds(gpu: &Gpu, work: impl Fn() -> Result<()>) -> Result<f64> {
    let (start, end) = (gpu.event()?, gpu.event()?);
    work()?;
    gpu.record(&start, false)?;
    for _ in 0..RUNS {
        work()?;
    }
    gpu.record(&end, false)?;
    end.wait()?;
    Ok(f64::from(end.since(&start)?) / 1e3 / RUNS as f64)
}
