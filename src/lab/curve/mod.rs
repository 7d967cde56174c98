//! The curves of a run, prepared once for everything that draws them: pictures in reports, the page of `xrun
//! view` and the terminal.
//!
//! ```text
//! rows ─▶ Points of a column ─▶ smooth: a running median ─▶ thin: the extremes of each stretch
//! ```
//!
//! A blank cell makes no point. A value that is not finite is a gap: it keeps its place, and no line crosses
//! it.

mod median;
mod rows;
mod thin;

pub use median::{medians, smooth, whole_windows, window};
pub use rows::{CurveRow, GrowingCurves, points};
pub use thin::{Scale, buckets, extremes, stretches, thin};

/// Points in ascending order of x, or along the outline of an area. A y that is not finite is a gap.
pub type Points = Vec<(f64, f64)>;

/// Returns the lowest and the highest of the finite values; `None` if there is none.
pub fn finite_range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.into_iter().filter(|value| value.is_finite());
    finite.map(|value| (value, value)).reduce(|(low, high), (value, _)| (low.min(value), high.max(value)))
}

/// Returns the range of y worth showing. It covers all values, but cuts off spikes that exceed both the first
/// value and 1.5 times the highest smoothed value, since they would press the rest flat. `None` if no value
/// is finite.
pub fn robust_range(values: &[(f64, f64)], smoothed: &[(f64, f64)]) -> Option<(f64, f64)> {
    let range = |points: &[(f64, f64)]| finite_range(points.iter().map(|point| point.1));
    let (low, high) = range(values)?;
    let usual = range(smoothed).map(|range| range.1).filter(|usual| *usual > 0.0);
    // The smoothed curve begins half a window late, and a loss falls fastest before it begins.
    let first = values.iter().map(|p| p.1).find(|y| y.is_finite()).unwrap_or(low);
    Some((low, usual.map_or(high, |usual| high.min(first.max(1.5 * usual)))))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let high = robust_range(&falling, &smooth(&falling, 11, 500)).unwrap().1;
        assert_eq!(high, 9.0, "the start is shown whole");
    }
}
