//! Chooses the fastest algorithm for a product by timing the ones the library proposes.

use super::algorithms::Algorithm;
use super::cublaslt::{Cublaslt, Layout, check};
use super::kernels::Kernels;
use super::memory::{Allocator, DeviceBuffer};
use super::monitor::SETTLING;
use super::stream::Stream;
use crate::device::gpu::{Arg, Grid, Kernel, Product, ProductShape};
use crate::device::{DType, E4m3, Elem};
use crate::error::Result;
use crate::liveness::report_progress;
use cudarc::cublaslt::sys::{cublasLtMatmulHeuristicResult_t, cublasStatus_t};
use std::sync::Arc;

/// Timed runs of a candidate, after one warm-up run.
const RUNS: usize = 6;

/// Candidates timed under load are at most this factor slower than the fastest candidate ...
const MAX_SLOWDOWN: f32 = 1.15;

/// ... and there are at most this many.
const MAX_UNDER_LOAD: usize = 6;

/// How long a candidate is timed under load in each of [`ROUNDS`], in milliseconds.
const MEASURED_MS: f32 = 120.0;

/// Rounds over all candidates under load. A candidate's mean over rounds cancels slow changes of the GPU's
/// temperature.
const ROUNDS: usize = 2;

/// To replace the algorithm in use, another must be faster by this factor under load, because the bits change
/// with it.
const MIN_SPEEDUP: f32 = 1.005;

/// How the algorithm for a product is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    /// No timing: the library's first proposal.
    None,
    /// A few runs of each candidate at the GPU's current clock: milliseconds per product.
    Quick,
    /// At the clock that the GPU sustains: seconds per product. At the power limit the clock depends on the
    /// energy of a product, so the fastest in a few runs need not be the fastest in a training step.
    UnderLoad,
}

/// The parts of a GPU that timing needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bench<'a> {
    pub(super) stream: &'a Stream,
    pub(super) kernels: &'a Kernels,
    pub(super) allocator: &'a Arc<Allocator>,
}

/// Returns the fastest algorithm that gives the same bits twice; our own kernel if there is none. The
/// algorithm's time is 0 if it was not timed. Under load, the algorithm `in_use` stays unless another is
/// clearly faster.
///
/// # Errors
/// If the driver reports an error.
pub(super) fn fastest(
    library: &Cublaslt,
    layout: &Layout,
    shape: &ProductShape,
    matrices: &mut Matrices<'_>,
    timing: Timing,
    in_use: Option<&Algorithm>,
) -> Result<Algorithm> {
    let trial = Trial { library, layout, shape, product: matrices.product(shape)?, matrices };
    if timing == Timing::None {
        return trial.first_proposed();
    }
    let candidates = trial.candidates_by_time()?;
    let Some(&(quickest, _)) = candidates.first() else { return Ok(Algorithm::plain()) };
    let mut same_bits = Vec::new();
    for (milliseconds, candidate) in candidates {
        let is_rival = timing == Timing::UnderLoad
            && same_bits.len() < MAX_UNDER_LOAD
            && milliseconds <= quickest * MAX_SLOWDOWN;
        if !same_bits.is_empty() && !is_rival {
            break;
        }
        if trial.is_deterministic(&candidate)? {
            same_bits.push((milliseconds, candidate));
        }
    }
    if timing == Timing::UnderLoad {
        trial.time_under_load(&mut same_bits)?;
    }
    if let Some(words) = in_use.and_then(Algorithm::words) {
        let stays = same_bits.iter_mut().find(|(_, candidate)| candidate.algo.data == words);
        stays.into_iter().for_each(|(milliseconds, _)| *milliseconds /= MIN_SPEEDUP);
    }
    let fastest = same_bits.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    Ok(fastest.map_or_else(Algorithm::plain, |(milliseconds, candidate)| Algorithm {
        under_load: timing == Timing::UnderLoad,
        ..Algorithm::new(&candidate.algo.data, candidate.workspaceSize, milliseconds * 1e3)
    }))
}

/// A product on which algorithms are tried.
struct Trial<'a, 'b> {
    library: &'a Cublaslt,
    layout: &'a Layout,
    shape: &'a ProductShape,
    product: Product,
    matrices: &'a Matrices<'b>,
}

/// An algorithm that the library proposes, and its time in milliseconds.
type Timed = (f32, cublasLtMatmulHeuristicResult_t);

impl Trial<'_, '_> {
    /// Returns the first proposed algorithm that runs and gives the same bits twice.
    fn first_proposed(&self) -> Result<Algorithm> {
        for candidate in self.library.candidates(self.layout)? {
            if self.runs(&candidate)? && self.is_deterministic(&candidate)? {
                return Ok(Algorithm::new(&candidate.algo.data, candidate.workspaceSize, 0.0));
            }
        }
        Ok(Algorithm::plain())
    }

    /// Runs an algorithm once.
    fn run(&self, candidate: &cublasLtMatmulHeuristicResult_t) -> Result<cublasStatus_t> {
        self.library.multiply(self.matrices.bench.stream, &self.product, self.layout, &candidate.algo)
    }

    /// Runs an algorithm once; returns true if the library accepted it.
    fn runs(&self, candidate: &cublasLtMatmulHeuristicResult_t) -> Result<bool> {
        Ok(self.run(candidate)? == cublasStatus_t::CUBLAS_STATUS_SUCCESS)
    }

    /// Returns the algorithms that run, sorted by the mean time of [`RUNS`] runs, fastest first.
    fn candidates_by_time(&self) -> Result<Vec<Timed>> {
        let mut timed = Vec::new();
        for candidate in self.library.candidates(self.layout)? {
            if self.runs(&candidate)? {
                timed.push((self.milliseconds(&candidate, RUNS)?, candidate));
            }
        }
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(timed)
    }

    /// Returns true if an algorithm gives the same bits in two runs.
    fn is_deterministic(&self, candidate: &cublasLtMatmulHeuristicResult_t) -> Result<bool> {
        let mut sums = [0u64; 2];
        for sum in &mut sums {
            self.matrices.clear_result(self.shape)?;
            check(self.run(candidate)?, "check a product")?;
            *sum = self.matrices.checksum(self.shape)?;
        }
        Ok(sums[0] == sums[1])
    }

    /// Replaces the times of candidates by times under load: means over rounds in which the candidates take
    /// turns.
    fn time_under_load(&self, candidates: &mut [Timed]) -> Result<()> {
        let quick: Vec<f32> = candidates.iter().map(|c| c.0.max(1e-3)).collect();
        candidates.iter_mut().for_each(|c| c.0 = 0.0);
        for _ in 0..ROUNDS {
            for (candidate, quick) in candidates.iter_mut().zip(&quick) {
                let runs = |milliseconds: f32| (milliseconds / quick).ceil().max(1.0) as usize;
                self.milliseconds(&candidate.1, runs(SETTLING.as_secs_f32() * 1e3))?;
                candidate.0 += self.milliseconds(&candidate.1, runs(MEASURED_MS))? / ROUNDS as f32;
                report_progress();
            }
        }
        Ok(())
    }

    /// Returns the mean time of `runs` runs, in milliseconds.
    fn milliseconds(&self, candidate: &cublasLtMatmulHeuristicResult_t, runs: usize) -> Result<f32> {
        let run_all = || (0..runs).try_for_each(|_| check(self.run(candidate)?, "time a product"));
        Ok(self.matrices.bench.stream.milliseconds(run_all)? / runs as f32)
    }
}

/// Size of the pattern that fills the factors, in bytes.
const PATTERN: usize = 1 << 22;

/// Random matrices for timing products; products of zeros would run faster.
#[derive(Debug)]
pub(super) struct Matrices<'a> {
    bench: Bench<'a>,
    numbers: DeviceBuffer,
    result: DeviceBuffer,
    sum: DeviceBuffer,
    /// The number 1 in fp32.
    scale: DeviceBuffer,
}

impl<'a> Matrices<'a> {
    pub(super) fn new(bench: Bench<'a>) -> Result<Self> {
        let scale = bench.allocator.allocate(4)?;
        scale.write(0, &1f32.to_le_bytes())?;
        Ok(Self {
            bench,
            scale,
            numbers: bench.allocator.allocate(0)?,
            result: bench.allocator.allocate(0)?,
            sum: bench.allocator.allocate(8)?,
        })
    }

    /// Returns a product of a shape on random numbers, in memory large enough for it.
    fn product(&mut self, shape: &ProductShape) -> Result<Product> {
        let align = |bytes: usize| bytes.next_multiple_of(256);
        let batch = shape.batch.unwrap_or(1);
        let a = align(batch * shape.m * shape.k * shape.inputs[0].size());
        let b = align(batch * shape.k * shape.n * shape.inputs[1].size());
        let c = align(result_bytes(shape));
        if self.numbers.len() < a + b {
            self.numbers = self.bench.allocator.allocate(a + b)?;
        }
        if self.result.len() < c {
            self.result = self.bench.allocator.allocate(c)?;
        }
        randomize(self.bench.stream, &self.numbers, shape.inputs[0])?;
        self.clear_result(shape)?;
        let (first, second) = (self.numbers.address(), self.numbers.address() + a as u64);
        let scales = shape.inputs[0].is_fp8().then(|| [self.scale.address(); 2]);
        Ok(Product { scales, ..Product::new(*shape, first, second, self.result.address()) })
    }

    fn clear_result(&self, shape: &ProductShape) -> Result<()> {
        self.bench.stream.fill(self.result.address(), 0, result_bytes(shape))
    }

    fn checksum(&self, shape: &ProductShape) -> Result<u64> {
        self.bench.stream.fill(self.sum.address(), 0, 8)?;
        let words = result_bytes(shape) / 4;
        let args = [self.result.address().into(), self.sum.address().into(), Arg::U64(words as u64)];
        let Bench { stream, kernels, .. } = self.bench;
        kernels.launch(stream, (Kernel::new("checksum", "checksum"), Grid::new(1024, 256), args))?;
        let mut bytes = [0; 8];
        self.sum.read(0, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Returns the size in bytes of the result of a product or a batch.
fn result_bytes(shape: &ProductShape) -> usize {
    shape.batch.unwrap_or(1) * shape.m * shape.n * shape.output.size()
}

/// Fills memory with random numbers of a format, as a repeating pattern.
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
        // The bits of a number of one 8-bit format are a number of the other with half or double its
        // exponent.
        DType::E4m3 | DType::E5m2 => (0..count).map(|_| E4m3::down(next()).0).collect(),
        _ => (0..count).flat_map(|_| next().to_le_bytes()).collect(),
    }
}
