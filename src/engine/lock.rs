//! Locks a mutex even after a holder panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data a panic cannot leave half changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
