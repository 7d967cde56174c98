//! What commands read from the command line and print.

pub use crate::results::progress::eprint_line;

use crate::error::{Error, Result};
use std::io::{ErrorKind, Write};
use std::time::Duration;

/// Parses a duration on the command line, in seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "give a number of seconds above 0".to_owned())
}

/// Writes data to stdout; a reader that has gone away (`xrun schema | head`) is not an error.
pub(super) fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Error::failed(format!("cannot write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}
