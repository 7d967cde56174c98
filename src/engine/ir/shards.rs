//! Ownership of the flat parameter buffers: which rank updates which elements.

use std::ops::Range;

/// A range of the flat parameter buffers that one rank updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedRange {
    /// The rank.
    pub rank: usize,
    /// First element in the flat buffers.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// First element in the rank's shard, which holds the rank's ranges one after another.
    pub offset: usize,
}

impl OwnedRange {
    /// Returns the range in the flat buffers.
    pub fn flat(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// Returns the part of the range that lies within `flat`; `None` if they are disjoint.
    pub fn within(&self, flat: &Range<usize>) -> Option<Self> {
        let (start, end) = (self.start.max(flat.start), (self.start + self.len).min(flat.end));
        (start < end).then(|| Self {
            start,
            len: end - start,
            offset: self.offset + start - self.start,
            ..*self
        })
    }
}

/// A part of the flat buffers: ranks divide it, or one rank owns it whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The element after the last one. The part begins where the previous one ends.
    pub end: usize,
    /// True if one rank owns all of it.
    pub whole: bool,
}

/// A table of ranges of the flat parameter buffers and the ranks that own them.
///
/// Ranges ignore tensor boundaries, except where one rank owns a whole part. They begin at multiples of the
/// gradient norm's blocks, so that one rank has all elements of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// The number of ranks.
    pub ranks: usize,
    /// The elements of a block. Ranges begin at its multiples.
    pub block: usize,
    /// All ranges in the order of the flat buffers, which they cover unless the table is restricted.
    pub ranges: Vec<OwnedRange>,
    /// The elements of the longest shard. Every rank allocates that many.
    pub shard_len: usize,
}

impl Shards {
    /// Divides each part of the flat buffers among the ranks, in blocks of `block` elements. Parts follow
    /// each other from element 0 and are given by their ends. A block belongs to the part in which it begins.
    /// Where a part does not divide equally, ranks take turns at the blocks left over.
    pub fn new(ends: &[usize], ranks: usize, block: usize) -> Self {
        let parts: Vec<Part> = ends.iter().map(|&end| Part { end, whole: false }).collect();
        Self::from_parts(&parts, ranks, block)
    }

    /// Divides parts of the flat buffers like [`Shards::new`], except that each part marked `whole` gets one
    /// owner. The longest whole part goes first, each to the rank with the fewest elements in whole parts
    /// (Graham, "Bounds on multiprocessing timing anomalies", 1969). Whole parts begin and end at multiples
    /// of a block.
    pub fn from_parts(parts: &[Part], ranks: usize, block: usize) -> Self {
        let flat_len = parts.last().map_or(0, |part| part.end);
        let owners = owners_of_whole_parts(parts, ranks);
        let (mut ranges, mut lengths, mut turn) = (Vec::new(), vec![0; ranks], 0);
        let mut own = |rank: usize, from: usize, to: usize| {
            if from < to {
                ranges.push(OwnedRange { rank, start: from, len: to - from, offset: lengths[rank] });
                lengths[rank] += to - from;
            }
        };
        let starts = std::iter::once(0).chain(parts.iter().map(|part| part.end));
        for ((start, part), owner) in starts.zip(parts).zip(owners) {
            if let Some(rank) = owner {
                own(rank, start, part.end);
                continue;
            }
            let (mut next, end) = (start.div_ceil(block), part.end.div_ceil(block));
            let (each, left_over) = ((end - next) / ranks, (end - next) % ranks);
            for position in 0..ranks {
                let blocks = each + usize::from(position < left_over);
                let (from, to) = ((next * block).min(flat_len), ((next + blocks) * block).min(flat_len));
                own((turn + position) % ranks, from, to);
                next += blocks;
            }
            turn = (turn + left_over) % ranks;
        }
        Self { ranks, block, ranges, shard_len: lengths.into_iter().max().unwrap_or(0) }
    }

    /// Returns the table for some ranges of the flat buffers, which ascend and are disjoint. What a rank owns
    /// of them lies one after another in a shard of its own.
    pub fn restricted(&self, to: &[Range<usize>]) -> Self {
        let (mut ranges, mut lengths) = (Vec::new(), vec![0; self.ranks]);
        for owned in to.iter().flat_map(|flat| self.within(flat.clone())) {
            ranges.push(OwnedRange { offset: lengths[owned.rank], ..owned });
            lengths[owned.rank] += owned.len;
        }
        Self { ranges, shard_len: lengths.into_iter().max().unwrap_or(0), ..*self }
    }

    /// Returns the ranges of a rank, in the order of the flat buffers and of the rank's shard.
    pub fn for_rank(&self, rank: usize) -> impl Iterator<Item = &OwnedRange> {
        self.ranges.iter().filter(move |range| range.rank == rank)
    }

    /// Returns the parts of the ranges that lie within `flat`.
    pub fn within(&self, flat: Range<usize>) -> impl Iterator<Item = OwnedRange> + '_ {
        // A linear search would be slow: each parameter may have as many ranges as there are ranks.
        let first = self.ranges.partition_point(|range| range.start + range.len <= flat.start);
        self.ranges[first..].iter().map_while(move |range| range.within(&flat))
    }
}

/// Returns the owner of each whole part; `None` for the other parts.
fn owners_of_whole_parts(parts: &[Part], ranks: usize) -> Vec<Option<usize>> {
    let start = |i: usize| if i == 0 { 0 } else { parts[i - 1].end };
    let mut whole: Vec<(usize, usize)> =
        (0..parts.len()).filter(|&i| parts[i].whole).map(|i| (parts[i].end - start(i), i)).collect();
    whole.sort_by_key(|&(len, i)| (std::cmp::Reverse(len), i));
    let (mut owners, mut lengths) = (vec![None; parts.len()], vec![0; ranks]);
    for (len, i) in whole {
        let least = (0..ranks).min_by_key(|&rank| lengths[rank]).unwrap_or(0);
        lengths[least] += len;
        owners[i] = Some(least);
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_are_divided_in_whole_blocks() {
        let shards = Shards::new(&[10, 37, 40], 2, 4);
        let table: Vec<_> = shards.ranges.iter().map(|r| (r.rank, r.start, r.len, r.offset)).collect();
        // Blocks 0 to 2 begin in the first part, 3 to 9 in the second, none in the third. Rank 0 gets the
        // extra block of the first part, rank 1 the one of the second.
        assert_eq!(table, [(0, 0, 8, 0), (1, 8, 4, 0), (1, 12, 16, 4), (0, 28, 12, 8)]);
        assert_eq!((shards.ranks, shards.shard_len), (2, 20));
        let within: Vec<_> = shards.within(10..14).map(|r| (r.rank, r.start, r.len, r.offset)).collect();
        assert_eq!(within, [(1, 10, 2, 2), (1, 12, 2, 4)]);
    }

    #[test]
    fn whole_parts_have_one_owner_and_are_balanced() {
        let part = |end: usize, whole: bool| Part { end, whole };
        let parts = [part(8, true), part(12, false), part(28, true), part(40, true), part(50, false)];
        let shards = Shards::from_parts(&parts, 2, 4);
        let table: Vec<_> = shards.ranges.iter().map(|r| (r.rank, r.start, r.len, r.offset)).collect();
        // The whole parts have 16, 12 and 8 elements: rank 0 owns the first, rank 1 the other two. Blocks 2,
        // 10, 11 and 12 are left to divide.
        let expected =
            [(1, 0, 8, 0), (0, 8, 4, 0), (0, 12, 16, 4), (1, 28, 12, 8), (1, 40, 8, 20), (0, 48, 2, 20)];
        assert_eq!(table, expected);
        let some = shards.restricted(&[4..10, 30..42]);
        let table: Vec<_> = some.ranges.iter().map(|r| (r.rank, r.start, r.len, r.offset)).collect();
        assert_eq!(table, [(1, 4, 4, 0), (0, 8, 2, 0), (1, 30, 10, 4), (1, 40, 2, 14)]);
        assert_eq!((some.ranks, some.block, some.shard_len), (2, 4, 16));
    }

    proptest! {
        #[test]
        fn every_element_has_one_owner_and_one_place(
            lengths in prop::collection::vec(1..3000usize, 1..8),
            ranks in 1..9usize,
            block in 1..200usize,
        ) {
            let sums = lengths.iter().scan(0, |sum, len| { *sum += len; Some(*sum) });
            let ends: Vec<usize> = sums.collect();
            let (shards, flat_len) = (Shards::new(&ends, ranks, block), ends[ends.len() - 1]);
            let (mut next, mut lengths) = (0, vec![0; ranks]);
            for range in &shards.ranges {
                prop_assert_eq!((range.start, range.offset), (next, lengths[range.rank]));
                prop_assert!(range.start % block == 0 && range.len > 0);
                next += range.len;
                lengths[range.rank] += range.len;
            }
            prop_assert_eq!(next, flat_len);
            prop_assert_eq!(lengths.into_iter().max(), Some(shards.shard_len));
            // Shards are equal up to one block.
            prop_assert!(shards.shard_len <= flat_len.div_ceil(ranks) + block);
        }
    }
}
