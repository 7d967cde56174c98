//! The kernel that fills a few bytes.

use super::{Arg, DevicePtr, Grid, Kernel};

/// Threads of the kernel's only block.
const THREADS: usize = 256;

/// Largest number of words that one block fills in about the time of a launch.
const MAX_WORDS: usize = 1 << 14;

/// Returns the kernel that sets `words` 32-bit words to one value, with its launch; `None` if there are more
/// words than one block should fill.
pub fn fill_words(to: DevicePtr, value: u32, words: usize) -> Option<(Kernel, Grid, [Arg; 3])> {
    let kernel = Kernel::new("fill", "fill_words").with("THREADS", THREADS);
    let launch = (kernel, Grid::new(1, THREADS as u32), [to.into(), value.into(), words.into()]);
    (words <= MAX_WORDS).then_some(launch)
}
