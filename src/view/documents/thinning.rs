//! Fewer points of a curve, that show what all of them do.

use std::ops::Range;

/// How steps are spread over a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Evenly.
    Linear,
    /// Evenly in their logarithm.
    Log,
}

/// Returns the bucket of each step, of `count` that are even over the steps from the first to the last.
fn bucket_of(steps: &[u64], count: usize, spread: Spread) -> impl Fn(u64) -> usize {
    let place = move |step: u64| match spread {
        Spread::Linear => step as f64,
        Spread::Log => (step as f64).max(1.0).ln(),
    };
    let first = steps.first().copied().map_or(0.0, place);
    let width = steps.last().copied().map_or(0.0, place) - first;
    move |step| match width > 0.0 {
        true => (((place(step) - first) / width * count as f64) as usize).min(count - 1),
        false => 0,
    }
}

/// Returns the places of the points of each bucket, of which there are at most `count`; `steps` are in
/// ascending order.
pub fn buckets(steps: &[u64], count: usize, spread: Spread) -> Vec<Range<usize>> {
    let bucket = bucket_of(steps, count.max(1), spread);
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut last = None;
    for (place, step) in steps.iter().enumerate() {
        let of_step = Some(bucket(*step));
        match found.last_mut().filter(|_| of_step == last) {
            Some(range) => range.end = place + 1,
            None => found.push(place..place + 1),
        }
        last = of_step;
    }
    found
}

/// Returns the places of the points to keep of a bucket, in their order: of the lowest and the highest value,
/// and of the first that is not finite. So a spike of one step stays.
pub fn kept(values: &[f64], bucket: Range<usize>) -> Vec<usize> {
    let finite = || bucket.clone().filter(|place| values[*place].is_finite());
    let by_value = |a: &usize, b: &usize| values[*a].total_cmp(&values[*b]);
    let other = bucket.clone().find(|place| !values[*place].is_finite());
    let mut kept: Vec<usize> =
        [finite().min_by(by_value), finite().max_by(by_value), other].into_iter().flatten().collect();
    kept.sort_unstable();
    kept.dedup();
    kept
}

/// Returns the centred means over `window` values, and over fewer at the ends; values that are not finite are
/// left out, and where there is no other the mean is NaN.
pub fn smoothed(values: &[f64], window: usize) -> Vec<f64> {
    let reach = window / 2;
    // Sums of all values before each, so that a mean is one difference.
    let mut sums = vec![(0.0, 0usize)];
    for value in values {
        let (sum, count) = sums.last().copied().unwrap_or_default();
        sums.push(if value.is_finite() { (sum + value, count + 1) } else { (sum, count) });
    }
    let mean = |at: usize| {
        let (from, to) = (sums[at.saturating_sub(reach)], sums[(at + reach + 1).min(values.len())]);
        match to.1 - from.1 {
            0 => f64::NAN,
            count => (to.0 - from.0) / count as f64,
        }
    };
    (0..values.len()).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_in_one_bucket() {
        let steps: Vec<u64> = (1..=1000).collect();
        for (count, spread) in
            [(1, Spread::Linear), (7, Spread::Linear), (50, Spread::Log), (5000, Spread::Log)]
        {
            let found = buckets(&steps, count, spread);
            assert!(found.len() <= count, "{count}");
            assert_eq!((found[0].start, found.last().unwrap().end), (0, 1000));
            assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start && !pair[0].is_empty()));
        }
        let log = buckets(&steps, 30, Spread::Log);
        assert!(log[0].len() == 1 && log.last().unwrap().len() > 100, "{log:?}");
        assert_eq!(buckets(&[5, 5, 5], 9, Spread::Linear).first(), Some(&(0..3)), "one step");
        assert!(buckets(&[], 9, Spread::Linear).is_empty());
    }

    #[test]
    fn spikes_and_what_is_not_finite_stay() {
        let mut values: Vec<f64> = (0..100).map(|at| 2.0 - f64::from(at) / 100.0).collect();
        (values[40], values[41], values[60]) = (9.0, -9.0, f64::NAN);
        assert_eq!(kept(&values, 0..100), [40, 41, 60]);
        assert_eq!(kept(&values, 0..10), [0, 9]);
        assert_eq!((kept(&values, 5..6), kept(&values, 60..61)), (vec![5], vec![60]));
        values[61] = f64::INFINITY;
        assert_eq!(kept(&values, 60..62), [60]);
    }

    #[test]
    fn means_are_of_what_is_finite() {
        let values = [1.0, 2.0, f64::NAN, 4.0, 9.0];
        assert_eq!(smoothed(&values, 3), [1.5, 1.5, 3.0, 6.5, 6.5]);
        assert_eq!(smoothed(&values[..2], 1), [1.0, 2.0]);
        assert!(smoothed(&[f64::NAN], 5)[0].is_nan() && smoothed(&[], 5).is_empty());
    }
}
