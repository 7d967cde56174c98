//! Mean and variance of a sample.

/// Returns the arithmetic mean; NaN if there are no values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the unbiased variance, with `n - 1` degrees of freedom; NaN for fewer than two values.
pub fn variance(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return f64::NAN;
    }
    let mean = mean(values);
    values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_variance_are_those_of_the_sample() {
        assert_eq!(mean(&[1.0, 2.0, 6.0]), 3.0);
        assert_eq!(variance(&[1.0, 2.0, 6.0]), 7.0);
        assert!(mean(&[]).is_nan() && variance(&[]).is_nan() && variance(&[1.0]).is_nan());
        assert!(variance(&[1.0, f64::NAN, 2.0]).is_nan());
    }
}
