//! Kernels with which ranks that can access each other's memory sum a few numbers, or only wait for each
//! other.

use super::{Arg, DevicePtr, Grid, Kernel, MAX_RANKS};

/// Threads of the kernels' only block.
const THREADS: usize = 1024;

/// 32-bit words at the beginning of a rank's area: flags of [`MAX_RANKS`] ranks and a count of calls.
pub const AREA_FLAGS: usize = 64;

/// Returns the number of words in a rank's area for sums of up to `capacity` numbers.
pub fn area_words(ranks: usize, capacity: usize) -> usize {
    AREA_FLAGS + 2 * ranks * capacity
}

/// Returns the capacity of an area of `words` words.
pub fn area_capacity(words: usize, ranks: usize) -> usize {
    words.saturating_sub(AREA_FLAGS) / (2 * ranks)
}

/// Returns the kernel with which ranks wait for each other, with its launch. `areas` are the addresses of all
/// ranks' areas, at most [`MAX_RANKS`].
pub fn wait_for_ranks(areas: &[DevicePtr], own: usize) -> (Kernel, Grid, [Arg; 3]) {
    let args = [addresses(areas.iter().copied()), areas.len().into(), own.into()];
    (kernel("wait_for_ranks"), Grid::new(1, 32), args)
}

fn kernel(entry: &'static str) -> Kernel {
    Kernel::new("sum_at_once", entry).with("THREADS", THREADS).with("FLAGS", AREA_FLAGS)
}

fn addresses(mut numbers: impl Iterator<Item = u64>) -> Arg {
    Arg::Ranks(std::array::from_fn(|_| numbers.next().unwrap_or_default()))
}

/// Returns the kernel that replaces tensors, given as (address, elements), by their sums over ranks in rank
/// order, with its launch. `areas` are the addresses of all ranks' areas, at most [`MAX_RANKS`], each with
/// room for `capacity` numbers. `None` if there are more numbers or tensors than the kernel takes.
pub fn sum_at_once(
    tensors: &[(DevicePtr, usize)],
    (areas, capacity): (&[DevicePtr], usize),
    own: usize,
) -> Option<(Kernel, Grid, [Arg; 7])> {
    let total: usize = tensors.iter().map(|(_, elements)| elements).sum();
    if total > capacity || tensors.len() > MAX_RANKS {
        return None;
    }
    let mut end = 0;
    let ends = tensors.iter().map(|(_, elements)| {
        end += *elements as u64;
        end
    });
    let args = [
        addresses(tensors.iter().map(|(address, _)| *address)),
        addresses(ends),
        addresses(areas.iter().copied()),
        tensors.len().into(),
        capacity.into(),
        areas.len().into(),
        own.into(),
    ];
    Some((kernel("sum_at_once"), Grid::new(1, THREADS as u32), args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_numbers_or_tensors_are_rejected() {
        let areas = [1 << 20, 2 << 20];
        let (_, _, args) = sum_at_once(&[(64, 3), (128, 5)], (&areas, 8), 1).unwrap();
        assert_eq!(args[0], Arg::Ranks([64, 128, 0, 0, 0, 0, 0, 0]));
        assert_eq!(args[1], Arg::Ranks([3, 8, 0, 0, 0, 0, 0, 0]));
        assert_eq!(args[2], Arg::Ranks([1 << 20, 2 << 20, 0, 0, 0, 0, 0, 0]));
        assert!(sum_at_once(&[(64, 3), (128, 6)], (&areas, 8), 1).is_none());
        assert!(sum_at_once(&[(64, 1); MAX_RANKS + 1], (&areas, 100), 1).is_none());
        assert_eq!((area_words(2, 8), area_capacity(AREA_FLAGS + 32, 2)), (AREA_FLAGS + 32, 8));
    }
}
