//! The activation functions of feed-forward layers: values and slopes, for the ops
//! [`Activate`](super::activate::Activate) and [`Gated`](super::gated::Gated). kernels/activation.cuh has the
//! same functions.

use super::erfc::erfc;
use crate::device::Real;
use crate::expression::erfc as plain_erfc;

/// A function of one number, applied to every element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x·σ(x)` with `σ(x) = 1 / (1 + e^-x)` (Elfwing, Uchibe, Doya, 2017).
    Silu,
    /// `x·Φ(x)` with the standard normal distribution `Φ(x) = erfc(-x/√2) / 2` (Hendrycks, Gimpel, 2016).
    Gelu,
    /// `x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`, the approximation of [`Gelu`](Self::Gelu) in the same
    /// paper.
    GeluTanh,
    /// `max(x, 0)`. Its slope at 0 is 0, as in PyTorch.
    Relu,
    /// `max(x, 0)²` (So et al., 2021).
    Relu2,
}

/// The names of an activation in kernels and ops.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    /// The functor in kernels/activation.cuh.
    pub functor: &'static str,
    /// The ops that apply it alone: [`Activate`](super::activate::Activate) and its gradient.
    pub activate: &'static str,
    pub activate_grad: &'static str,
    /// The ops that apply it to a gate: [`Gated`](super::gated::Gated) and its gradient.
    pub gated: &'static str,
    pub gated_grad: &'static str,
}

/// Evaluates an expression with `f` bound to the function of an activation. Each activation gets a loop of
/// its own, which vectorizes.
macro_rules! with_function {
    ($activation:expr, |$f:ident| $body:expr) => {
        match $activation {
            Activation::Silu => with_function!($f = silu, $body),
            Activation::Gelu => with_function!($f = gelu, $body),
            Activation::GeluTanh => with_function!($f = gelu_tanh, $body),
            Activation::Relu => with_function!($f = relu, $body),
            Activation::Relu2 => with_function!($f = relu2, $body),
        }
    };
    ($f:ident = $function:ident, $body:expr) => {{
        let $f = $function;
        $body
    }};
}

impl Activation {
    /// Every function, in the order of declaration.
    pub const ALL: [Self; 5] = [Self::Silu, Self::Gelu, Self::GeluTanh, Self::Relu, Self::Relu2];

    /// Returns the functor in kernels/activation.cuh and the names of the ops that apply the activation.
    pub(super) const fn names(self) -> Names {
        let [functor, alone, alone_grad, gated, gated_grad] = match self {
            Self::Silu => ["Silu", "silu", "silu_grad", "swiglu", "swiglu_grad"],
            Self::Gelu => ["Gelu", "gelu", "gelu_grad", "geglu", "geglu_grad"],
            Self::GeluTanh => ["GeluTanh", "gelu_tanh", "gelu_tanh_grad", "geglu_tanh", "geglu_tanh_grad"],
            Self::Relu => ["Relu", "relu", "relu_grad", "reglu", "reglu_grad"],
            Self::Relu2 => ["Relu2", "relu2", "relu2_grad", "re2glu", "re2glu_grad"],
        };
        Names { functor, activate: alone, activate_grad: alone_grad, gated, gated_grad }
    }

    /// Replaces each number by the function's value.
    #[inline(always)]
    pub(super) fn values<A: Real>(self, x: &mut [A]) {
        with_function!(self, |f| x.iter_mut().for_each(|x| *x = f(*x).0));
    }

    /// Replaces each number by the function's value, bit for bit as [`values`](Self::values) does, and writes
    /// the derivatives into `slopes`.
    #[inline(always)]
    pub(super) fn values_and_slopes<A: Real>(self, x: &mut [A], slopes: &mut [A]) {
        with_function!(self, |f| x.iter_mut().zip(slopes).for_each(|(x, slope)| (*x, *slope) = f(*x)));
    }

    /// Computes the function by plain formulas, for the references of test cases.
    pub(super) fn plain(self, x: f64) -> f64 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Gelu => x * 0.5 * plain_erfc(-x / 2f64.sqrt()),
            Self::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                // (1 + tanh u) / 2, in a form without cancellation.
                x / (1.0 + (-2.0 * inner).exp())
            }
            Self::Relu => x.max(0.0),
            Self::Relu2 => x.max(0.0).powi(2),
        }
    }
}

/// `1 / (1 + e^-x)`. Far from zero it returns 0 or 1, and it is NaN only if `x` is.
#[inline(always)]
fn sigmoid<A: Real>(x: A) -> A {
    A::ONE / (A::ONE + (-x).exp())
}

/// Value and slope `σ(x)·(1 + x·(1 - σ(x)))`.
#[inline(always)]
fn silu<A: Real>(x: A) -> (A, A) {
    let s = sigmoid(x);
    (x * s, s * x.fma(A::ONE - s, A::ONE))
}

/// Value and slope `Φ(x) + x·φ(x)`, with the density `φ(x) = e^(-x²/2) / √(2π)`.
#[inline(always)]
fn gelu<A: Real>(x: A) -> (A, A) {
    let half = A::from_f64(0.5);
    let cumulative = half * erfc(-(x * A::from_f64(std::f64::consts::FRAC_1_SQRT_2)));
    let density = A::from_f64(0.398_942_280_401_432_7) * (-(half * x * x)).exp();
    (x * cumulative, x.fma(density, cumulative))
}

/// Value and slope `s + x·s·(1 - s)·u'`: since `(1 + tanh(u/2)) / 2 = σ(u)`, the value is `x·s` with
/// `s = σ(u)` and `u = x·(a + b·x²)`, `a = 2·√(2/π)`, `b = 0.044715·a`.
#[inline(always)]
fn gelu_tanh<A: Real>(x: A) -> (A, A) {
    const LINEAR: f64 = 1.595_769_121_605_730_7;
    const CUBIC: f64 = 0.044_715 * LINEAR;
    let square = x * x;
    let s = sigmoid(x * square.fma(A::from_f64(CUBIC), A::from_f64(LINEAR)));
    let inner_slope = square.fma(A::from_f64(3.0 * CUBIC), A::from_f64(LINEAR));
    (x * s, s * (x * (A::ONE - s)).fma(inner_slope, A::ONE))
}

/// Value and slope. A NaN stays NaN.
#[inline(always)]
fn relu<A: Real>(x: A) -> (A, A) {
    let value = if x < A::ZERO { A::ZERO } else { x };
    (value, if x > A::ZERO { A::ONE } else { A::ZERO })
}

/// Value and slope `2·max(x, 0)`.
#[inline(always)]
fn relu2<A: Real>(x: A) -> (A, A) {
    let (value, _) = relu(x);
    (value * value, value + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<A: Real>(f: Activation, x: A) -> (A, A) {
        let (mut value, mut slope) = ([x], [A::ZERO]);
        f.values_and_slopes(&mut value, &mut slope);
        (value[0], slope[0])
    }

    #[test]
    fn values_and_slopes_stay_finite_far_out() {
        for f in Activation::ALL {
            for x in [-1e9f32, -1e4, -120.0, -89.0, -9.0, 9.0, 89.0, 1e4, 1e9] {
                let (value, slope) = at(f, x);
                assert!(value.is_finite() && slope.is_finite(), "{f:?}({x}) = {value}, slope {slope}");
                if x < -20.0 {
                    assert_eq!((value, slope), (0.0, 0.0), "{f:?}({x})");
                }
            }
            assert!(at(f, f32::NAN).0.is_nan(), "{f:?}");
        }
    }

    #[test]
    fn slopes_at_zero_match_torch() {
        for (f, slope) in Activation::ALL.into_iter().zip([0.5, 0.5, 0.5, 0.0, 0.0]) {
            let found = at(f, 0.0f64);
            assert!(found.0 == 0.0 && (found.1 - slope).abs() < 1e-15, "{f:?}: {found:?}");
        }
        assert_eq!(at(Activation::Relu, -0.0f32).1, 0.0);
    }

    #[test]
    fn slopes_match_finite_differences() {
        for f in Activation::ALL {
            for i in -60..60 {
                let x = 0.1 * f64::from(i) + 0.05;
                let numeric = (f.plain(x + 1e-5) - f.plain(x - 1e-5)) / 2e-5;
                let (value, slope) = at(f, x);
                assert!((value - f.plain(x)).abs() < 1e-14 && (slope - numeric).abs() < 1e-9, "{f:?}({x})");
            }
        }
    }
}
