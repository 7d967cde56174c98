//! The smallest difference of two models, or of two recipes, that a set of items can show.

use super::crossed::{ErrorParts, VariancePart};

/// How alike the answers of two models are unless stored evaluations say otherwise: the correlation over
/// items of what they contribute to the figure.
pub const USUAL_CORRELATION: f64 = 0.5;

/// The probability of finding a difference of the size that a set is said to see.
pub const VISIBLE_POWER: f64 = 0.8;

/// A comparison that is planned on a set of items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedScores {
    /// Standard error of one model's figure over the items.
    pub error: f64,
    /// Number of items, or of the clusters of items that share a text.
    pub clusters: usize,
    /// Correlation of what the items contribute in both models.
    pub correlation: f64,
    /// Models of each side; `None` for one checkpoint on each.
    pub seeds: Option<PlannedSeeds>,
}

/// Several seeds of each recipe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedSeeds {
    /// Number of seeds of each side; at least 2.
    pub count: usize,
    /// Deviation over seeds of the figure on infinitely many items.
    pub deviation: f64,
}

impl PlannedScores {
    /// Plans a comparison of two models on this many items that each is right with this probability.
    pub fn from_accuracy(items: usize, accuracy: f64) -> Self {
        let error = (accuracy * (1.0 - accuracy) / items as f64).sqrt();
        Self { error, clusters: items, correlation: USUAL_CORRELATION, seeds: None }
    }

    /// Returns the smallest true difference that is found with [`VISIBLE_POWER`], by an interval with this
    /// confidence. `None` unless there are two clusters and, if there are seeds, two of them, the error is
    /// above 0, and the correlation is below 1.
    ///
    /// The variance of a difference over items is 2 error² (1 - correlation): what both models find hard
    /// alike cancels (Miller, "Adding Error Bars to Evals", arXiv:2411.00640). With S seeds a side, it is
    /// divided by S, and 2 deviation² / S is added.
    pub fn smallest_seen(&self, confidence: f64) -> Option<f64> {
        let pair = 2.0 * self.error * self.error * (1.0 - self.correlation);
        let is_possible = pair > 0.0 && pair.is_finite() && self.clusters > 1;
        let freedom = self.clusters.checked_sub(1)? as f64;
        let parts = match self.seeds {
            None => ErrorParts { items: VariancePart { variance: pair, freedom }, seeds: None },
            Some(PlannedSeeds { count, deviation }) => {
                let variance = (pair + 2.0 * deviation * deviation) / count as f64;
                let seeds = VariancePart { variance, freedom: 2.0 * (count as f64 - 1.0) };
                ErrorParts { items: VariancePart { variance: 0.0, freedom }, seeds: Some(seeds) }
            }
        };
        let has_seeds = self.seeds.is_none_or(|seeds| seeds.count > 1 && seeds.deviation.is_finite());
        (is_possible && has_seeds).then(|| parts.smallest_planned(confidence, VISIBLE_POWER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2.8 errors of a difference, as a normal distribution has it.
    #[test]
    fn a_hundred_items_see_fourteen_points_and_two_thousand_three() {
        let seen = |items: usize| PlannedScores::from_accuracy(items, 0.5).smallest_seen(0.95).unwrap();
        assert!((seen(2000) - 0.0313).abs() < 1e-4, "{}", seen(2000));
        assert!((seen(100) - 0.1415).abs() < 1e-4, "{}", seen(100));
        // Four seeds that do not vary are as good as four times the items, less what few seeds cost.
        let plan = PlannedScores::from_accuracy(500, 0.5);
        let with = |count: usize, deviation: f64| {
            PlannedScores { seeds: Some(PlannedSeeds { count, deviation }), ..plan }
                .smallest_seen(0.95)
                .unwrap()
        };
        assert!(with(4, 0.0) > seen(2000) && with(4, 0.0) < 1.3 * seen(2000), "{}", with(4, 0.0));
        assert!(with(100, 0.0) < 1.02 * seen(50_000) && with(4, 0.02) > 1.5 * with(4, 0.0));
        for nothing in [
            PlannedScores::from_accuracy(500, 0.0),
            PlannedScores::from_accuracy(500, f64::NAN),
            PlannedScores::from_accuracy(1, 0.5),
            PlannedScores { clusters: 0, ..plan },
            PlannedScores { correlation: 1.0, ..plan },
            PlannedScores { seeds: Some(PlannedSeeds { count: 1, deviation: 0.01 }), ..plan },
            PlannedScores { seeds: Some(PlannedSeeds { count: 4, deviation: f64::NAN }), ..plan },
        ] {
            assert_eq!(nothing.smallest_seen(0.95), None, "{nothing:?}");
        }
    }
}
