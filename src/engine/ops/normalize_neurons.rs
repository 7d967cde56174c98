//! NorMuon's normalization of neurons: each row of an orthogonalized direction is divided by the root of an
//! average of its mean squares.
//!
//! Li et al., "NorMuon: Making Muon more efficient and scalable" (2025), arXiv 2510.05491. Every matrix keeps
//! its Frobenius norm, as in the authors' code (<https://github.com/zichongli5/NorMuon>).

use super::matrices::{Matrices, MatrixPlace};
use super::muon_momentum::case_matrices;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// Added to the root of an average, so that a row of zeros stays zero.
const EPS: f64 = 1e-10;

/// The smallest sum of squares that a matrix is divided by.
const SMALLEST: f64 = 1e-30;

/// Independent sums within a row on the CPU, combined in a fixed order.
const LANES: usize = 16;

/// Rows of a kernel block, one per warp.
const ROWS_PER_BLOCK: usize = 8;

/// `average ← lerp(average, mean of the row's squares, 1 − momentum)` and
/// `y = x / (√average + EPS)` for every row, then times one factor per matrix that gives y the norm of x.
///
/// Inputs: x `[matrices, rows, columns]`, and bad `[1]` (u32; nonzero if the loss or the gradient norm is not
/// finite: then averages stay as they are). Outputs: averages `[slots]`, updated in place, of which the first
/// element of every row is used; y like x; and scratch `[matrices, rows, 2]`, the mean square of a row and the
/// number to multiply it by. If ranks own matrices, the rank's own ones are the first.
#[derive(Clone, Debug, PartialEq)]
pub struct NormalizeNeurons {
    /// The fraction of an average that a step keeps.
    pub momentum: f64,
    /// Number of columns whose mean is taken; others are padding.
    pub columns: usize,
    /// The matrices.
    pub matrices: Matrices,
    /// Formats of averages and directions.
    pub precision: Precision,
}

impl NormalizeNeurons {
    fn run<E: Elem>(&self, cx: &CpuNode<'_>) {
        type Acc<E> = <E as Elem>::Acc;
        let places = self.matrices.for_rank(cx.comm.rank());
        let (rows, columns) = (self.matrices.rows, self.matrices.columns);
        let (x, stays) = (cx.input::<E>(0), cx.input_u32(1)[0] != 0);
        let (averages, y) = (cx.output::<Acc<E>>(0), cx.output::<E>(1));
        let scratch = cx.output::<Acc<E>>(2);
        let count = Acc::<E>::from_f64(self.columns as f64);
        let [keep, take] = [self.momentum, 1.0 - self.momentum].map(Acc::<E>::from_f64);
        let eps = Acc::<E>::from_f64(EPS);
        cx.pool.run(
            places.len() * rows,
            #[inline(always)]
            |row| {
                let MatrixPlace { slot, .. } = places[row / rows];
                let mut sums = [Acc::<E>::ZERO; LANES];
                for part in x.slice(row * columns, columns).chunks(LANES) {
                    for (sum, x) in sums.iter_mut().zip(part) {
                        *sum = x.up().fma(x.up(), *sum);
                    }
                }
                let mean = sums.into_iter().sum::<Acc<E>>() / count;
                let average = &mut averages.slice(slot + row % rows * columns, 1)[0];
                let next = keep.fma(*average, take * mean);
                if !stays {
                    *average = next;
                }
                scratch.store(row * 2, &[mean, Acc::<E>::ONE / (next.sqrt() + eps)]);
            },
        );
        let factor = |matrix: usize| {
            let of_rows = scratch.slice(matrix * rows * 2, rows * 2);
            let pairs = || of_rows.chunks_exact(2).map(|pair| (pair[0].to_f64(), pair[1].to_f64()));
            let before: f64 = pairs().map(|(mean, _)| mean).sum();
            let after: f64 = pairs().map(|(mean, divided)| mean * divided * divided).sum();
            Acc::<E>::from_f64((before / after.max(SMALLEST)).sqrt())
        };
        let factors: Vec<Acc<E>> = (0..places.len()).map(factor).collect();
        cx.pool.run(
            places.len() * rows,
            #[inline(always)]
            |row| {
                let scale = scratch.slice(row * 2, 2)[1] * factors[row / rows];
                let of_row = y.slice(row * columns, columns);
                for (y, x) in of_row.iter_mut().zip(x.slice(row * columns, columns)) {
                    *y = E::down(x.up() * scale);
                }
            },
        );
    }
}

impl Op for NormalizeNeurons {
    fn name(&self) -> &'static str {
        "normalize_neurons"
    }

    fn attributes(&self) -> String {
        format!("momentum={} columns={} matrices={}", self.momentum, self.columns, self.matrices)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, bad] = inputs else { return Err("takes x and bad".into()) };
        let Precision { act_dtype, master } = self.precision;
        if x.dtype != act_dtype || x.alloc != self.matrices.batch() || bad.dtype != DType::U32 {
            return Err("x must be a batch of the matrices in the activation format, and bad u32".into());
        }
        if self.columns == 0 || self.columns > self.matrices.columns {
            return Err("the mean must be over some columns of the matrices".into());
        }
        let [matrices, rows, _] = self.matrices.batch();
        Ok(vec![
            Spec::new([self.matrices.slot_len], master),
            x.clone(),
            Spec::new([matrices, rows, 2], master),
        ])
    }

    /// Reads the direction twice and writes it; an average per row is read and written.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let bytes = 3 * inputs[0].bytes() + 3 * outputs[2].bytes();
        Cost { product_flops: 0.0, bytes: bytes as f64 }
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 0
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(self.precision.act_dtype, E => self.run::<E>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let rank = cx.queue.rank();
        let count = self.matrices.for_rank(rank).len();
        if count == 0 {
            return Ok(());
        }
        let kernel = |entry| {
            let kernel = Kernel::new("normalize_neurons", entry)
                .with("T", self.precision.act_dtype)
                .with("MATRIX_COLUMNS", self.matrices.columns)
                .with("ROWS_PER_BLOCK", ROWS_PER_BLOCK);
            self.matrices.define_in(kernel, rank)
        };
        let [x, bad] = [0, 1].map(|i| cx.input(i).into());
        let [averages, y, scratch] = [0, 1, 2].map(|i| cx.output(i).into());
        let [keep, take] = [self.momentum, 1.0 - self.momentum].map(|weight| Arg::F32(weight as f32));
        let (rows, columns) = (Arg::U32(self.matrices.rows as u32), Arg::F32(self.columns as f32));
        let (averages_kernel, row) = kernel("average_rows");
        let blocks = [self.matrices.rows.div_ceil(ROWS_PER_BLOCK) as u32, count as u32, 1];
        let grid = Grid { blocks, ..self.matrices.grid(count) };
        let args = [x, bad, averages, scratch, rows, columns, keep, take, Arg::F32(EPS as f32), row];
        cx.queue.launch(averages_kernel, grid, &args)?;
        let size = Arg::U64(self.matrices.size() as u64);
        let args = [x, scratch, y, size, rows, Arg::F32(SMALLEST as f32)];
        cx.queue.launch(kernel("divide_rows").0, self.matrices.grid(count), &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |name: &str, momentum: f64, columns: usize, bad: f64| {
            let matrices = case_matrices();
            let op = NormalizeNeurons { momentum, columns, matrices, precision };
            let inputs = vec![
                (Spec::new(op.matrices.batch(), precision.act_dtype), Fill::Normal(0.0, 0.1)),
                (Spec::new([1], DType::U32), Fill::Values(vec![bad])),
            ];
            Case::new(name, op.clone(), inputs, move |i| reference(i, &op))
                .without_gradient()
                .outputs(vec![(Mode::Add, Fill::Uniform(0.002, 0.02))])
                .depth(96)
        };
        Cases::Own(vec![
            case("three matrices", 0.95, 96, 0.0),
            case("a short average", 0.5, 96, 0.0),
            case("padded columns", 0.95, 80, 0.0),
            case("after a bad step averages stay", 0.95, 96, 1.0),
        ])
    }
}

/// Computes the formula in f64, one row at a time.
fn reference(i: &[Array], op: &NormalizeNeurons) -> Vec<Array> {
    let (columns, size) = (op.matrices.columns, op.matrices.size());
    let mut averages = i[2].clone();
    let mut y = i[0].clone();
    let squares = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
    for (place, y) in op.matrices.for_rank(0).iter().zip(y.data.chunks_exact_mut(size)) {
        let before = squares(y);
        for (r, y) in y.chunks_exact_mut(columns).enumerate() {
            let average = &mut averages.data[place.slot + r * columns];
            let next = op.momentum * *average + (1.0 - op.momentum) * squares(y) / op.columns as f64;
            y.iter_mut().for_each(|y| *y /= next.sqrt() + EPS);
            if i[1].data[0] == 0.0 {
                *average = next;
            }
        }
        let factor = (before / squares(y)).sqrt();
        y.iter_mut().for_each(|y| *y *= factor);
    }
    vec![averages, y, Array::zeros(&[0])]
}
