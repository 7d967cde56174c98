//! Numbers before they are drawn: smoothing, thinning, ranges, ticks.

/// Points of a series in ascending order of x, or along the outline of an area. A y that is not finite is a
/// gap.
pub type Points = Vec<(f64, f64)>;

/// The scale of a y axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    Log,
}

impl Scale {
    /// Returns the coordinate of a value. On a log scale the value must be positive.
    pub fn place(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Log => value.log10(),
        }
    }

    fn value(self, place: f64) -> f64 {
        match self {
            Scale::Linear => place,
            Scale::Log => 10f64.powf(place),
        }
    }
}

/// The largest number on an axis; larger ones are drawn at its end.
const LARGEST: f64 = 1e300;

/// Rows of the narrowest window: the median of fewer follows single values.
const MIN_WINDOW: usize = 9;

/// Returns the width, in rows, of the window that smooths a series: a fiftieth of it, at least
/// [`MIN_WINDOW`], and odd; 1 for a series of less than five windows, which is not smoothed.
pub fn window(rows: usize) -> usize {
    let window = (rows / 50).max(MIN_WINDOW) | 1;
    if rows < 5 * window { 1 } else { window }
}

/// Returns the median over a window around each point, or around about `count` evenly chosen ones of a longer
/// series. Centred, so that the curve does not lag behind a falling loss. Only whole windows count, so the
/// curve begins and ends half a window inside the series: a shorter window would end on single values. A
/// single spike leaves no trace. Values that are not finite count for nothing and stay gaps.
pub fn smooth(points: &[(f64, f64)], window: usize, count: usize) -> Points {
    let half = window / 2;
    let mut around = Vec::with_capacity(window);
    let mut median = |i: usize| {
        around.clear();
        around.extend(points[i - half..=i + half].iter().map(|p| p.1).filter(|y| y.is_finite()));
        let middle = around.len() / 2;
        *around.select_nth_unstable_by(middle, f64::total_cmp).1
    };
    let whole = half..points.len().saturating_sub(half);
    let stride = whole.len().div_ceil(count.max(1)).max(1);
    let last = whole.end.saturating_sub(1);
    let chosen = whole.clone().filter(|i| (i - whole.start) % stride == 0 || *i == last);
    chosen.map(|i| (points[i].0, if points[i].1.is_finite() { median(i) } else { f64::NAN })).collect()
}

/// Returns at most about `2 * buckets` points that draw the same picture: the lowest and highest of each
/// stretch, in order.
pub fn thin(points: &[(f64, f64)], buckets: usize) -> Points {
    if points.len() <= 2 * buckets {
        return points.to_vec();
    }
    let mut thinned = Vec::with_capacity(2 * buckets);
    for stretch in points.chunks(points.len().div_ceil(buckets)) {
        let finite = || (0..stretch.len()).filter(|&i| stretch[i].1.is_finite());
        let by_y = |&a: &usize, &b: &usize| stretch[a].1.total_cmp(&stretch[b].1);
        match (finite().min_by(by_y), finite().max_by(by_y)) {
            (Some(low), Some(high)) => {
                thinned.push(stretch[low.min(high)]);
                if low != high {
                    thinned.push(stretch[low.max(high)]);
                }
                // A gap within the stretch stays a gap, after what could be drawn.
                if let Some(gap) = stretch.iter().rev().find(|p| !p.1.is_finite()) {
                    thinned.push(*gap);
                }
            }
            _ => thinned.push(stretch[0]),
        }
    }
    thinned
}

/// Returns the stretches of points between gaps.
pub fn stretches(points: &[(f64, f64)]) -> impl Iterator<Item = &[(f64, f64)]> {
    points.split(|p| !p.1.is_finite()).filter(|stretch| !stretch.is_empty())
}

/// Returns the range worth showing: all values, except that spikes beyond the first value and one and a half
/// times the highest smoothed value are cut off rather than pressing the rest flat. `None` without finite
/// values.
pub fn robust_range(values: &[(f64, f64)], smoothed: &[(f64, f64)]) -> Option<(f64, f64)> {
    let finite = |points: &[(f64, f64)]| {
        let ys = points.iter().map(|p| p.1).filter(|y| y.is_finite());
        ys.fold(None, |range, y| {
            range.map_or(Some((y, y)), |(low, high): (f64, f64)| Some((low.min(y), high.max(y))))
        })
    };
    let (low, high) = finite(values)?;
    let usual = finite(smoothed).map(|range| range.1).filter(|usual| *usual > 0.0);
    // The smoothed curve begins half a window late, and a loss falls fastest before that.
    let first = values.iter().map(|p| p.1).find(|y| y.is_finite()).unwrap_or(low);
    Some((low, usual.map_or(high, |usual| high.min(first.max(1.5 * usual)))))
}

/// Widens a range by fractions of its height as drawn, below and above; an empty range gets some height.
pub fn pad((low, high): (f64, f64), scale: Scale, below: f64, above: f64) -> (f64, f64) {
    let (low, high) = (drawable(low, scale), drawable(high, scale));
    let (bottom, top) = (scale.place(low), scale.place(high));
    // Smaller differences are rounding noise around one value.
    let flat = top - bottom <= 1e-9 * top.abs().max(1e-30);
    let (bottom, top) = match scale {
        _ if !flat => (bottom, top),
        Scale::Log => (bottom - 0.05, top + 0.05),
        Scale::Linear if low == 0.0 => (0.0, 1.0),
        Scale::Linear => (bottom - 0.1 * bottom.abs(), top + 0.1 * top.abs()),
    };
    let height = top - bottom;
    (
        drawable(scale.value(bottom - below * height), scale),
        drawable(scale.value(top + above * height), scale),
    )
}

/// Limits an end of a range to numbers whose differences and powers of ten are finite.
fn drawable(value: f64, scale: Scale) -> f64 {
    let value = if value.is_nan() { 0.0 } else { value };
    match scale {
        Scale::Linear => value.clamp(-LARGEST, LARGEST),
        Scale::Log => value.clamp(1.0 / LARGEST, LARGEST),
    }
}

/// Returns about `count` round values within a range: multiples of 1, 2 or 5 times a power of ten, and on a
/// log scale that spans several powers, such numbers themselves.
pub fn ticks(low: f64, high: f64, scale: Scale, count: usize) -> Vec<f64> {
    let is_range = (high - low).is_finite() && low < high;
    if !is_range || (scale == Scale::Log && low <= 0.0) {
        return Vec::new();
    }
    if scale == Scale::Log && high / low > 4.0 {
        return log_ticks(low, high, count);
    }
    let rough = (high - low) / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough * 0.8);
    let step = step.unwrap_or(10.0 * power);
    if !step.is_normal() {
        return Vec::new();
    }
    let slack = 1e-9 * (high - low);
    let first = ((low - slack) / step).ceil() as i64;
    let marks = (first..).map(|i| i as f64 * step).take_while(|tick| *tick <= high + slack);
    marks.take(4 * count + 4).collect()
}

/// Returns the densest of the customary sets of marks that has about `count` in the range.
fn log_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    const SETS: [&[f64]; 4] =
        [&[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0], &[1.0, 2.0, 4.0, 6.0], &[1.0, 2.0, 5.0], &[1.0, 3.0]];
    let decades = low.log10().floor() as i32..=high.log10().floor() as i32;
    let within = |set: &[f64], stride: usize| -> Vec<f64> {
        let marks = decades
            .clone()
            .step_by(stride)
            .flat_map(|decade| set.iter().map(move |m| m * 10f64.powi(decade)));
        marks.filter(|mark| (low..=high).contains(mark)).collect()
    };
    let sets = SETS.iter().map(|set| within(set, 1)).chain((1..).map(|stride| within(&[1.0], stride)));
    let fits = |marks: &Vec<f64>| marks.len() <= count + 2;
    sets.into_iter().find(fits).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_keeps_a_straight_line_and_skips_gaps_and_spikes() {
        let mut line: Points = (0..20).map(|i| (i as f64, 3.0 - 0.1 * i as f64)).collect();
        assert_eq!(smooth(&line, 7, 99), line[3..17], "no lag, and half a window missing at the ends");
        line[10].1 = 1e6;
        let smoothed = smooth(&line, 7, 99);
        assert!(
            smoothed
                .iter()
                .zip(&line[3..17])
                .all(|(got, want)| got.1 <= 3.0 && (got.1 - want.1).abs() < 0.11 || want.1 == 1e6)
        );
        let gap = smooth(&[(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0), (3.0, 5.0), (4.0, 7.0)], 3, 99);
        let xs: Vec<f64> = gap.iter().map(|p| p.0).collect();
        assert_eq!(xs, [1.0, 2.0, 3.0]);
        assert!(gap[0].1.is_nan());
        assert_eq!((gap[1].1, gap[2].1), (5.0, 5.0));
        assert!(smooth(&[], 3, 99).is_empty() && smooth(&line[..5], 7, 99).is_empty());
        assert_eq!(
            smooth(&line, 1, 7).iter().map(|p| p.0).collect::<Vec<_>>(),
            [0.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 19.0]
        );
        assert_eq!((window(1), window(44), window(45)), (1, 1, 9));
        assert_eq!((window(100), window(600), window(700)), (9, 13, 15));
    }

    /// A curve that ends in one low value does not dive to it.
    #[test]
    fn the_last_value_alone_does_not_move_the_curve() {
        let mut points: Points = (0..100).map(|i| (i as f64, 1.0)).collect();
        points[99].1 = 0.2;
        assert!(smooth(&points, window(100), 1000).iter().all(|point| point.1 == 1.0));
    }

    #[test]
    fn thinning_keeps_extremes_order_and_gaps() {
        let mut points: Points = (0..10_000).map(|i| (i as f64, (i % 7) as f64)).collect();
        points[5_003].1 = 50.0;
        points[7_000].1 = f64::NAN;
        let thinned = thin(&points, 100);
        assert!(thinned.len() <= 201, "{}", thinned.len());
        assert!(thinned.contains(&(5_003.0, 50.0)));
        assert_eq!(stretches(&thinned).count(), 2);
        assert!(thinned.windows(2).all(|pair| pair[0].0 <= pair[1].0 || !pair[1].1.is_finite()));
        assert_eq!(thin(&points[..150], 100), points[..150]);
    }

    #[test]
    fn a_spike_does_not_press_the_rest_flat() {
        let range = |spike: f64| {
            let values: Points = (0..500).map(|i| (i as f64, if i == 250 { spike } else { 2.0 })).collect();
            robust_range(&values, &smooth(&values, 11, 500))
        };
        assert_eq!(range(900.0), Some((2.0, 3.0)));
        assert_eq!(range(2.5), Some((2.0, 2.5)));
        assert_eq!(robust_range(&[(0.0, f64::NAN)], &[]), None);
        let falling: Points = (0..500).map(|i| (i as f64, 1.0 + 8.0 * (-0.1 * i as f64).exp())).collect();
        assert_eq!(
            robust_range(&falling, &smooth(&falling, 11, 500)).unwrap().1,
            9.0,
            "the start is shown whole"
        );
    }

    #[test]
    fn every_range_gets_height() {
        for (range, scale) in
            [((1.5, 1.5), Scale::Log), ((0.0, 0.0), Scale::Linear), ((3.0, 3.0), Scale::Linear)]
        {
            let (low, high) = pad(range, scale, 0.05, 0.05);
            assert!(low < high, "{range:?}");
        }
    }

    #[test]
    fn no_range_has_endless_ticks_or_no_ends() {
        let values = [
            f64::NEG_INFINITY,
            f64::MIN,
            -1e308,
            -1.0,
            -f64::MIN_POSITIVE,
            -0.0,
            0.0,
            5e-324,
            f64::MIN_POSITIVE,
            1e-300,
            1.0,
            1.0 + f64::EPSILON,
            1e17,
            1e300,
            1e308,
            f64::MAX,
            f64::INFINITY,
            f64::NAN,
        ];
        for low in values {
            for high in values {
                for scale in [Scale::Linear, Scale::Log] {
                    assert!(ticks(low, high, scale, 6).len() <= 28, "{low} {high} {scale:?}");
                    let (bottom, top) = pad((low, high), scale, 0.05, 0.15);
                    assert!(bottom.is_finite() && top.is_finite(), "{low} {high} {scale:?}");
                    let places = [scale.place(bottom), scale.place(top)];
                    assert!((places[1] - places[0]).is_finite(), "{low} {high} {scale:?}");
                    assert!(ticks(bottom, top, scale, 6).len() <= 28, "{low} {high} {scale:?}");
                }
            }
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0.0, 600.0, Scale::Linear, 6), [0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0]);
        assert_eq!(ticks(1.3, 2.6, Scale::Log, 3), [1.5, 2.0, 2.5]);
        assert_eq!(ticks(1.2, 6.4, Scale::Log, 6), [1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(ticks(0.5, 2e5, Scale::Log, 6), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
        assert!(ticks(1.0, 1.0, Scale::Linear, 5).is_empty());
        for exponent in -30..30 {
            for (low, high) in [(0.0, 1.7), (1.0, 3.9), (0.9, 47.0), (1e-6, 9e8)] {
                for scale in [Scale::Linear, Scale::Log] {
                    let unit = 10f64.powi(exponent);
                    let count = ticks((low * unit).max(1e-40), high * unit, scale, 6).len();
                    assert!((1..=12).contains(&count), "{low} {high} e{exponent} {scale:?}: {count}");
                }
            }
        }
    }
}
