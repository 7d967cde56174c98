//! The standard error of a mean whose terms come in clusters.

use super::student::two_sided_quantile;
use super::{Interval, mean};

/// Returns the standard error of a mean, from what each term contributes: its deviation from the mean or, for
/// another statistic, its influence, of which all sum to 0. Terms of one cluster, which has a number, may
/// depend on each other. `None` for fewer than two clusters, or a contribution that is not finite.
///
/// The error is √(C/(C-1) Σ s²) / n, where s is the sum of a cluster's contributions, of C clusters and n
/// terms (Liang and Zeger, "Longitudinal data analysis using generalized linear models", 1986; for
/// evaluations: Miller, "Adding Error Bars to Evals", arXiv:2411.00640, with the correction for few
/// clusters). If every term is a cluster, this is the deviation over √n.
pub fn clustered_error(contributions: &[f64], clusters: &[usize]) -> Option<f64> {
    if contributions.len() != clusters.len() {
        return None;
    }
    let mut sums = vec![0.0; clusters.iter().max().map_or(0, |last| last + 1).min(contributions.len())];
    let mut is_used = vec![false; sums.len()];
    for (contribution, &cluster) in contributions.iter().zip(clusters) {
        *sums.get_mut(cluster)? += contribution;
        is_used[cluster] = true;
    }
    let count = is_used.iter().filter(|used| **used).count();
    if count < 2 {
        return None;
    }
    let correction = count as f64 / (count as f64 - 1.0);
    let squares: f64 = sums.iter().map(|sum| sum * sum).sum();
    let error = (correction * squares).sqrt() / contributions.len() as f64;
    error.is_finite().then_some(error)
}

/// Returns an estimate with its two-sided interval, by Student's distribution with a degree of freedom less
/// than there are clusters.
pub fn clustered_interval(estimate: f64, error: f64, clusters: usize, confidence: f64) -> Interval {
    let freedom = clusters.saturating_sub(1) as f64;
    Interval::symmetric(estimate, two_sided_quantile(freedom, confidence) * error)
}

/// Returns the deviations of values from their mean.
pub fn deviations(values: &[f64]) -> Vec<f64> {
    let mean = mean(values);
    values.iter().map(|value| value - mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::variance;

    #[test]
    fn errors_grow_with_what_a_cluster_shares() {
        let values = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0];
        let apart = clustered_error(&deviations(&values), &[0, 1, 2, 3, 4, 5]).unwrap();
        assert!((apart - (variance(&values) / 6.0).sqrt()).abs() < 1e-15);
        // Each value twice, as one cluster, is as good as once.
        let twice: Vec<f64> = values.iter().flat_map(|value| [*value; 2]).collect();
        let clusters: Vec<usize> = (0..6).flat_map(|cluster| [cluster; 2]).collect();
        assert!((clustered_error(&deviations(&twice), &clusters).unwrap() - apart).abs() < 1e-15);
        // Sums -0.5, 0, 0.5 of three clusters: √(3/2 · 1/2) / 6.
        let three = clustered_error(&[-0.25, -0.25, 0.25, -0.25, 0.25, 0.25], &[0, 0, 1, 1, 2, 2]).unwrap();
        assert!((three - 0.75f64.sqrt() / 6.0).abs() < 1e-15);
        for (values, clusters) in [
            (&[][..], &[][..]),
            (&[1.0], &[0]),
            (&[1.0, 2.0], &[0, 0]),
            (&[1.0, f64::NAN], &[0, 1]),
            (&[1.0], &[9]),
        ] {
            assert_eq!(clustered_error(values, clusters), None);
        }
        let interval = clustered_interval(0.5, 0.1, 5, 0.95);
        assert!((interval.high - 0.5 - 0.277_644_5).abs() < 1e-6);
    }
}
