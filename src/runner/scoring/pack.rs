//! Places groups of requests into rows of attention: longest first, each into the row with the least space
//! that suffices. Places never change scores, so any rule would do; this one leaves little padding.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Which groups share a batch. A group has the requests of an item that share a prefix. It never changes
/// scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// As many as fit, several in a row of attention.
    #[default]
    Packed,
    /// One in a row of attention.
    Apart {
        /// The most groups in a batch, > 0.
        batch: usize,
    },
    /// As [`Grouping::Packed`], with few groups in a batch.
    PackedUpTo {
        /// The most groups in a batch, > 0.
        batch: usize,
    },
}

impl Grouping {
    /// Returns the most groups in a row of attention.
    fn in_row(self) -> usize {
        match self {
            Self::Packed => usize::MAX,
            Self::Apart { .. } => 1,
            Self::PackedUpTo { batch } => batch,
        }
    }

    /// Returns the most groups in a batch.
    pub(super) fn in_batch(self) -> usize {
        match self {
            Self::Packed => usize::MAX,
            Self::Apart { batch } | Self::PackedUpTo { batch } => batch,
        }
    }
}

/// The place of a group in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlacedGroup {
    /// Index of the group.
    pub group: usize,
    /// First token in the row.
    pub start: usize,
}

/// Returns rows of `seq_len` tokens with the groups that take this much room in them. Each begins at a
/// multiple of `step`, which divides `seq_len`. None may take more than a row.
pub(super) fn pack(
    rooms: &[usize],
    (seq_len, step): (usize, usize),
    grouping: Grouping,
) -> Vec<Vec<PlacedGroup>> {
    let most = grouping.in_row();
    let mut order: Vec<usize> = (0..rooms.len()).collect();
    order.sort_by_key(|&group| Reverse(rooms[group]));
    let mut rows: Vec<Vec<PlacedGroup>> = Vec::new();
    // Rows by the space that is left in them.
    let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for group in order {
        let len = rooms[group].next_multiple_of(step);
        let fitting = open.range_mut(len..).next().and_then(|(space, rows)| Some((*space, rows.pop()?)));
        let (space, row) = fitting.unwrap_or_else(|| {
            rows.push(Vec::new());
            (seq_len, rows.len() - 1)
        });
        if open.get(&space).is_some_and(Vec::is_empty) {
            open.remove(&space);
        }
        rows[row].push(PlacedGroup { group, start: seq_len - space });
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
    fn groups_fill_rows_without_overlap() {
        let rooms: Vec<usize> = (0..300).map(|i| 1 + i * 37 % 192).collect();
        let rows = pack(&rooms, SHAPE, Grouping::Packed);
        let mut seen = vec![0; rooms.len()];
        for row in &rows {
            let mut free_from = 0;
            for &PlacedGroup { group, start } in row {
                assert!(start >= free_from && start % 48 == 0 && start + rooms[group] <= 192, "{row:?}");
                free_from = start + rooms[group];
                seen[group] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count == 1));
        let blocks: usize = rooms.iter().map(|len| len.div_ceil(48)).sum();
        assert!(rows.len() <= blocks.div_ceil(4) + 1, "{} rows for {blocks} blocks", rows.len());
    }

    #[test]
    fn apart_each_group_has_a_row() {
        let rows = pack(&[10, 192, 48, 1], SHAPE, Grouping::Apart { batch: 2 });
        let groups: Vec<Vec<usize>> =
            rows.iter().map(|row| row.iter().map(|place| place.group).collect()).collect();
        assert_eq!(groups, [[1], [2], [0], [3]]);
        assert!(rows.iter().flatten().all(|place| place.start == 0));
    }
}
