//! SIGINT and SIGTERM: the first asks the run to save and stop, the second ends it at once.

use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody asked the run to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Listens to the process's signals.
    ///
    /// # Errors
    /// When the system refuses the handlers.
    pub fn on_signals() -> Result<Self> {
        let stop = Self::default();
        for (signal, code) in [(signal_hook::consts::SIGINT, 130), (signal_hook::consts::SIGTERM, 143)] {
            // Order matters: the first signal finds the flag down and only raises it, the second finds it up.
            signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&stop.0))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop.0)))
                .map_err(|e| Error::failed(format!("cannot listen to signals: {e}")))?;
        }
        Ok(stop)
    }

    /// Asks for a stop from within the process.
    pub fn ask(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether a stop was asked for.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
