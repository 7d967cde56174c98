//! Integrals, roots, and the normal distribution.

use statrs::function::erf;
use std::f64::consts::SQRT_2;

/// Positive nodes of the 16-point Gauss–Legendre rule on [-1, 1], and their weights.
///
/// Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964, table 25.4.
const NODES: [(f64, f64); 8] = [
    (0.09501250983763744, 0.1894506104550685),
    (0.2816035507792589, 0.18260341504492358),
    (0.45801677765722737, 0.16915651939500254),
    (0.6178762444026438, 0.14959598881657674),
    (0.755404408355003, 0.12462897125553388),
    (0.8656312023878318, 0.09515851168249279),
    (0.9445750230732326, 0.062253523938647894),
    (0.9894009349916499, 0.027152459411754096),
];

/// Integrates a smooth function from `low` to `high`, with the 16-point Gauss–Legendre rule on each of
/// `pieces` equal parts. Returns 0 for an empty range.
pub fn integrate(low: f64, high: f64, pieces: usize, function: impl Fn(f64) -> f64) -> f64 {
    if high <= low {
        return 0.0;
    }
    let half = 0.5 * (high - low) / pieces as f64;
    let piece = |k: usize| {
        let middle = low + (2 * k + 1) as f64 * half;
        let both = |(node, weight): &(f64, f64)| {
            weight * (function(middle - node * half) + function(middle + node * half))
        };
        half * NODES.iter().map(both).sum::<f64>()
    };
    (0..pieces).map(piece).sum()
}

/// Finds the `x` in `[low, high]` at which a continuous function is 0, to about `1e-10` of the range. If the
/// function has the same sign at both ends, returns the end where it is closer to 0.
///
/// Source: the Illinois variant of regula falsi, Dowell and Jarratt, "A modified regula falsi method for
/// computing the root of an equation", 1971.
pub fn root(low: f64, high: f64, function: impl Fn(f64) -> f64) -> f64 {
    let (mut a, mut b) = (low, high);
    let (mut at_a, mut at_b) = (function(a), function(b));
    if at_a * at_b > 0.0 {
        return if at_a.abs() < at_b.abs() { a } else { b };
    }
    // Each iteration gains more than half a digit; the count only stops rounding from prolonging the search.
    for _ in 0..100 {
        if at_b == 0.0 || (b - a).abs() <= 1e-10 * (high - low) {
            break;
        }
        let x = b - at_b * (b - a) / (at_b - at_a);
        let at_x = function(x);
        if at_x * at_b < 0.0 {
            (a, at_a) = (b, at_b);
        } else {
            at_a *= 0.5;
        }
        let moved = (x - b).abs();
        (b, at_b) = (x, at_x);
        if moved <= 1e-12 * (high - low) {
            break;
        }
    }
    b
}

/// Returns the distribution function of the standard normal distribution.
pub fn normal_cdf(z: f64) -> f64 {
    0.5 * erf::erfc(-z / SQRT_2)
}

/// Returns the z that a standard normal variable exceeds with probability `tail`.
pub fn normal_upper_quantile(tail: f64) -> f64 {
    SQRT_2 * erf::erfc_inv(2.0 * tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integrals_of_known_functions_are_right() {
        assert!((integrate(0.0, std::f64::consts::PI, 1, f64::sin) - 2.0).abs() < 1e-14);
        let normal_density = |z: f64| (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
        assert!((integrate(-8.0, 8.0, 4, normal_density) - 1.0).abs() < 1e-12);
        assert!((integrate(0.0, 2.0, 3, |x| x.powi(5)) - 64.0 / 6.0).abs() < 1e-12);
        assert_eq!(integrate(1.0, 1.0, 2, |_| f64::NAN), 0.0);
        assert_eq!(integrate(2.0, 1.0, 2, |_| 1.0), 0.0);
    }

    #[test]
    fn roots_are_found_between_the_ends_alone() {
        assert!((root(0.0, 2.0, |x| x * x - 2.0) - 2f64.sqrt()).abs() < 1e-9);
        assert!((root(0.0, 20.0, |x| x.exp() - 2.0) - 2f64.ln()).abs() < 1e-8, "far from a line");
        assert!((root(2.0, 0.0, |x| x * x - 2.0) - 2f64.sqrt()).abs() < 1e-9, "from either side");
        assert_eq!(root(0.0, 1.0, |x| x + 1.0), 0.0, "no root: the nearer end");
    }

    #[test]
    fn normal_quantiles_are_the_published_ones() {
        assert!((normal_upper_quantile(0.025) - 1.959_963_985).abs() < 1e-8);
        assert!((normal_upper_quantile(1e-9) - 5.997_807_0).abs() < 1e-6);
        assert!((normal_cdf(1.959_963_985) - 0.975).abs() < 1e-9);
        assert!((normal_cdf(-6.0) / 9.865_876_45e-10 - 1.0).abs() < 1e-6);
    }
}
