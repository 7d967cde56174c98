//! The kernel that fills a few bytes.

use super::{Arg, DevicePtr, Grid, Kernel};

/// Threads of its only block.
const THREADS: usize = 256;

/// Most words that one block fills in about the time of a launch.
const MOST_WORDS: usize = 1 << 14;

/// Returns the kernel that sets `words` words of 32 bits to one value, with its launch; `None` for more words
/// than a block should fill.
pub fn fill_words(to: DevicePtr, value: u32, words: usize) -> Option<(Kernel, Grid, [Arg; 3])> {
    let kernel = Kernel::new("fill", "fill_words").with("THREADS", THREADS);
    let launch = (kernel, Grid::new(1, THREADS as u32), [to.into(), value.into(), words.into()]);
    (words <= MOST_WORDS).then_some(launch)
}
