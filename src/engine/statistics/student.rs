//! Student's distribution, and means over the deviation that a sample may show.

use super::numeric::integrate;
use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::function::gamma::ln_gamma;

/// Returns the t that |t| exceeds with probability `1 - confidence`; infinite unless there are degrees of
/// freedom.
pub fn two_sided_quantile(freedom: f64, confidence: f64) -> f64 {
    upper_quantile(freedom, 0.5 * (1.0 - confidence))
}

/// Returns the t that is exceeded with probability `tail`, which is at most one half.
pub fn upper_quantile(freedom: f64, tail: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |t| -t.inverse_cdf(tail.clamp(0.0, 0.5)))
}

/// Returns the probability that a variable with Student's distribution exceeds t.
pub fn upper_tail(t: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::NAN, |student| student.sf(t))
}

/// Returns the mean of `value(s)` over the deviation s of a sample from a normal distribution with deviation
/// 1. Above `limit`, `value` counts as 0. With ν degrees of freedom, ν s² has the χ² distribution.
pub fn mean_over_deviation(freedom: f64, limit: f64, value: impl Fn(f64) -> f64) -> f64 {
    let half = 0.5 * freedom;
    let scale = 2f64.ln() + half * half.ln() - ln_gamma(half);
    let density = |s: f64| (scale + (freedom - 1.0) * s.ln() - half * s * s).exp();
    // The logarithm of the density curves at least as much as for a normal density with deviation 1 / √ν, so
    // a range of 9 such deviations around the mode leaves out less than 1e-17.
    let mode = ((freedom - 1.0).max(0.0) / freedom).sqrt();
    let reach = 9.0 / freedom.sqrt();
    // With few degrees of freedom, a quantile is large, and then the averaged function falls steeply.
    let pieces = 3 + (9.0 / freedom) as usize;
    integrate((mode - reach).max(0.0), (mode + reach).min(limit), pieces, |s| density(s) * value(s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_published_ones() {
        let published = [
            (1.0, 12.706_205),
            (2.0, 4.302_653),
            (4.0, 2.776_445),
            (10.0, 2.228_139),
            (18.0, 2.100_922),
            (100.0, 1.983_972),
        ];
        for (freedom, t) in published {
            assert!((two_sided_quantile(freedom, 0.95) - t).abs() < 1e-5, "{freedom}");
        }
        assert!((two_sided_quantile(9.0, 0.99) - 3.2498).abs() < 5e-5);
        assert!((upper_tail(upper_quantile(3.0, 1e-9), 3.0) / 1e-9 - 1.0).abs() < 1e-6, "far out too");
        assert_eq!(two_sided_quantile(0.0, 0.95), f64::INFINITY);
    }

    /// E[s²] = 1, and E[s] = √(2/ν) Γ((ν + 1)/2) / Γ(ν/2), which is the c₄ of control charts.
    #[test]
    fn averages_over_deviations_are_exact() {
        for (freedom, c4) in
            [(1.0, 0.797_884_56), (4.0, 0.939_985_6), (24.0, 0.989_640_4), (99.0, 0.997_478_0)]
        {
            assert!((mean_over_deviation(freedom, 1e9, |_| 1.0) - 1.0).abs() < 1e-9, "{freedom}");
            assert!((mean_over_deviation(freedom, 1e9, |s| s) - c4).abs() < 1e-6, "{freedom}");
            assert!((mean_over_deviation(freedom, 1e9, |s| s * s) - 1.0).abs() < 1e-8, "{freedom}");
        }
        // P(s ≤ 1) for two degrees of freedom is 1 - 1/e.
        assert!((mean_over_deviation(2.0, 1.0, |_| 1.0) - (1.0 - (-1f64).exp())).abs() < 1e-9);
        assert_eq!(mean_over_deviation(5.0, 0.0, |_| 1.0), 0.0);
    }
}
