//! `xrun sample [RUN] --chat`.

use super::terminal::{eprint_line, print_exact};
use crate::error::{Error, Result};
use crate::train::{Chat, ChatRequest};
use std::io::{BufRead, IsTerminal, Write};

/// The line that begins a new conversation.
const CLEAR: &str = "/clear";

/// Reads a message per line until the input ends, and prints the model's reply to each.
///
/// # Errors
/// As [`Chat::open`]. What is wrong with a single message is said on a terminal, where the next one may be
/// better, and ends the command elsewhere.
pub fn run(request: &ChatRequest) -> Result<()> {
    let mut chat = Chat::open(request)?;
    let interactive = std::io::stdin().is_terminal();
    if interactive {
        eprint_line(&format!("a message per line; {CLEAR} begins a new conversation; Ctrl-D ends it"));
    }
    let mut lines = std::io::stdin().lock().lines();
    loop {
        if interactive {
            print_exact("> ")?;
            flush()?;
        }
        let Some(line) = lines.next() else { break };
        let line = line.map_err(|e| Error::failed(format!("cannot read a message: {e}")))?;
        match line.trim() {
            "" => continue,
            CLEAR => chat.clear(),
            text => {
                let replied = chat.reply(text, |part| {
                    print_exact(part)?;
                    flush()
                });
                print_exact("\n")?;
                match replied {
                    Err(error) if interactive => eprint_line(error.message()),
                    replied => replied?,
                }
            }
        }
    }
    if interactive { print_exact("\n") } else { Ok(()) }
}

/// Shows a reply as it is made. A reader that has gone away is noticed by the next write.
fn flush() -> Result<()> {
    std::io::stdout().flush().or(Ok(()))
}
