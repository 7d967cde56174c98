//! Measured memory bandwidth and product throughput of a GPU: the reference for op budgets.

use super::gpu::Gpu;
use super::memory::DeviceBuffer;
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
    /// The same for 8-bit floats; `None` if it was not measured.
    pub fp8_flops: Option<f64>,
}

impl Limits {
    /// Returns the FLOP/s of a large product of numbers of a format.
    pub fn product_flops(&self, input: DType) -> f64 {
        self.fp8_flops.filter(|_| input.is_fp8()).unwrap_or(self.flops)
    }
}

/// Number of bytes to copy: several times the size of any cache.
const COPY_BYTES: usize = 1 << 30;

/// Rows, columns and depth of the product.
const SIDE: usize = 8192;

/// Number of timed runs, after one warm-up run.
const RUNS: usize = 5;

/// Measures a GPU, with products in the given format and precision, and of 8-bit floats if they are wanted.
///
/// # Errors
/// If the GPU lacks the memory, or the driver reports an error.
pub fn measure(gpu: &Gpu, format: DType, precision: ProductPrecision, fp8: bool) -> Result<Limits> {
    gpu.make_current()?;
    let memory = gpu.allocate(2 * COPY_BYTES)?;
    let (first, second) = (memory.address(), memory.address() + COPY_BYTES as u64);
    super::selection::randomize(&gpu.stream, &memory, format)?;
    let copied = seconds(gpu, || gpu.copy(second, first, COPY_BYTES))?;
    Ok(Limits {
        bandwidth: 2.0 * COPY_BYTES as f64 / copied,
        flops: product_flops(gpu, &memory, [format; 2], precision)?,
        fp8_flops: fp8.then(|| product_flops(gpu, &memory, [DType::E4m3, format], precision)).transpose()?,
    })
}

/// Returns the FLOP/s of a large product whose factors and result have the given formats.
fn product_flops(
    gpu: &Gpu,
    memory: &DeviceBuffer,
    [input, output]: [DType; 2],
    precision: ProductPrecision,
) -> Result<f64> {
    let shape = ProductShape {
        batch: None,
        m: SIDE,
        n: SIDE,
        k: SIDE,
        a_transposed: false,
        b_transposed: true,
        inputs: [input; 2],
        output,
        accumulate: false,
        precision,
    };
    let scale = gpu.allocate(size_of::<f32>())?;
    scale.write(0, &1f32.to_le_bytes())?;
    let bytes = (SIDE * SIDE * input.size()) as u64;
    let (first, second) = (memory.address(), memory.address() + COPY_BYTES as u64);
    let product = Product {
        scales: input.is_fp8().then(|| [scale.address(); 2]),
        ..Product::new(shape, first, first + bytes, second)
    };
    gpu.prepare(&Requests { products: BTreeSet::from([shape]), ..Requests::default() }, &|_| {})?;
    super::selection::randomize(&gpu.stream, memory, input)?;
    let taken = seconds(gpu, || gpu.product(&product))?;
    Ok(2.0 * (SIDE as f64).powi(3) / taken)
}

/// Returns the mean time of some work, in seconds.
fn seconds(gpu: &Gpu, work: impl Fn() -> Result<()>) -> Result<f64> {
    work()?;
    let milliseconds = gpu.stream.milliseconds(|| (0..RUNS).try_for_each(|_| work()))?;
    Ok(f64::from(milliseconds) / 1e3 / RUNS as f64)
}
