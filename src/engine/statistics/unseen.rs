//! What a number of runs cannot show.

/// Returns the largest rate of an event that this many seeds may well miss: one that strikes each seed with
/// this probability strikes none of them with probability `1 - confidence`. The rate is 1 - (1 -
/// confidence)^(1 / seeds), and 1 without seeds.
///
/// It is the upper end of the exact interval for a rate of which no case was seen (Clopper and Pearson, "The
/// Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial", 1934).
pub fn unseen_rate(seeds: usize, confidence: f64) -> f64 {
    1.0 - (1.0 - confidence).powf(1.0 / seeds as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_this_rate_is_missed_as_often_as_the_confidence_says() {
        for (seeds, rate) in [(4, 0.527_13), (8, 0.312_34), (44, 0.065_81), (59, 0.049_51)] {
            assert!((unseen_rate(seeds, 0.95) - rate).abs() < 1e-4, "{seeds}: {}", unseen_rate(seeds, 0.95));
            assert!(((1.0 - unseen_rate(seeds, 0.95)).powi(seeds as i32) - 0.05).abs() < 1e-12);
        }
        assert_eq!(unseen_rate(0, 0.95), 1.0);
    }
}
