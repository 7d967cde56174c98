//! Runs the code of the tokenizers library within a time that grows with its input. A tokenizer.json may hold
//! a regular expression that backtracks without end, or a vocabulary that takes a cube of the time on a long
//! word; limits on its parts cannot show that.

use crate::error::{Error, Result};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Time for any input.
const LEAST: Duration = Duration::from_secs(20);

/// Bytes per second that an input must at least be processed at, beyond [`LEAST`]. Tokenizers in use process
/// a hundred times as many.
const LEAST_BYTES_PER_SECOND: f64 = 50_000.0;

/// Stack of the thread that runs the work, in bytes. The library parses nested patterns by recursion.
const STACK_BYTES: usize = 16 << 20;

/// Runs `work` on an input of `bytes` bytes on another thread. After its time is up, the thread is left
/// alone; it ends with the process.
///
/// # Errors
/// If the time is up, or no thread can be started.
pub(in crate::data) fn timed<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let most = LEAST + Duration::from_secs_f64(bytes as f64 / LEAST_BYTES_PER_SECOND);
    within(most, bytes, work)
}

fn within<T: Send + 'static>(
    most: Duration,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (sender, result) = sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("xrun-tokenizer".to_owned())
        .stack_size(STACK_BYTES)
        // A send fails only after the time was up, when nobody waits for the result any more.
        .spawn(move || drop(sender.send(work())))
        .map_err(|e| Error::failed(format!("cannot start a thread for the tokenizer: {e}")))?;
    let answer = result.recv_timeout(most);
    match &answer {
        // Dropping the handle could crash: see `spawn_detached`.
        Err(RecvTimeoutError::Timeout) => std::mem::forget(thread),
        // It has sent its answer, or panicked, and ends now.
        _ => drop(thread.join()),
    }
    answer.map_err(|e| match e {
        RecvTimeoutError::Timeout => Error::usage(format!(
            "the tokenizer does not finish {bytes} bytes within {:.0} s; its tokenizer.json is damaged or was made to \
             take long: use another one",
            most.as_secs_f64()
        )),
        RecvTimeoutError::Disconnected => Error::usage("the tokenizer stops on this input; its tokenizer.json is damaged"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_does_not_end_is_an_error() {
        assert_eq!(timed(10, || 3).unwrap(), 3);
        let endless = || std::thread::sleep(Duration::from_secs(5));
        let error = within(Duration::from_millis(20), 7, endless).unwrap_err();
        assert!(error.message().contains("does not finish 7 bytes"), "{error}");
    }
}
