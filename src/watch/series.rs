//! A series of values of any length in limited memory, with its spikes.

/// Most stretches that a series is kept in; more than a terminal has columns.
const MAX_STRETCHES: usize = 4096;

/// Share of a series over which its curve is smoothed, and the least number of points.
const WINDOW: (usize, usize) = (50, 9);

/// Values in the order of their places, as stretches of equally many points: where there are more than
/// [`MAX_STRETCHES`], neighbours are joined.
#[derive(Clone, Debug)]
pub struct Series {
    stretches: Vec<Stretch>,
    /// Points of a whole stretch.
    length: usize,
    count: usize,
    last: Option<(f64, f64)>,
    first_not_finite: Option<f64>,
}

/// Neighbouring points.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: f64,
    to: f64,
    low: f64,
    high: f64,
    sum: f64,
    /// Finite points, and all points.
    finite: usize,
    all: usize,
}

impl Stretch {
    fn join(self, next: Self) -> Self {
        Self {
            from: self.from,
            to: next.to,
            low: self.low.min(next.low),
            high: self.high.max(next.high),
            sum: self.sum + next.sum,
            finite: self.finite + next.finite,
            all: self.all + next.all,
        }
    }
}

impl Default for Series {
    fn default() -> Self {
        Self { stretches: Vec::new(), length: 1, count: 0, last: None, first_not_finite: None }
    }
}

impl Series {
    /// Adds the point behind all others. One that is not finite is a gap.
    pub fn push(&mut self, x: f64, y: f64) {
        self.count += 1;
        self.last = Some((x, y));
        let is_finite = y.is_finite();
        if !is_finite {
            self.first_not_finite.get_or_insert(x);
        }
        let value = if is_finite { (y, y, y) } else { (f64::INFINITY, f64::NEG_INFINITY, 0.0) };
        let (low, high, sum) = value;
        let point = Stretch { from: x, to: x, low, high, sum, finite: is_finite.into(), all: 1 };
        match self.stretches.last_mut().filter(|last| last.all < self.length) {
            Some(last) => *last = last.join(point),
            None => self.stretches.push(point),
        }
        if self.stretches.len() > MAX_STRETCHES {
            self.length *= 2;
            let joined = self.stretches.chunks(2).map(|pair| match pair {
                [one, next] => one.join(*next),
                _ => pair[0],
            });
            self.stretches = joined.collect();
        }
    }

    /// Returns the last point, finite or not.
    pub fn last(&self) -> Option<(f64, f64)> {
        self.last
    }

    /// Returns the place of the first value that is not finite.
    pub fn first_not_finite(&self) -> Option<f64> {
        self.first_not_finite
    }

    /// Returns place, lowest and highest value of every stretch with a finite one.
    pub fn spans(&self) -> impl Iterator<Item = (f64, f64, f64)> + '_ {
        let finite = self.stretches.iter().filter(|stretch| stretch.finite > 0);
        finite.map(|stretch| (f64::midpoint(stretch.from, stretch.to), stretch.low, stretch.high))
    }

    /// Returns the mean of every stretch; NaN for a gap.
    pub fn means(&self) -> Vec<(f64, f64)> {
        let mean = |stretch: &Stretch| stretch.sum / stretch.finite as f64;
        let place = |stretch: &Stretch| f64::midpoint(stretch.from, stretch.to);
        self.stretches.iter().map(|stretch| (place(stretch), mean(stretch))).collect()
    }

    /// Returns the means over `count` equal parts of the series, or those of its points where it has fewer.
    pub fn parts(&self, count: usize) -> Vec<f64> {
        let size = self.stretches.len().div_ceil(count.max(1)).max(1);
        let mean = |part: &[Stretch]| {
            let whole = part[1..].iter().fold(part[0], |joined, next| joined.join(*next));
            whole.sum / whole.finite as f64
        };
        self.stretches.chunks(size).map(mean).collect()
    }

    /// Returns the curve of the means over a centred window of a fiftieth of the series; where it has few
    /// points, of the points themselves. At the beginning windows are narrower, so that the curve does not
    /// lag behind a falling loss; at the end they reach back as far as ever, so that it does not end on
    /// single values.
    pub fn smoothed(&self) -> Vec<(f64, f64)> {
        let points = (self.count / WINDOW.0).max(WINDOW.1);
        let half = if self.count < 5 * points { 0 } else { points.div_ceil(2 * self.length) };
        let whole = |at: usize| {
            let before = half.min(at);
            let last = (at + before).min(self.stretches.len() - 1);
            let (sum, finite) = self.stretches[at - before..=last]
                .iter()
                .fold((0.0, 0), |(sum, finite), one| (sum + one.sum, finite + one.finite));
            if self.stretches[at].finite == 0 { f64::NAN } else { sum / finite as f64 }
        };
        self.means().iter().enumerate().map(|(at, (x, _))| (*x, whole(at))).collect()
    }

    /// Returns the range worth showing: all values, but spikes beyond the first value and one and a half
    /// times the highest smoothed one are cut off rather than pressing the rest flat. `None` without finite
    /// values.
    pub fn range(&self) -> Option<(f64, f64)> {
        let (_, first, _) = self.spans().next()?;
        let low = self.spans().map(|span| span.1).fold(f64::INFINITY, f64::min);
        let high = self.spans().map(|span| span.2).fold(f64::NEG_INFINITY, f64::max);
        let smoothed = self.smoothed();
        let usual = smoothed.iter().map(|(_, y)| *y).filter(|y| y.is_finite()).fold(0.0, f64::max);
        Some((low, if usual > 0.0 { high.min(first.max(1.5 * usual)) } else { high }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_series_keeps_its_spikes_and_its_mean_in_limited_memory() {
        let mut series = Series::default();
        for x in 0..100_000 {
            series.push(f64::from(x), if x == 54_321 { 1000.0 } else { 2.0 });
        }
        assert!(series.stretches.len() <= MAX_STRETCHES);
        assert_eq!(series.spans().map(|span| span.2).fold(0.0, f64::max), 1000.0);
        assert_eq!(series.last(), Some((99_999.0, 2.0)));
        let sum: f64 = series.stretches.iter().map(|stretch| stretch.sum).sum();
        assert!((sum - (2.0 * 99_999.0 + 1000.0)).abs() < 1e-6);
        let (low, high) = series.range().unwrap();
        assert_eq!(low, 2.0);
        assert!(high < 1000.0, "the spike is cut off: {high}");
    }

    #[test]
    fn what_is_not_finite_is_a_gap() {
        let mut series = Series::default();
        for (x, y) in [(1.0, 3.0), (2.0, f64::NAN), (3.0, f64::INFINITY), (4.0, 1.0)] {
            series.push(x, y);
        }
        assert_eq!(series.first_not_finite(), Some(2.0));
        assert_eq!(series.spans().collect::<Vec<_>>(), [(1.0, 3.0, 3.0), (4.0, 1.0, 1.0)]);
        let means = series.means();
        assert!(means[1].1.is_nan() && means[2].1.is_nan());
        assert!(series.smoothed()[1].1.is_nan());
        assert_eq!(series.range(), Some((1.0, 3.0)));
        assert_eq!(Series::default().range(), None);
    }
}
