//! Quantiles, including the median.

use serde::{Deserialize, Serialize};

/// Quantiles of a sample, linearly interpolated between order statistics.
///
/// Source: Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996), definition 7.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The 10th percentile.
    pub p10: f64,
    /// The first quartile.
    pub p25: f64,
    /// The median.
    pub median: f64,
    /// The third quartile.
    pub p75: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The interquartile range, `p75 - p25`.
    pub iqr: f64,
}

impl Spread {
    /// Returns the quantiles of the finite values; `None` if there are none.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let sorted = sorted(values);
        let (p25, p75) = (quantile(&sorted, 0.25)?, quantile(&sorted, 0.75)?);
        Some(Self {
            p10: quantile(&sorted, 0.1)?,
            p25,
            median: quantile(&sorted, 0.5)?,
            p75,
            p90: quantile(&sorted, 0.9)?,
            iqr: p75 - p25,
        })
    }
}

/// Returns the median of the finite values; `None` if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    quantile(&sorted(values), 0.5)
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns the quantile `q` in `[0, 1]` of ascending values; `None` if there are none.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = q * last as f64;
    let low = at.floor() as usize;
    let high = (low + 1).min(last);
    Some(sorted[low] + (at - low as f64) * (sorted[high] - sorted[low]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_definition_7() {
        // R: quantile(c(1, 2, 3, 4, 10), c(.1, .25, .5, .75, .9)) gives 1.4 2 3 4 7.6.
        let spread = Spread::from_values([10.0, 1.0, 4.0, f64::NAN, 2.0, 3.0]).unwrap();
        let got = [spread.p10, spread.p25, spread.median, spread.p75, spread.p90, spread.iqr];
        for (got, want) in got.iter().zip([1.4, 2.0, 3.0, 4.0, 7.6, 2.0]) {
            assert!((got - want).abs() < 1e-12, "{spread:?}");
        }
        assert_eq!(median([9.0, 1.0, 4.0, 2.0]), Some(3.0), "the mean of the two in the middle");
        assert_eq!(median([9.0, 1.0, 4.0]), Some(4.0));
        assert_eq!((Spread::from_values([f64::NAN]), median([])), (None, None));
    }
}
