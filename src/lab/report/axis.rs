//! Ranges and ticks of axes, computed before anything is drawn.

use crate::curve::Scale;

/// The largest number on an axis. Larger ones are drawn at its end.
const LARGEST: f64 = 1e300;

/// Widens a range by fractions of its drawn height, below and above. An empty range gets some height.
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

/// Limits an end of a range, so that its differences and powers of ten stay finite.
fn drawable(value: f64, scale: Scale) -> f64 {
    let value = if value.is_nan() { 0.0 } else { value };
    match scale {
        Scale::Linear => value.clamp(-LARGEST, LARGEST),
        Scale::Log => value.clamp(1.0 / LARGEST, LARGEST),
    }
}

/// Returns about `count` round values within a range: multiples of 1, 2 or 5 times a power of ten. On a log
/// scale that spans several powers, it returns such numbers themselves.
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

/// Returns the densest customary set of marks that has about `count` marks in the range.
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
