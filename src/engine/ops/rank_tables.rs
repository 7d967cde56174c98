//! Tables of what each rank owns, as preprocessor definitions of kernels. They have a row for each rank, and
//! a kernel argument selects the row. So the kernel's source does not depend on the rank that launches it,
//! and the kernel is compiled once for all ranks. Only tables that would be too large for this contain a
//! single rank's row.

use crate::device::gpu::{Arg, Kernel};

/// Limit on the bytes of all tables of a kernel together. Above it, they contain only the row of the rank
/// that launches the kernel. A kernel has 64 KiB of constant memory, and some kernels keep other tables there
/// too.
const MAX_TABLE_BYTES: usize = 48 << 10;

/// Returns the entry of `rank` in a list of one entry per rank, or of a single entry for all ranks.
pub(super) fn own<T>(by_rank: &[T], rank: usize) -> &T {
    match by_rank {
        [all] => all,
        by_rank => &by_rank[rank],
    }
}

/// The rows of a kernel's tables: one per rank, or only the launching rank's.
#[derive(Debug)]
pub(super) struct RankTables<'a, T> {
    rows: &'a [Vec<T>],
    /// Index in `rows` of the launching rank's row.
    row: usize,
    /// Number of entries in the longest row.
    columns: usize,
}

impl<'a, T> RankTables<'a, T> {
    /// Chooses the rows for a kernel that `rank` launches. `by_rank` holds the entries of each rank, a single
    /// list if all ranks have the same entries, or nothing if there are no entries. `tables` is the number of
    /// tables that the kernel makes of the entries; it counts toward the limit on their size.
    pub(super) fn new(by_rank: &'a [Vec<T>], rank: usize, tables: usize) -> Self {
        let longest = |rows: &[Vec<T>]| rows.iter().map(Vec::len).max().unwrap_or(0);
        let bytes = by_rank.len() * (longest(by_rank) + 1) * tables * size_of::<u64>();
        let (rows, row) = match by_rank.len() {
            0 | 1 => (by_rank, 0),
            _ if bytes <= MAX_TABLE_BYTES => (by_rank, rank),
            _ => (&by_rank[rank..=rank], 0),
        };
        Self { rows, row, columns: longest(rows) }
    }

    /// Returns the number of entries in the longest row. Tables have one more column, for the sentinel.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Adds the number of rows to a kernel, as the definition `ROWS`.
    pub(super) fn define_rows_in(&self, kernel: Kernel) -> Kernel {
        kernel.with("ROWS", self.rows.len().max(1))
    }

    /// Returns the index of the launching rank's row, to pass to the kernel as an argument.
    pub(super) fn row(&self) -> Arg {
        Arg::Size(self.row)
    }

    /// Returns the C++ initializer of one table: an array of `u64` with `ROWS` rows, which holds one number
    /// of every entry. Each row ends with a sentinel larger than any position (2⁶⁴ − 1), and shorter rows are
    /// filled up with it.
    pub(super) fn initializer(&self, number: impl Fn(&T) -> usize) -> String {
        let row = |entries: &[T]| {
            let numbers = entries.iter().map(&number).map(|number| format!("{number}ull,"));
            let sentinels = (entries.len()..=self.columns).map(|_| "~0ull,".to_owned());
            format!("{{{}}},", numbers.chain(sentinels).collect::<String>())
        };
        let rows = self.rows.iter().map(|entries| row(entries));
        format!("{{{}}}", rows.collect::<String>())
    }

    /// Adds to a kernel the definitions of `kernels/ranges.cuh`: which ranges of the flat buffers each rank
    /// owns. `places` returns the index of a range's first element in the rank's own buffer (its shard) and
    /// in the flat buffers. Without ranges, the two indices are the same for every element.
    pub(super) fn define_ranges_in(&self, kernel: Kernel, places: impl Fn(&T) -> (usize, usize)) -> Kernel {
        self.define_rows_in(kernel)
            .with("RANGE_COUNT", self.columns)
            .with("RANGE_OFFSETS", self.initializer(|range| places(range).0))
            .with("RANGE_STARTS", self.initializer(|range| places(range).1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initializer(by_rank: &[Vec<usize>], rank: usize) -> (String, Arg) {
        let tables = RankTables::new(by_rank, rank, 1);
        (tables.initializer(|&number| number), tables.row())
    }

    #[test]
    fn rows_are_as_long_as_the_longest() {
        let by_rank = [vec![0, 5], vec![], vec![7]];
        let expected = "{{0ull,5ull,~0ull,},{~0ull,~0ull,~0ull,},{7ull,~0ull,~0ull,},}";
        for rank in 0..3 {
            assert_eq!(initializer(&by_rank, rank), (expected.to_owned(), Arg::Size(rank)));
        }
    }

    #[test]
    fn one_list_serves_every_rank() {
        assert_eq!(initializer(&[vec![3]], 2), ("{{3ull,~0ull,},}".to_owned(), Arg::Size(0)));
    }

    #[test]
    fn tables_beyond_constant_memory_have_the_row_of_the_rank_alone() {
        let by_rank: Vec<Vec<usize>> = (0..8).map(|rank| vec![rank; 1000]).collect();
        assert!(8 * 1001 * size_of::<u64>() > MAX_TABLE_BYTES);
        let tables = RankTables::new(&by_rank, 5, 1);
        assert_eq!((tables.rows.len(), tables.row(), tables.columns()), (1, Arg::Size(0), 1000));
        assert!(tables.rows[0].iter().all(|&entry| entry == 5));
    }
}
