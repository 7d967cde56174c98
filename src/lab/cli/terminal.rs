//! What commands read from the command line and print.

pub use crate::results::progress::eprint_line;

use crate::error::{Error, Result};
use crate::format::{harmless_json, printable};
use std::io::{ErrorKind, IsTerminal, Write};
use std::time::Duration;

/// Parses a duration on the command line, in seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "give a number of seconds above 0".to_owned())
}

/// Writes text for people to stdout, with control characters as their pictures.
pub(super) fn print(text: &str) -> Result<()> {
    print_bytes(&printable(text))
}

/// Writes JSON to stdout, with control characters as its escapes.
pub(super) fn print_json(text: &str) -> Result<()> {
    print_bytes(&harmless_json(text))
}

/// Writes text for other programs, or that a model made: on a terminal as other text, and byte for byte into
/// a file or a pipe.
pub(super) fn print_exact(text: &str) -> Result<()> {
    if std::io::stdout().is_terminal() { print(text) } else { print_bytes(text) }
}

/// Writes to stdout; a reader that has gone away (`xrun schema | head`) is not an error.
fn print_bytes(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Error::failed(format!("cannot write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}
