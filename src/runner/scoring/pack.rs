//! Places requests into rows of attention: longest first, each into the row with the least space that
//! suffices. Places never change scores, so any rule would do; this one leaves little padding.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Which requests share a batch. It never changes scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// As many as fit, several in a row of attention.
    #[default]
    Packed,
    /// One in a row of attention.
    Apart {
        /// The most requests in a batch, > 0.
        batch: usize,
    },
    /// As [`Grouping::Packed`], with few requests in a batch.
    PackedUpTo {
        /// The most requests in a batch, > 0.
        batch: usize,
    },
}

impl Grouping {
    /// Returns the most requests in a row of attention.
    fn in_row(self) -> usize {
        match self {
            Self::Packed => usize::MAX,
            Self::Apart { .. } => 1,
            Self::PackedUpTo { batch } => batch,
        }
    }

    /// Returns the most requests in a batch.
    pub(super) fn in_batch(self) -> usize {
        match self {
            Self::Packed => usize::MAX,
            Self::Apart { batch } | Self::PackedUpTo { batch } => batch,
        }
    }
}

/// The place of a request in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlacedRequest {
    /// Index of the request.
    pub request: usize,
    /// First token in the row.
    pub start: usize,
}

/// Returns rows of `seq_len` tokens with the requests of these lengths in them. Each begins at a multiple of
/// `step`, which divides `seq_len`. No request may be longer than a row.
pub(super) fn pack(
    lens: &[usize],
    (seq_len, step): (usize, usize),
    grouping: Grouping,
) -> Vec<Vec<PlacedRequest>> {
    let most = grouping.in_row();
    let mut order: Vec<usize> = (0..lens.len()).collect();
    order.sort_by_key(|&request| Reverse(lens[request]));
    let mut rows: Vec<Vec<PlacedRequest>> = Vec::new();
    // Rows by the space that is left in them.
    let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for request in order {
        let len = lens[request].next_multiple_of(step);
        let fitting = open.range_mut(len..).next().and_then(|(space, rows)| Some((*space, rows.pop()?)));
        let (space, row) = fitting.unwrap_or_else(|| {
            rows.push(Vec::new());
            (seq_len, rows.len() - 1)
        });
        if open.get(&space).is_some_and(Vec::is_empty) {
            open.remove(&space);
        }
        rows[row].push(PlacedRequest { request, start: seq_len - space });
        let left = space - len;
        if left >= step && rows[row].len() < most {
            open.entry(left).or_default().push(row);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: (usize, usize) = (192, 48);

    #[test]
    fn requests_fill_rows_without_overlap() {
        let lens: Vec<usize> = (0..300).map(|i| 1 + i * 37 % 192).collect();
        let rows = pack(&lens, SHAPE, Grouping::Packed);
        let mut seen = vec![0; lens.len()];
        for row in &rows {
            let mut free_from = 0;
            for &PlacedRequest { request, start } in row {
                assert!(start >= free_from && start % 48 == 0 && start + lens[request] <= 192, "{row:?}");
                free_from = start + lens[request];
                seen[request] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count == 1));
        let blocks: usize = lens.iter().map(|len| len.div_ceil(48)).sum();
        assert!(rows.len() <= blocks.div_ceil(4) + 1, "{} rows for {blocks} blocks", rows.len());
    }

    #[test]
    fn apart_each_request_has_a_row() {
        let rows = pack(&[10, 192, 48, 1], SHAPE, Grouping::Apart { batch: 2 });
        let requests: Vec<Vec<usize>> =
            rows.iter().map(|row| row.iter().map(|place| place.request).collect()).collect();
        assert_eq!(requests, [[1], [2], [0], [3]]);
        assert!(rows.iter().flatten().all(|place| place.start == 0));
    }
}
