//! Dunnett's one-sided critical value, for several comparisons with one shared cell. All pairs of comparisons
//! must have the same correlation.

use super::super::numeric::{integrate, normal_cdf, normal_density, root};
use super::super::student::{mean_over_deviation, upper_quantile};
use std::f64::consts::SQRT_2;

/// Returns the critical value d: with probability `confidence`, the largest of `comparisons` t statistics
/// with `freedom` degrees of freedom stays below d. Each statistic compares a mean of its own with one shared
/// mean. All means come from equally many runs, so any two statistics have a correlation of 1/2.
/// `comparisons` must be at least 1.
///
/// Let s be the estimated deviation divided by the true one, and z the standardized mean of the shared cell.
/// Given both, the statistics are independent, and each is below d with probability Φ(√2 d s + z) (Dunnett,
/// "A Multiple Comparison Procedure for Comparing Several Treatments with a Control", 1955).
pub fn one_sided(comparisons: usize, freedom: f64, confidence: f64) -> f64 {
    let tail = 1.0 - confidence;
    // The root lies between the value for one comparison and Bonferroni's. For one comparison these are
    // equal, so the upper end is moved to keep the interval from being empty.
    let (low, high) = (upper_quantile(freedom, tail), upper_quantile(freedom, tail / comparisons as f64));
    root(low, high.max(low + 1e-6), |d| probability_below(d, comparisons, freedom) - confidence)
}

/// Returns the probability that all statistics are below d: the mean over s and z of the formula above.
fn probability_below(d: f64, comparisons: usize, freedom: f64) -> f64 {
    let given = |shift: f64| {
        let all = |z: f64| normal_density(z) * normal_cdf(shift + z).powi(comparisons as i32);
        // Less than 3e-12 of the normal distribution lies outside of ±7.
        integrate(-7.0, 7.0, 2, all)
    };
    mean_over_deviation(freedom, f64::INFINITY, |s| given(SQRT_2 * d * s))
}

#[cfg(test)]
mod tests {
    use super::super::super::numeric::normal_upper_quantile;
    use super::*;

    /// Dunnett 1955, tables 1a (0.95) and 1b (0.99): one-sided comparisons of 1 to 5 cells with a control.
    #[test]
    fn critical_values_are_dunnetts() {
        let table = [
            (0.95, 5.0, [2.02, 2.44, 2.68, 2.85, 2.98]),
            (0.95, 10.0, [1.81, 2.15, 2.34, 2.47, 2.56]),
            (0.95, 20.0, [1.72, 2.03, 2.19, 2.30, 2.39]),
            (0.95, 60.0, [1.67, 1.95, 2.10, 2.21, 2.28]),
            (0.99, 10.0, [2.76, 3.11, 3.31, 3.45, 3.56]),
            (0.99, 20.0, [2.53, 2.81, 2.97, 3.08, 3.17]),
        ];
        for (confidence, freedom, row) in table {
            for (k, published) in row.into_iter().enumerate() {
                let d = one_sided(k + 1, freedom, confidence);
                assert!((d - published).abs() < 0.0101, "{} comparisons, {freedom}: {d}", k + 1);
            }
        }
    }

    #[test]
    fn many_cells_and_many_runs_have_a_value() {
        let far = one_sided(200, 1e4, 0.95);
        assert!(far > one_sided(100, 1e4, 0.95) && far < normal_upper_quantile(0.05 / 200.0), "{far}");
    }
}
