//! Tables with a row for each rank, as preprocessor definitions of kernels. The kernel's source does not
//! depend on the rank that launches it, so it is compiled once for all ranks.

use crate::device::gpu::{Arg, Kernel};

/// The most bytes of tables with a row for each rank. Larger tables contain only the row of the rank that
/// launches the kernel. Kernels have 64 KiB of constant memory.
const MAX_TABLE_BYTES: usize = 48 << 10;

/// The rows of a kernel's tables: one per rank, or only the launching rank's.
#[derive(Debug)]
pub(super) struct RankTables<'a, T> {
    rows: &'a [Vec<T>],
    row: usize,
    columns: usize,
}

impl<'a, T> RankTables<'a, T> {
    /// Creates the rows of `tables` tables for a kernel that `rank` launches. `by_rank` holds the entries of
    /// each rank, or a single list if all ranks have the same entries.
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

    /// Returns the number of entries in the longest row. Tables have one column more.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Adds the number of rows to a kernel.
    pub(super) fn define_rows_in(&self, kernel: Kernel) -> Kernel {
        kernel.with("ROWS", self.rows.len().max(1))
    }

    /// Returns the row of the rank, a kernel argument.
    pub(super) fn row(&self) -> Arg {
        Arg::Size(self.row)
    }

    /// Returns one number of every entry as the initializer of an array with `ROWS` rows. Each row ends with
    /// a sentinel beyond all elements, and shorter rows are filled up with it.
    pub(super) fn initializer(&self, number: impl Fn(&T) -> usize) -> String {
        let row = |entries: &[T]| {
            let numbers = entries.iter().map(&number).map(|number| format!("{number}ull,"));
            let sentinels = (entries.len()..=self.columns).map(|_| "~0ull,".to_owned());
            format!("{{{}}},", numbers.chain(sentinels).collect::<String>())
        };
        let rows = self.rows.iter().map(|entries| row(entries));
        format!("{{{}}}", rows.collect::<String>())
    }

    /// Adds the ranges of a buffer that each rank has to a kernel, as the preprocessor definitions of
    /// `kernels/ranges.cuh`. `places` gives a range's first elements in the buffer and in the flat buffers.
    /// Without ranges, the buffer is flat.
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
