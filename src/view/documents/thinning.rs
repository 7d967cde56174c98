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
    let reach = (window / 2).min(values.len());
    let width = 2 * reach + 1;
    let (starts, ends) = sums_of_blocks(values, width);
    // A window is the end of a block and the start of the next one, or within one block.
    let sum = |at: usize| -> Sum {
        let (from, to) = (at.saturating_sub(reach), (at + reach).min(values.len() - 1));
        if from / width != to / width {
            (ends[from].0 + starts[to].0, ends[from].1 + starts[to].1)
        } else if from % width == 0 {
            starts[to]
        } else {
            // Only at the end of all values is a window within a block that it does not begin with.
            ends[from]
        }
    };
    let mean = |(sum, count): Sum| if count == 0 { f64::NAN } else { sum / count as f64 };
    (0..values.len()).map(|at| mean(sum(at))).collect()
}

/// The sum of the finite ones among some values, and how many they are.
type Sum = (f64, usize);

/// Returns, for each value, the sum of its block of `width` values up to it, and that from it on. Differences
/// of sums over all values would be wrong everywhere after one huge value.
fn sums_of_blocks(values: &[f64], width: usize) -> (Vec<Sum>, Vec<Sum>) {
    let mut starts: Vec<Sum> = Vec::with_capacity(values.len());
    let mut ends: Vec<Sum> = Vec::with_capacity(values.len());
    for block in values.chunks(width) {
        starts.extend(running_sums(block.iter()));
        let from = ends.len();
        ends.extend(running_sums(block.iter().rev()));
        ends[from..].reverse();
    }
    (starts, ends)
}

fn running_sums<'a>(values: impl Iterator<Item = &'a f64>) -> impl Iterator<Item = Sum> {
    values.scan((0.0, 0), |sum: &mut Sum, value| {
        if value.is_finite() {
            *sum = (sum.0 + value, sum.1 + 1);
        }
        Some(*sum)
    })
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

    #[test]
    fn a_huge_value_is_in_the_means_of_its_neighbours_alone() {
        let mut values = vec![1.0; 40];
        values[0] = 1e30;
        for window in [2, 3, 5, 8] {
            let means = smoothed(&values, window);
            let reach = window / 2;
            assert!(means[..=reach].iter().all(|mean| *mean > 1e28), "{window}: {means:?}");
            assert!(means[reach + 1..].iter().all(|mean| *mean == 1.0), "{window}: {means:?}");
        }
    }

    #[test]
    fn means_are_those_of_the_values_in_reach() {
        let values: Vec<f64> = (0..23).map(|at| f64::from(at * at)).collect();
        for window in [0, 1, 2, 3, 7, 10, 22, 23, 24, 45, 46, 100, usize::MAX] {
            let reach = (window / 2).min(values.len());
            let of = |at: usize| {
                let near = &values[at.saturating_sub(reach)..(at + reach + 1).min(values.len())];
                near.iter().sum::<f64>() / near.len() as f64
            };
            let expected: Vec<f64> = (0..values.len()).map(of).collect();
            assert_eq!(smoothed(&values, window), expected, "{window}");
        }
    }
}
