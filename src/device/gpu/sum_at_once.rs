//! The kernel that sums a few numbers over ranks which have access to each other's memory.

use super::{Arg, DevicePtr, Grid, Kernel, MAX_RANKS};

/// Threads of its only block.
const THREADS: usize = 1024;

/// Words of 32 bits at the beginning of a rank's area: flags of [`MAX_RANKS`] ranks and a count of calls.
pub const AREA_FLAGS: usize = 64;

/// Returns the words of a rank's area for sums of up to `capacity` numbers.
pub fn area_words(ranks: usize, capacity: usize) -> usize {
    AREA_FLAGS + 2 * ranks * capacity
}

/// Returns the capacity of an area of so many words.
pub fn area_capacity(words: usize, ranks: usize) -> usize {
    words.saturating_sub(AREA_FLAGS) / (2 * ranks)
}

/// Returns the kernel that replaces tensors, given as (address, elements), by their sums over ranks in their
/// order, with its launch; without tensors, ranks wait for each other. `areas` are the addresses of those of
/// all ranks, with room for `capacity` numbers. `None` for more numbers, tensors or ranks than it takes.
pub fn sum_at_once(
    tensors: &[(DevicePtr, usize)],
    (areas, capacity): (&[DevicePtr], usize),
    own: usize,
) -> Option<(Kernel, Grid, [Arg; 7])> {
    let total: usize = tensors.iter().map(|(_, elements)| elements).sum();
    if total > capacity || tensors.len() > MAX_RANKS || areas.len() > MAX_RANKS {
        return None;
    }
    let filled = |numbers: &mut dyn Iterator<Item = u64>| {
        Arg::Ranks(std::array::from_fn(|_| numbers.next().unwrap_or_default()))
    };
    let mut end = 0;
    let mut ends = tensors.iter().map(|(_, elements)| {
        end += *elements as u64;
        end
    });
    let kernel = Kernel::new("sum_at_once", "sum_at_once").with("THREADS", THREADS).with("FLAGS", AREA_FLAGS);
    let args = [
        filled(&mut tensors.iter().map(|(address, _)| *address)),
        filled(&mut ends),
        filled(&mut areas.iter().copied()),
        tensors.len().into(),
        capacity.into(),
        areas.len().into(),
        own.into(),
    ];
    Some((kernel, Grid::new(1, THREADS as u32), args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let areas = [1 << 20, 2 << 20];
        let (_, _, args) = sum_at_once(&[(64, 3), (128, 5)], (&areas, 8), 1).unwrap();
        assert_eq!(args[0], Arg::Ranks([64, 128, 0, 0, 0, 0, 0, 0]));
        assert_eq!(args[1], Arg::Ranks([3, 8, 0, 0, 0, 0, 0, 0]));
        assert_eq!(args[2], Arg::Ranks([1 << 20, 2 << 20, 0, 0, 0, 0, 0, 0]));
        assert!(sum_at_once(&[(64, 3), (128, 6)], (&areas, 8), 1).is_none());
        assert!(sum_at_once(&[(64, 1); MAX_RANKS + 1], (&areas, 100), 1).is_none());
        assert!(sum_at_once(&[], (&[0; MAX_RANKS + 1], 8), 1).is_none());
        assert!(sum_at_once(&[], (&areas, 0), 0).is_some(), "ranks wait for each other");
        assert_eq!((area_words(2, 8), area_capacity(AREA_FLAGS + 32, 2)), (AREA_FLAGS + 32, 8));
    }
}
