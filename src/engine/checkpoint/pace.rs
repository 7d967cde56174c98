//! How much of the machine a save uses: all of it while training waits, or little while training continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::liveness::report_progress;

/// A write beside training syncs its file every this many bytes. This bounds the dirty pages, so that syncs
/// of rows and summaries do not wait for a whole checkpoint.
const SYNC_BYTES: u64 = 32 << 20;

/// How a save uses the machine.
#[derive(Clone, Debug, Default)]
pub(super) enum Pace {
    /// Training waits. Hashes use all threads, and the watchdogs see the progress of every part.
    #[default]
    Exclusive,
    /// Training continues, and the save uses one thread. It counts its parts for callers that wait for the
    /// write, but not for the watchdogs: they must notice a training that hangs during a write.
    Background(Arc<AtomicU64>),
}

impl Pace {
    /// Adds bytes to a hash.
    pub(super) fn hash(&self, hasher: &mut blake3::Hasher, bytes: &[u8]) {
        match self {
            Self::Exclusive => hasher.update_rayon(bytes),
            Self::Background(_) => hasher.update(bytes),
        };
    }

    /// Counts a finished part.
    pub(super) fn count_part(&self) {
        match self {
            Self::Exclusive => report_progress(),
            Self::Background(parts) => _ = parts.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns true if a file that grows from `before` to `after` bytes must be synced.
    pub(super) fn syncs_between(&self, before: u64, after: u64) -> bool {
        matches!(self, Self::Background(_)) && before / SYNC_BYTES < after / SYNC_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::liveness::parts_done;

    #[test]
    fn a_write_beside_training_hides_its_parts_from_the_watchdogs_and_syncs_on_its_way() {
        let parts = Arc::new(AtomicU64::new(0));
        let beside = Pace::Background(Arc::clone(&parts));
        (0..1000).for_each(|_| beside.count_part());
        assert_eq!(parts.load(Ordering::Relaxed), 1000);
        let before = parts_done();
        Pace::Exclusive.count_part();
        assert!(parts_done() > before);
        assert!(beside.syncs_between(SYNC_BYTES - 1, SYNC_BYTES));
        assert!(!beside.syncs_between(SYNC_BYTES, 2 * SYNC_BYTES - 1));
        assert!(!Pace::Exclusive.syncs_between(0, 10 * SYNC_BYTES));
    }

    #[test]
    fn both_paces_hash_alike() {
        let bytes: Vec<u8> = (0..300_000u32).map(|i| (i * 31) as u8).collect();
        let hash = |pace: Pace| {
            let mut hasher = blake3::Hasher::new();
            pace.hash(&mut hasher, &bytes);
            hasher.finalize()
        };
        assert_eq!(hash(Pace::Exclusive), hash(Pace::Background(Arc::default())));
    }
}
