//! Thins points without changing the picture that they draw.

use super::Points;
use std::ops::Range;

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    Log,
}

impl Scale {
    /// Returns the coordinate of a value, which must be positive on a log scale.
    pub fn place(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Log => value.log10(),
        }
    }

    /// Returns the value at a coordinate.
    pub fn value(self, place: f64) -> f64 {
        match self {
            Scale::Linear => place,
            Scale::Log => 10f64.powf(place),
        }
    }
}

/// Returns the places to keep in a stretch of points, in order: the lowest value, the highest value and the
/// first gap. So a one-step spike survives, and so does a step that diverged.
pub fn extremes(points: &[(f64, f64)], stretch: Range<usize>) -> Vec<usize> {
    let finite = || stretch.clone().filter(|place| points[*place].1.is_finite());
    let by_value = |a: &usize, b: &usize| points[*a].1.total_cmp(&points[*b].1);
    let gap = stretch.clone().find(|place| !points[*place].1.is_finite());
    let mut kept: Vec<usize> =
        [finite().min_by(by_value), finite().max_by(by_value), gap].into_iter().flatten().collect();
    kept.sort_unstable();
    kept.dedup();
    kept
}

/// Returns the [`extremes`] of `count` stretches with equally many points each, or all points if there are at
/// most `2 * count`.
pub fn thin(points: &[(f64, f64)], count: usize) -> Points {
    if points.len() <= 2 * count {
        return points.to_vec();
    }
    let size = points.len().div_ceil(count);
    let stretches = (0..points.len()).step_by(size).map(|from| from..(from + size).min(points.len()));
    stretches.flat_map(|stretch| extremes(points, stretch)).map(|place| points[place]).collect()
}

/// Returns the places of the points in each of at most `count` buckets of equal width on the x axis. On a log
/// scale, values below 1 count as 1.
pub fn buckets(points: &[(f64, f64)], count: usize, scale: Scale) -> Vec<Range<usize>> {
    let count = count.max(1);
    let coordinate = |point: &(f64, f64)| match scale {
        Scale::Linear => point.0,
        Scale::Log => scale.place(point.0.max(1.0)),
    };
    let first = points.first().map_or(0.0, coordinate);
    let width = points.last().map_or(0.0, coordinate) - first;
    let bucket = |point: &(f64, f64)| {
        let share = if width > 0.0 { (coordinate(point) - first) / width } else { 0.0 };
        ((share * count as f64) as usize).min(count - 1)
    };
    let mut from = 0;
    let same = points.chunk_by(|a, b| bucket(a) == bucket(b)).map(|chunk| {
        from += chunk.len();
        from - chunk.len()..from
    });
    same.collect()
}

/// Returns the stretches of points between gaps.
pub fn stretches(points: &[(f64, f64)]) -> impl Iterator<Item = &[(f64, f64)]> {
    points.split(|p| !p.1.is_finite()).filter(|stretch| !stretch.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_extremes_order_and_gaps() {
        let mut points: Points = (0..10_000).map(|i| (i as f64, (i % 7) as f64)).collect();
        points[5_003].1 = 50.0;
        points[7_000].1 = f64::NAN;
        let thinned = thin(&points, 100);
        assert!(thinned.len() <= 201, "{}", thinned.len());
        assert!(thinned.contains(&(5_003.0, 50.0)));
        assert_eq!(stretches(&thinned).count(), 2);
        assert!(thinned.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(thin(&points[..150], 100), points[..150]);
    }

    #[test]
    fn every_point_is_in_one_bucket() {
        let points: Points = (1..=1000).map(|step| (f64::from(step), 1.0)).collect();
        for (count, scale) in [(1, Scale::Linear), (7, Scale::Linear), (50, Scale::Log), (5000, Scale::Log)] {
            let found = buckets(&points, count, scale);
            assert!(found.len() <= count, "{count}");
            assert_eq!((found[0].start, found.last().unwrap().end), (0, 1000));
            assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start && !pair[0].is_empty()));
        }
        let log = buckets(&points, 30, Scale::Log);
        assert!(log[0].len() == 1 && log.last().unwrap().len() > 100, "{log:?}");
        assert_eq!(buckets(&[(5.0, 1.0); 3], 9, Scale::Linear).first(), Some(&(0..3)), "one step");
        assert!(buckets(&[], 9, Scale::Linear).is_empty());
    }

    #[test]
    fn spikes_and_what_is_not_finite_stay() {
        let mut points: Points = (0..100).map(|at| (f64::from(at), 2.0 - f64::from(at) / 100.0)).collect();
        (points[40].1, points[41].1, points[60].1) = (9.0, -9.0, f64::NAN);
        assert_eq!(extremes(&points, 0..100), [40, 41, 60]);
        assert_eq!(extremes(&points, 0..10), [0, 9]);
        assert_eq!((extremes(&points, 5..6), extremes(&points, 60..61)), (vec![5], vec![60]));
        points[61].1 = f64::INFINITY;
        assert_eq!(extremes(&points, 60..62), [60]);
    }
}
