//! The running median, which smooths every curve.

use super::Points;
use std::ops::Range;

/// Rows in the narrowest window. The median of fewer rows follows single values.
const MIN_WINDOW: usize = 9;

/// Returns the width, in rows, of the window that smooths a curve of `rows` rows: a fiftieth of them, at
/// least nine, and odd. A curve shorter than five windows is not smoothed, and its width is 1.
pub fn window(rows: usize) -> usize {
    let window = (rows / 50).max(MIN_WINDOW) | 1;
    if rows < 5 * window { 1 } else { window }
}

/// Returns the places that have a whole window around them. A smoothed curve has only these points, because a
/// shorter window would end on single values.
pub fn whole_windows(rows: usize, window: usize) -> Range<usize> {
    let half = window / 2;
    half..rows.saturating_sub(half).max(half)
}

/// Returns the running median around each point, or around about `count` evenly spaced points of a longer
/// curve. Windows are centered, so the curve does not lag behind a falling loss, and only whole windows
/// count. A single spike leaves no trace. Gaps stay gaps.
pub fn smooth(points: &[(f64, f64)], window: usize, count: usize) -> Points {
    let whole = whole_windows(points.len(), window);
    let stride = whole.len().div_ceil(count.max(1)).max(1);
    let last = whole.end.saturating_sub(1);
    medians(points, window, whole.clone().filter(|i| (i - whole.start).is_multiple_of(stride) || *i == last))
}

/// Returns the median of the window around each of these places, which must ascend and lie within
/// [`whole_windows`]. Values that are not finite are ignored, and the point at such a place is a gap.
///
/// This takes about as long as sorting the points, however wide the window is, because the window slides over
/// their ranks.
pub fn medians(points: &[(f64, f64)], window: usize, places: impl IntoIterator<Item = usize>) -> Points {
    let half = window / 2;
    let mut ranked = Ranked::new(points);
    let (mut from, mut to) = (0, 0);
    let mut median = |place: usize| {
        while to <= place + half {
            ranked.set(to, true);
            to += 1;
        }
        while from < place - half {
            ranked.set(from, false);
            from += 1;
        }
        let (x, y) = points[place];
        (x, if y.is_finite() { points[ranked.middle()].1 } else { f64::NAN })
    };
    places.into_iter().map(&mut median).collect()
}

/// The finite points in ascending order of value, and which of them are in the window. Blocks of about √n
/// ranks each count their members, so the middle is found without a look at every rank.
struct Ranked {
    /// The place of the point at each rank.
    order: Vec<usize>,
    /// The rank of the point at each place; `None` for a gap.
    rank: Vec<Option<usize>>,
    is_inside: Vec<bool>,
    /// How many points of each block are in the window.
    blocks: Vec<usize>,
    block: usize,
    count: usize,
}

impl Ranked {
    fn new(points: &[(f64, f64)]) -> Self {
        let mut order: Vec<usize> = (0..points.len()).filter(|i| points[*i].1.is_finite()).collect();
        order.sort_unstable_by(|a, b| points[*a].1.total_cmp(&points[*b].1));
        let mut rank = vec![None; points.len()];
        order.iter().enumerate().for_each(|(at, place)| rank[*place] = Some(at));
        let block = order.len().isqrt().max(1);
        let (is_inside, blocks) = (vec![false; order.len()], vec![0; order.len() / block + 1]);
        Self { order, rank, is_inside, blocks, block, count: 0 }
    }

    /// Moves a point into the window or out of it.
    fn set(&mut self, place: usize, is_inside: bool) {
        let Some(rank) = self.rank[place] else { return };
        self.is_inside[rank] = is_inside;
        for count in [&mut self.blocks[rank / self.block], &mut self.count] {
            *count = if is_inside { *count + 1 } else { *count - 1 };
        }
    }

    /// Returns the place of the median, or of the upper of two middle values. The window must have a finite
    /// value.
    fn middle(&self) -> usize {
        let (mut left, mut block) = (self.count / 2, 0);
        while self.blocks[block] <= left {
            left -= self.blocks[block];
            block += 1;
        }
        let ranks = block * self.block..self.order.len();
        let rank = ranks.filter(|rank| self.is_inside[*rank]).nth(left);
        self.order[rank.expect("the block has the middle")]
    }
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

    /// A curve whose last value is low does not dive to it.
    #[test]
    fn the_last_value_alone_does_not_move_the_curve() {
        let mut points: Points = (0..100).map(|i| (i as f64, 1.0)).collect();
        points[99].1 = 0.2;
        assert!(smooth(&points, window(100), 1000).iter().all(|point| point.1 == 1.0));
    }

    #[test]
    fn the_median_is_the_middle_of_the_window_at_every_place() {
        let mut points: Points = (0..211_u32).map(|i| (f64::from(i), f64::from(i * 7919 % 53))).collect();
        for i in [0, 40, 41, 42, 43, 44, 210] {
            points[i].1 = [f64::NAN, f64::INFINITY][i % 2];
        }
        for window in [1, 2, 3, 8, 51, 211] {
            for stride in [1, 7] {
                let places: Vec<usize> = whole_windows(points.len(), window).step_by(stride).collect();
                let expected = |place: usize| {
                    let around = &points[place - window / 2..=place + window / 2];
                    let mut ys: Vec<f64> = around.iter().map(|p| p.1).filter(|y| y.is_finite()).collect();
                    ys.sort_by(f64::total_cmp);
                    if points[place].1.is_finite() { ys[ys.len() / 2].to_bits() } else { f64::NAN.to_bits() }
                };
                let found = medians(&points, window, places.iter().copied());
                let bits: Vec<u64> = found.iter().map(|point| point.1.to_bits()).collect();
                assert_eq!(bits, places.iter().map(|at| expected(*at)).collect::<Vec<_>>(), "{window}");
            }
        }
    }

    #[test]
    fn a_window_wider_than_the_curve_has_no_median() {
        let points: Points = (0..5).map(|i| (f64::from(i), 1.0)).collect();
        for window in [7, 12, usize::MAX] {
            assert!(whole_windows(5, window).is_empty() && smooth(&points, window, 9).is_empty(), "{window}");
        }
    }
}
