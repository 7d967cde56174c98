//! Root-mean-square norm (Zhang and Sennrich, 2019): `y = x / sqrt(mean(x²) + eps) ⊙ w`, where a constant may
//! be added to `w` as in Gemma, which stores weights less 1.
//!
//! The backward pass needs only the input: the reciprocal root is cheaper to recompute than to read.

use super::affine::Affine;
use super::lanes::dot;
use super::row_norm::RowNorm;
use crate::device::{Elem, Real};

/// `y[N, d] = rms_norm(x[N, d])·(w[d] + offset)`, or `rms_norm(x)` without a weight, which has the
/// accumulator format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f64,
    /// True if the norm has a weight.
    pub weight: bool,
    /// Added to the weight.
    pub weight_offset: f64,
}

impl RmsNorm {
    /// Creates the norm with a weight, or without one.
    pub const fn new(eps: f64, weight: bool) -> Self {
        Self { eps, weight, weight_offset: 0.0 }
    }
}

/// Computes the reciprocal root mean square of a row.
pub(super) struct Root<A> {
    eps: A,
    count: A,
}

impl<A: Real> Root<A> {
    #[inline(always)]
    fn inverse_rms(&self, x: &[A]) -> A {
        A::ONE / (dot(x, x) / self.count + self.eps).sqrt()
    }
}

/// Writes the norm of `x`; `s` is the reciprocal root mean square of `x`.
#[inline(always)]
fn scale<E: Elem>(x: &[E::Acc], s: E::Acc, w: &[E::Acc], y: &mut [E]) {
    for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
        *y = E::down(*x * s * *w);
    }
}

impl RowNorm for RmsNorm {
    const NAME: &'static str = "rms_norm";
    const RESIDUAL: (&'static str, &'static str) = ("residual_norm", "residual_norm");
    const VECTORS: usize = 1;
    const EMITS: bool = true;

    type Constants<A: Real> = Root<A>;

    fn eps(self) -> f64 {
        self.eps
    }

    fn affine(self) -> Affine {
        if self.weight { Affine::Weight } else { Affine::None }
    }

    fn weight_offset(self) -> f64 {
        self.weight_offset
    }

    fn constants<A: Real>(self, len: usize) -> Root<A> {
        Root { eps: A::from_f64(self.eps), count: A::from_f64(len as f64) }
    }

    #[inline(always)]
    fn normalize<E: Elem>(root: &Root<E::Acc>, x: &mut [E::Acc], [w, _]: [&[E::Acc]; 2], y: &mut [E]) {
        scale(x, root.inverse_rms(x), w, y);
    }

    /// With `s = 1 / sqrt(mean(x²) + eps)` and `g = dy ⊙ w`: `dx = s·g - x·s³·mean(g ⊙ x)` and
    /// `dw = Σ_rows dy ⊙ x·s`.
    #[inline(always)]
    fn gradient<E: Elem>(
        root: &Root<E::Acc>,
        x: &mut [E::Acc],
        w: &[E::Acc],
        dy: &mut [E::Acc],
        [dw, _]: [&mut [E::Acc]; 2],
        y: Option<&mut [E]>,
    ) {
        let s = root.inverse_rms(x);
        if let Some(y) = y {
            scale(x, s, w, y);
        }
        for (((dy, x), w), dw) in dy.iter_mut().zip(&*x).zip(w).zip(dw) {
            *dw = dy.fma(*x * s, *dw);
            *dy *= *w;
        }
        let pull = dot(dy, x) / root.count * (s * s * s);
        for (x, g) in x.iter_mut().zip(dy) {
            *x = g.fma(s, -(*x * pull));
        }
    }

    fn gradient_kernel(residual: bool, emits: bool) -> &'static str {
        match (residual, emits) {
            (false, false) => "rms_norm_grad",
            (true, false) => "rms_norm_residual_grad",
            (false, true) => "rms_norm_grad_emitting",
            (true, true) => "rms_norm_residual_grad_emitting",
        }
    }

    fn examples() -> Vec<Self> {
        let weighted = Self::new(1e-6, true);
        vec![weighted, Self::new(1e-6, false), Self { weight_offset: 1.0, ..weighted }]
    }

    fn reference(self, row: &mut [f64], w: &[f64], _b: &[f64]) {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        row.iter_mut()
            .zip(w)
            .for_each(|(x, w)| *x = *x / (mean + self.eps).sqrt() * (w + self.weight_offset));
    }
}
