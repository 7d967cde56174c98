//! Keeps what adds to the folder of kept things and what removes from it apart.

use crate::error::{Error, IoContext, Result};
use crate::regular;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one of the two waits for the other.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// What a process does with kept things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It keeps something, as any number of processes may at once.
    Adds,
    /// It removes what nothing names.
    Removes,
}

/// Locks the folder of kept things until the returned file is dropped; `None` if there is no folder yet, and
/// so nothing that could be removed. Waits up to a minute for others. The lock is on the folder itself, so it
/// leaves no file among what is committed.
///
/// # Errors
/// If the folder cannot be locked, or is still in use.
pub fn hold(kept: &Path, how: Use) -> Result<Option<File>> {
    if regular::is_missing(kept) {
        return Ok(None);
    }
    let folder = regular::open_folder(kept)?;
    let began = Instant::now();
    loop {
        let locked = if how == Use::Adds { folder.try_lock_shared() } else { folder.try_lock() };
        match locked {
            Ok(()) => return Ok(Some(folder)),
            Err(TryLockError::Error(e)) => return Err(e).at("lock", kept).map_err(Error::with_advice),
            Err(TryLockError::WouldBlock) if began.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::failed(format!(
                    "another process still keeps or removes something in {}; try again when it has ended",
                    kept.display()
                )));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_removes_waits_for_what_adds() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("results/kept");
        assert!(hold(&kept, Use::Adds).unwrap().is_none() && !kept.exists());
        std::fs::create_dir_all(&kept).unwrap();
        let adds = [hold(&kept, Use::Adds).unwrap(), hold(&kept, Use::Adds).unwrap()];
        let (began, wait) = (Instant::now(), Duration::from_millis(200));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(wait);
                drop(adds);
            });
            hold(&kept, Use::Removes).unwrap();
        });
        assert!(began.elapsed() >= wait);
        assert_eq!(std::fs::read_dir(&kept).unwrap().count(), 0, "no file is left");
    }
}
