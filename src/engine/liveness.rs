//! Counts progress in this process, for the watchdogs of `ranks`.
//!
//! Code that may work for longer than a few seconds (tensors of a checkpoint, pieces of a corpus, nodes of a
//! program, pictures) reports every part that it finishes. A watchdog compares the count with an earlier one.
//! It ends the run if neither the count nor any rank's status has changed for `parallelism.timeout_s`.

use std::sync::atomic::{AtomicU64, Ordering};

static PARTS_DONE: AtomicU64 = AtomicU64::new(0);

/// Reports that a part of the work is done. Any thread may call it, except one that works ahead in the
/// background: that thread may go on while the rank hangs.
pub fn report_progress() {
    PARTS_DONE.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of parts reported so far.
pub fn parts_done() -> u64 {
    PARTS_DONE.load(Ordering::Relaxed)
}
