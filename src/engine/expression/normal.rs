//! The complementary error function in f64, by series: slow, but accurate to almost the last bit.

/// Computes `1 - erf(x)` by its series near 0 (Abramowitz and Stegun, 7.1.6), and by its continued fraction
/// elsewhere (7.1.14).
pub fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    // Above 30 the result rounds to 0, and the square may overflow.
    if x > 30.0 {
        return 0.0;
    }
    // The rounding error of the square matters for large x.
    let lost = x.mul_add(x, -x * x);
    let gauss = (-x * x).exp() * (1.0 - lost) / std::f64::consts::PI.sqrt();
    if x < 0.5 {
        1.0 - erf_near_zero(x, gauss)
    } else {
        gauss / (1..2000).rev().fold(x, |rest, n| x + 0.5 * f64::from(n) / rest)
    }
}

/// Computes `erf(x)` without the cancellation of `1 - erfc(x)` near 0.
pub(super) fn erf(x: f64) -> f64 {
    if x.abs() < 0.5 { erf_near_zero(x, (-x * x).exp() / std::f64::consts::PI.sqrt()) } else { 1.0 - erfc(x) }
}

/// Sums the series for |x| < 1/2, given `e^-x²/√π`.
fn erf_near_zero(x: f64, gauss: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..40 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    2.0 * gauss * sum
}
