//! The kernel that makes several small copies together.

use super::{Arg, DevicePtr, Grid, Kernel, MAX_RANKS};

/// Threads of a block. Each block makes one copy.
const THREADS: usize = 512;

/// Largest size in bytes of a copy made by the kernel: one block moves that much in a few microseconds, which
/// a copy engine needs for any size.
const MAX_BYTES: usize = 32 << 10;

/// Largest number of copies in one launch.
pub const MAX_COPIES: usize = MAX_RANKS;

/// A small copy, in 4-byte words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallCopy {
    to: DevicePtr,
    from: DevicePtr,
    words: usize,
}

impl SmallCopy {
    /// Creates the copy of `bytes` bytes between ranges that do not overlap; `None` if it is not small, or
    /// not made of aligned words.
    pub fn new(to: DevicePtr, from: DevicePtr, bytes: usize) -> Option<Self> {
        let aligned = [to, from, bytes as DevicePtr].iter().all(|n| n.is_multiple_of(4));
        (aligned && bytes <= MAX_BYTES).then_some(Self { to, from, words: bytes / 4 })
    }
}

/// Returns the kernel that makes up to [`MAX_COPIES`] copies, with its launch.
pub fn copy_small(copies: &[SmallCopy]) -> (Kernel, Grid, [Arg; 3]) {
    let of = |number: fn(&SmallCopy) -> DevicePtr| {
        Arg::Ranks(std::array::from_fn(|at| copies.get(at).map_or(0, number)))
    };
    let kernel = Kernel::new("copy_small", "copy_small").with("THREADS", THREADS);
    let args = [of(|copy| copy.to), of(|copy| copy.from), of(|copy| copy.words as DevicePtr)];
    (kernel, Grid::new(copies.len().min(MAX_COPIES), THREADS as u32), args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_and_few_of_them_are_a_small_copy() {
        assert!(SmallCopy::new(64, 128, MAX_BYTES).is_some());
        assert!(SmallCopy::new(64, 128, MAX_BYTES + 4).is_none());
        assert!(SmallCopy::new(64, 130, 8).is_none());
        assert!(SmallCopy::new(64, 128, 6).is_none());
    }

    #[test]
    fn a_block_makes_each_copy() {
        let copies = [SmallCopy::new(64, 128, 8), SmallCopy::new(256, 512, 12)].map(Option::unwrap);
        let (_, grid, args) = copy_small(&copies);
        assert_eq!(grid.blocks, [2, 1, 1]);
        assert_eq!(args[0], Arg::Ranks([64, 256, 0, 0, 0, 0, 0, 0]));
        assert_eq!(args[1], Arg::Ranks([128, 512, 0, 0, 0, 0, 0, 0]));
        assert_eq!(args[2], Arg::Ranks([2, 3, 0, 0, 0, 0, 0, 0]));
    }
}
