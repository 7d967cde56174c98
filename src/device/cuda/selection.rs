//! Chooses the fastest algorithm of a product by timing those that the library proposes.

use super::algorithms::Algorithm;
use super::cublaslt::{Cublaslt, Layout, check};
use super::driver::Event;
use super::kernels::Kernels;
use super::memory::{Allocator, DeviceBuffer};
use super::stream::Stream;
use crate::device::DType;
use crate::device::gpu::{Arg, Grid, Kernel, Operand, Product, ProductShape};
use crate::error::Result;
use cudarc::cublaslt::sys::cublasStatus_t;
use std::sync::Arc;

/// Timed runs of a candidate, after one to warm up.
const RUNS: usize = 6;

/// The parts of a GPU that timing needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bench<'a> {
    pub(super) stream: &'a Stream,
    pub(super) kernels: &'a Kernels,
    pub(super) allocator: &'a Arc<Allocator>,
}

/// Returns the fastest algorithm among those that give the same bits twice; our own kernel if there is none.
///
/// # Errors
/// When the driver reports an error.
pub(super) fn fastest(
    library: &Cublaslt,
    layout: &Layout,
    shape: &ProductShape,
    matrices: &mut Matrices<'_>,
) -> Result<Algorithm> {
    let candidates = library.candidates(layout)?;
    let product = matrices.product(shape)?;
    let stream = matrices.bench.stream;
    let mut timed = Vec::new();
    for candidate in &candidates {
        let run = || library.multiply(stream, &product, layout, &candidate.algo);
        if run() != cublasStatus_t::CUBLAS_STATUS_SUCCESS {
            continue;
        }
        let (start, end) = &matrices.events;
        stream.record(start, false)?;
        for _ in 0..RUNS {
            check(run(), "time a product")?;
        }
        stream.record(end, false)?;
        end.wait()?;
        timed.push((end.since(start)? / RUNS as f32, candidate));
    }
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (milliseconds, candidate) in timed {
        let mut sums = [0u64; 2];
        for sum in &mut sums {
            matrices.clear_result(shape)?;
            check(library.multiply(stream, &product, layout, &candidate.algo), "check a product")?;
            *sum = matrices.checksum(shape)?;
        }
        if sums[0] == sums[1] {
            let words = candidate.algo.data;
            return Ok(Algorithm::new(&words, candidate.workspaceSize, milliseconds * 1e3));
        }
    }
    Ok(Algorithm::plain())
}

/// Size of the pattern that fills the factors, in bytes.
const PATTERN: usize = 1 << 22;

/// Random matrices to time products on: products of zeros would run faster.
#[derive(Debug)]
pub(super) struct Matrices<'a> {
    bench: Bench<'a>,
    numbers: DeviceBuffer,
    result: DeviceBuffer,
    sum: DeviceBuffer,
    events: (Event, Event),
}

impl<'a> Matrices<'a> {
    pub(super) fn new(bench: Bench<'a>) -> Result<Self> {
        Ok(Self {
            bench,
            numbers: bench.allocator.allocate(0)?,
            result: bench.allocator.allocate(0)?,
            sum: bench.allocator.allocate(8)?,
            events: (Event::new()?, Event::new()?),
        })
    }

    /// Returns a product of a shape on random numbers, in memory that is large enough.
    fn product(&mut self, shape: &ProductShape) -> Result<Product> {
        let align = |bytes: usize| bytes.next_multiple_of(256);
        let a = align(shape.m * shape.k * shape.input.size());
        let b = align(shape.k * shape.n * shape.input.size());
        let c = align(shape.m * shape.n * shape.output.size());
        if self.numbers.len() < a + b {
            self.numbers = self.bench.allocator.allocate(a + b)?;
        }
        if self.result.len() < c {
            self.result = self.bench.allocator.allocate(c)?;
        }
        randomize(self.bench.stream, &self.numbers, shape.input)?;
        self.clear_result(shape)?;
        let operand = |address, transposed| Operand { address, transposed };
        Ok(Product {
            m: shape.m,
            n: shape.n,
            k: shape.k,
            a: operand(self.numbers.address(), shape.a_transposed),
            b: operand(self.numbers.address() + a as u64, shape.b_transposed),
            c: self.result.address(),
            input: shape.input,
            output: shape.output,
            accumulate: shape.accumulate,
            precision: shape.precision,
        })
    }

    fn clear_result(&self, shape: &ProductShape) -> Result<()> {
        self.bench.stream.fill(self.result.address(), 0, shape.m * shape.n * shape.output.size())
    }

    fn checksum(&self, shape: &ProductShape) -> Result<u64> {
        self.bench.stream.fill(self.sum.address(), 0, 8)?;
        let words = shape.m * shape.n * shape.output.size() / 4;
        let args = [self.result.address().into(), self.sum.address().into(), Arg::U64(words as u64)];
        let Bench { stream, kernels, .. } = self.bench;
        kernels.launch(stream, Kernel::new("checksum", "checksum"), Grid::new(1024, 256), &args)?;
        let mut bytes = [0; 8];
        self.sum.read(0, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Fills memory with random numbers of a format: a pattern that repeats.
pub(super) fn randomize(stream: &Stream, memory: &DeviceBuffer, format: DType) -> Result<()> {
    let pattern = pattern(format);
    let mut filled = pattern.len().min(memory.len());
    memory.write(0, &pattern[..filled])?;
    while filled < memory.len() {
        let more = filled.min(memory.len() - filled);
        stream.copy(memory.address() + filled as u64, memory.address(), more)?;
        filled += more;
    }
    Ok(())
}

/// Returns numbers between -1 and 1 in a format, from a generator with a fixed seed.
fn pattern(dtype: DType) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let count = PATTERN / dtype.size();
    match dtype {
        DType::Bf16 => (0..count).flat_map(|_| half::bf16::from_f32(next()).to_le_bytes()).collect(),
        _ => (0..count).flat_map(|_| next().to_le_bytes()).collect(),
    }
}
