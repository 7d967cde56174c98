//! Layer norm (Ba, Kiros and Hinton, 2016), alone and fused with the residual addition before it.
//!
//! `y = (x − mean(x)) / √(variance(x) + eps) ⊙ w + b`, where the variance divides by the number of elements.
//! This is the formula of
//! [`torch.nn.LayerNorm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html). As in
//! `rms_norm`, only the input is kept for the backward pass: mean and variance are cheaper to recompute than
//! to read.

use super::affine::Affine;
use super::lanes::{dot, sum};
use super::row_norm::RowNorm;
use crate::device::gpu::Arg;
use crate::device::{DType, Elem, Real};

/// `(x[N, d], w[d], b[d]) → y[N, d]`. Weight and bias have the accumulator format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f64,
    /// The vectors that the norm has.
    pub affine: Affine,
}

/// The constants of a norm over rows of one width.
pub(super) struct Norm<A> {
    eps: A,
    /// Elements of a row without padding.
    len: usize,
    count: A,
}

impl<A: Real> Norm<A> {
    /// Replaces a row by `x̂` and returns `s`. Padding stays zero.
    #[inline(always)]
    fn standardize(&self, x: &mut [A]) -> A {
        let x = &mut x[..self.len];
        let mean = sum(x) / self.count;
        x.iter_mut().for_each(|x| *x -= mean);
        let s = A::ONE / (dot(x, x) / self.count + self.eps).sqrt();
        x.iter_mut().for_each(|x| *x *= s);
        s
    }
}

impl RowNorm for LayerNorm {
    const NAME: &'static str = "layer_norm";
    const RESIDUAL: (&'static str, &'static str) = ("layer_norm", "residual_layer_norm");
    const VECTORS: usize = 2;

    /// The gradient's kernel has fewer elements per thread than the forward kernel and sums a row in another
    /// order, so mean and variance have other bits.
    const EMITS: bool = false;

    type Constants<A: Real> = Norm<A>;

    fn eps(self) -> f64 {
        self.eps
    }

    fn affine(self) -> Affine {
        self.affine
    }

    fn constants<A: Real>(self, len: usize) -> Norm<A> {
        Norm { eps: A::from_f64(self.eps), len, count: A::from_f64(len as f64) }
    }

    /// Replaces `x` by `x̂`.
    #[inline(always)]
    fn normalize<E: Elem>(norm: &Norm<E::Acc>, x: &mut [E::Acc], [w, b]: [&[E::Acc]; 2], y: &mut [E]) {
        norm.standardize(x);
        for (((y, x), w), b) in y.iter_mut().zip(x).zip(w).zip(b) {
            *y = E::down(x.fma(*w, *b));
        }
    }

    /// With `s = 1 / √(variance + eps)`, `x̂ = (x − mean)·s` and `g = dy ⊙ w`:
    /// `dx = s·(g − mean(g) − x̂·mean(g ⊙ x̂))`, `dw = Σ_rows dy ⊙ x̂` and `db = Σ_rows dy`.
    #[inline(always)]
    fn gradient<E: Elem>(
        norm: &Norm<E::Acc>,
        x: &mut [E::Acc],
        w: &[E::Acc],
        dy: &mut [E::Acc],
        [dw, db]: [&mut [E::Acc]; 2],
        _y: Option<&mut [E]>,
    ) {
        let s = norm.standardize(x);
        for ((((dy, x), w), dw), db) in dy.iter_mut().zip(&*x).zip(w).zip(dw).zip(db) {
            *dw = dy.fma(*x, *dw);
            *db += *dy;
            *dy *= *w;
        }
        let (dy, x) = (&dy[..norm.len], &mut x[..norm.len]);
        let (mean, pull) = (sum(dy) / norm.count, dot(dy, x) / norm.count);
        for (x, g) in x.iter_mut().zip(dy) {
            *x = s * (*g - mean - *x * pull);
        }
    }

    fn gradient_kernel(residual: bool, _emits: bool) -> &'static str {
        if residual { "layer_norm_residual_grad" } else { "layer_norm_grad" }
    }

    /// A thread also holds two sums per element of a row; with 32 elements per thread they spill.
    fn gradient_elements(_dtype: DType) -> usize {
        16
    }

    /// Begins with the number of elements of a row.
    fn number_args(self, len: usize) -> Vec<Arg> {
        vec![len.into(), Arg::F32((1.0 / len as f64) as f32), Arg::F32(self.eps as f32)]
    }

    fn examples() -> Vec<Self> {
        [Affine::WeightAndBias, Affine::Weight, Affine::None]
            .map(|affine| Self { eps: 1e-5, affine })
            .to_vec()
    }

    /// Computes the formula in the documentation of torch.nn.LayerNorm:
    /// `(x − E[x]) / √(Var[x] + eps) · weight + bias`, with the biased estimate of the variance
    /// (`torch.var(input, correction=0)`).
    fn reference(self, row: &mut [f64], w: &[f64], b: &[f64]) {
        let count = row.len() as f64;
        let mean = row.iter().sum::<f64>() / count;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        for ((x, w), b) in row.iter_mut().zip(w).zip(b) {
            *x = (*x - mean) / (variance + self.eps).sqrt() * w + b;
        }
    }
}
