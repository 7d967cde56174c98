//! What a process does when the run was ended and it does not come to its own end.

use crate::device::communicator::Communicator;
use crate::error::Error;
use crate::results::progress::tell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long ranks have to end by themselves once the run is ended.
pub const GRACE: Duration = Duration::from_secs(3);

type Will = Box<dyn FnOnce(&Error) + Send>;

/// Ends the process when the run was ended and a rank hangs all the same: in its own work, where no error reaches it.
#[derive(Clone, Default)]
pub struct LastWords(Arc<Shared>);

#[derive(Default)]
struct Shared {
    done: AtomicBool,
    will: Mutex<Option<Will>>,
}

impl std::fmt::Debug for LastWords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastWords").field("done", &self.0.done).finish_non_exhaustive()
    }
}

impl LastWords {
    /// Ends the process [`GRACE`] after the run of `comm` is ended, unless it is done by then.
    pub fn when_ended(comm: &Arc<dyn Communicator>) -> Self {
        let words = Self::default();
        let (mine, rank) = (words.clone(), comm.rank());
        comm.on_abort(Box::new(move |error| {
            let error = error.clone();
            std::thread::spawn(move || {
                std::thread::sleep(GRACE);
                mine.speak(rank, &error);
            });
        }));
        words
    }

    /// What is to be written down before the process is ended.
    pub fn leave(&self, will: impl FnOnce(&Error) + Send + 'static) {
        *self.0.will.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(will));
    }

    /// The process comes to its own end.
    pub fn not_needed(&self) {
        self.0.done.store(true, Ordering::SeqCst);
    }

    fn speak(&self, rank: usize, error: &Error) {
        if self.0.done.swap(true, Ordering::SeqCst) {
            return;
        }
        // Of several processes, that of rank 0 speaks for all.
        if rank == 0 {
            tell(&format!("error: {error}"));
        }
        if let Some(will) = self.0.will.lock().unwrap_or_else(PoisonError::into_inner).take() {
            will(error);
        }
        std::process::exit(error.kind().exit_code().into());
    }
}
