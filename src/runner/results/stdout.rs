//! Standard output, through which every command prints.
//!
//! A full disk behind it must not go unnoticed: the first error is kept, and the process ends with it. A
//! closed pipe is not an error, as in `xrun schema | head`.

use crate::error::Error;
use crate::lock::lock;
use std::io::{self, ErrorKind, Write};
use std::sync::Mutex;

/// What became of the output so far.
struct State {
    has_text: bool,
    fault: Option<String>,
}

static STATE: Mutex<State> = Mutex::new(State { has_text: false, fault: None });

/// Standard output. Its errors are kept for [`stdout_fault`].
#[derive(Clone, Copy, Debug)]
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&STATE).has_text |= !bytes.is_empty();
        kept(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        kept(io::stdout().flush())
    }
}

fn kept<T>(result: io::Result<T>) -> io::Result<T> {
    if let Err(e) = &result
        && !matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted)
    {
        lock(&STATE).fault.get_or_insert_with(|| e.to_string());
    }
    result
}

/// Returns true if something was printed.
pub fn stdout_has_text() -> bool {
    lock(&STATE).has_text
}

/// Writes what is still buffered, and returns an error if anything that was printed is lost.
pub fn stdout_fault() -> Option<Error> {
    let _ = Stdout.flush();
    let fault = lock(&STATE).fault.clone()?;
    Some(Error::failed(format!("cannot write to stdout: {fault}; some of the output is lost")))
}
