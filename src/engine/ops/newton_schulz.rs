//! One Newton–Schulz iteration over a batch of matrices: `x ← a·x + (b·g + c·g²)·x` with `g = x·xᵀ`.
//!
//! Starting from a matrix with singular values of at most 1, iterations bring all of them near 1 and keep the
//! singular vectors: each becomes `a·s + b·s³ + c·s⁵`. If there are more rows than columns, PyTorch's
//! `torch.optim.Muon` transposes the matrix. Here the same polynomial multiplies from the right,
//! `x ← a·x + x·(b·g + c·g²)` with `g = xᵀ·x`, so nothing moves in memory.
//!
//! Products read and write the activation format and sum in the accumulator format. Each is one batched
//! product with its factor and addend, so every intermediate is rounded once.

use super::rank_tables::own;
use crate::device::cpu::matmul::{Matrix, product, product_with_addend};
use crate::device::cpu::{View, ViewMut};
use crate::device::gpu::{Addend, Operand, Product, ProductShape};
use crate::device::{Elem, ProductPrecision};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Op, Precision, Spec};

/// One iteration. Input: x `[matrices, rows, columns]`. Outputs: the next x, and scratch for g and its
/// polynomial, `[matrices, side, side]`, where the side is the smaller of rows and columns.
#[derive(Clone, Debug, PartialEq)]
pub struct NewtonSchulz {
    /// Coefficients a, b and c of the polynomial.
    pub coefficients: [f64; 3],
    /// Number of matrices of every rank, at most the size of the batch; a single number if it is the same for
    /// all.
    pub counts: Vec<usize>,
}

/// Rows, columns, and the smaller of the two.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    columns: usize,
    side: usize,
}

impl Sizes {
    fn from_batch(x: &Spec) -> Self {
        let (rows, columns) = (x.alloc[1], x.alloc[2]);
        Self { rows, columns, side: rows.min(columns) }
    }

    /// True if g is `xᵀ·x`.
    fn is_tall(self) -> bool {
        self.rows > self.columns
    }

    /// FLOPs of one iteration on one matrix, with two per multiply-add.
    fn flops(self) -> f64 {
        let (side, size) = (self.side as f64, (self.rows * self.columns) as f64);
        2.0 * side * (size + side * side + size)
    }
}

impl NewtonSchulz {
    fn run<E: Elem>(&self, cx: &CpuNode<'_>) {
        let sizes = Sizes::from_batch(cx.input_spec(0));
        let Sizes { rows, columns, side } = sizes;
        let [a, b, c] = self.coefficients;
        let (x, count) = (cx.input::<E>(0), *own(&self.counts, cx.comm.rank()));
        let (next, gram, polynomial) = (cx.output::<E>(0), cx.output::<E>(1), cx.output::<E>(2));
        let iterate = |matrix: usize| {
            let (size, square) = (rows * columns, side * side);
            let x = Matrix::rows(View::from_slice(x.slice(matrix * size, size)), columns);
            let next = Matrix::rows(ViewMut::from_slice(next.slice(matrix * size, size)), columns);
            let [gram, polynomial] =
                [gram, polynomial].map(|to| ViewMut::from_slice(to.slice(matrix * square, square)));
            let to = |view| Matrix::rows(view, side);
            let (left, right) = if sizes.is_tall() { (x.t(), x) } else { (x, x.t()) };
            product(cx.pool, (side, side, rows.max(columns)), left, right, to(gram), false);
            let g = Matrix::rows(written(gram), side);
            product_with_addend(cx.pool, (side, side, side), c, (g, g), (b, g), to(polynomial));
            let p = Matrix::rows(written(polynomial), side);
            let factors = if sizes.is_tall() { (x, p) } else { (p, x) };
            product_with_addend(cx.pool, (rows, columns, side), 1.0, factors, (a, x), next);
        };
        if count < cx.pool.threads() {
            (0..count).for_each(iterate);
        } else {
            // Both ways give the same bits: a product is cut by its shape alone.
            cx.pool.run(count, iterate);
        }
    }
}

/// Returns a readable view of what an earlier product has written.
fn written<E: Elem>(to: ViewMut<'_, E>) -> View<'_, E> {
    View::from_slice(to.slice(0, to.len()))
}

impl Op for NewtonSchulz {
    fn name(&self) -> &'static str {
        "newton_schulz"
    }

    fn attributes(&self) -> String {
        let counts: Vec<String> = self.counts.iter().map(ToString::to_string).collect();
        let [a, b, c] = self.coefficients;
        format!("polynomial={a},{b},{c} matrices={}", counts.join(","))
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x] = inputs else { return Err("takes x".into()) };
        if x.alloc.len() != 3 || self.counts.iter().any(|&count| count > x.alloc[0]) {
            return Err("x must be [matrices, rows, columns], with all matrices that a rank owns".into());
        }
        let side = Sizes::from_batch(x).side;
        let square = Spec::new([x.alloc[0], side, side], x.dtype);
        Ok(vec![x.clone(), square.clone(), square])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let count = inputs[0].alloc[0] as f64;
        // Every product reads its factors and its addend.
        let bytes =
            3 * inputs[0].bytes() + outputs[0].bytes() + 3 * outputs[1].bytes() + 2 * outputs[2].bytes();
        Cost { product_flops: count * Sizes::from_batch(&inputs[0]).flops(), bytes: bytes as f64 }
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => self.run::<E>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (spec, count) = (cx.input_spec(0), *own(&self.counts, cx.queue.rank()));
        let sizes = Sizes::from_batch(spec);
        let Sizes { rows, columns, side } = sizes;
        if count == 0 {
            return Ok(());
        }
        let [a, b, c] = self.coefficients.map(|coefficient| coefficient as f32);
        let (x, [next, gram, polynomial]) = (cx.input(0), [0, 1, 2].map(|i| cx.output(i)));
        let multiply = |(m, n, k), (a, b): (Operand, Operand), c, factor, addend: Option<Addend>| {
            let shape = ProductShape {
                batch: Some(count),
                m,
                n,
                k,
                a_transposed: a.transposed,
                b_transposed: b.transposed,
                inputs: [spec.dtype; 2],
                output: spec.dtype,
                accumulate: addend.is_some(),
                precision: ProductPrecision::Native,
            };
            cx.queue.product(&Product { factor, addend, ..Product::new(shape, a.address, b.address, c) })
        };
        let (plain, transposed) = (Operand::plain, Operand::transposed);
        let factors = if sizes.is_tall() { (transposed(x), plain(x)) } else { (plain(x), transposed(x)) };
        multiply((side, side, rows.max(columns)), factors, gram, 1.0, None)?;
        let addend = Some(Addend { address: gram, factor: b });
        multiply((side, side, side), (plain(gram), plain(gram)), polynomial, c, addend)?;
        let (p, x_factor) = (plain(polynomial), plain(x));
        let factors = if sizes.is_tall() { (x_factor, p) } else { (p, x_factor) };
        multiply((rows, columns, side), factors, next, 1.0, Some(Addend { address: x, factor: a }))
    }

    fn cases(precision: Precision) -> Cases {
        let case = |name: &str, shape: [usize; 3], counts: Vec<usize>, coefficients: [f64; 3]| {
            // A Frobenius norm of 1.5 puts the largest singular values where every term of the polynomial
            // counts.
            let std = 1.5 / ((shape[1] * shape[2]) as f64).sqrt();
            let x = (Spec::new(shape, precision.act_dtype), Fill::Normal(0.0, std));
            let op = NewtonSchulz { coefficients, counts };
            Case::new(name, op.clone(), vec![x], move |i| reference(&i[0], &op))
                .without_gradient()
                .depth(shape[1].max(shape[2]))
        };
        Cases::Own(vec![
            case("wide", [4, 48, 80], vec![4], [3.4445, -4.775, 2.0315]),
            case("tall", [1, 96, 40], vec![1], [3.4445, -4.775, 2.0315]),
            case("odd", [2, 33, 17], vec![2], [1.875, -1.25, 0.375]),
        ])
    }
}

/// Computes the iteration by loops over each matrix.
fn reference(x: &Array, op: &NewtonSchulz) -> Vec<Array> {
    let (rows, columns) = (x.shape[1], x.shape[2]);
    let [a, b, c] = op.coefficients;
    let mut next = Array::zeros(&x.shape);
    for matrix in 0..op.counts[0] {
        let x = &x.data[matrix * rows * columns..][..rows * columns];
        let at = |i: usize, j: usize| x[i * columns + j];
        let gram = |i: usize, j: usize| (0..columns).map(|k| at(i, k) * at(j, k)).sum::<f64>();
        let g: Vec<f64> = (0..rows * rows).map(|ij| gram(ij / rows, ij % rows)).collect();
        let square = |i: usize, j: usize| (0..rows).map(|k| g[i * rows + k] * g[k * rows + j]).sum::<f64>();
        let p: Vec<f64> = (0..rows * rows).map(|ij| b * g[ij] + c * square(ij / rows, ij % rows)).collect();
        for (ij, next) in next.data[matrix * rows * columns..][..rows * columns].iter_mut().enumerate() {
            let (i, j) = (ij / columns, ij % columns);
            *next = a * at(i, j) + (0..rows).map(|k| p[i * rows + k] * at(k, j)).sum::<f64>();
        }
    }
    vec![next, Array::zeros(&[0]), Array::zeros(&[0])]
}
