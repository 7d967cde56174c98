//! Ends the process of an aborted run when a rank hangs in its own work, where no error can reach it.

use crate::device::communicator::Communicator;
use crate::error::Error;
use crate::lock::lock;
use crate::results::progress::eprint_line;
use crate::results::streams::drain;
use crate::threads::spawn_detached;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time that ranks have after an abort to end by themselves.
pub const GRACE: Duration = Duration::from_secs(3);

/// How long the exit waits for a reader of the error.
const SAY_TIMEOUT: Duration = Duration::from_secs(1);

type ExitHook = Box<dyn FnOnce(&Error) + Send>;

/// Exits the process [`GRACE`] after an abort, unless it is disarmed first.
#[derive(Clone, Default)]
pub struct ExitGuard(Arc<Shared>);

#[derive(Default)]
struct Shared {
    disarmed: AtomicBool,
    hook: Mutex<Option<ExitHook>>,
}

impl ExitGuard {
    /// Arms a guard that exits the process [`GRACE`] after the run of `comm` is aborted. Prints the reason to
    /// stderr if `prints`.
    pub fn arm(comm: &Arc<dyn Communicator>, prints: bool) -> Self {
        let guard = Self::default();
        let for_hook = guard.clone();
        comm.on_abort(Box::new(move |error| {
            let (guard, reason) = (for_hook.clone(), error.clone());
            let body = move || {
                std::thread::sleep(GRACE);
                guard.exit(prints, &reason);
            };
            if spawn_detached("xrun-exit", body).is_err() {
                // A process that may hang is worse than one that ends early.
                for_hook.exit(prints, error);
            }
        }));
        guard
    }

    /// Sets a hook that runs before the process exits, for example to record how the run ended.
    pub fn before_exit(&self, hook: impl FnOnce(&Error) + Send + 'static) {
        *lock(&self.0.hook) = Some(Box::new(hook));
    }

    /// Disarms the guard, because the process will end by itself.
    pub fn disarm(&self) {
        self.0.disarmed.store(true, Ordering::SeqCst);
    }

    fn exit(&self, prints: bool, error: &Error) {
        if self.0.disarmed.swap(true, Ordering::SeqCst) {
            return;
        }
        if prints {
            eprint_line(&format!("error: {error}"));
        }
        if let Some(hook) = lock(&self.0.hook).take() {
            hook(error);
        }
        let _ = drain(SAY_TIMEOUT);
        std::process::exit(error.kind().exit_code().into());
    }
}
