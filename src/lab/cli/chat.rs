//! `xrun sample [RUN] --chat`.

use super::terminal::{eprint_line, print_exact};
use crate::data::chat::Renderer;
use crate::error::{Error, Result};
use crate::train::{Chat, TrainedRun};
use std::io::{BufRead, IsTerminal, Write};

/// Starts a new conversation when typed as a message.
const CLEAR: &str = "/clear";

/// Reads one message per line until the input ends, and prints the model's reply to each.
///
/// # Errors
/// Fails if [`Chat::open`] does, or if input or output fails. If a single message is invalid, the error is
/// printed and the chat continues on a terminal; otherwise it ends the command.
pub fn run(run: TrainedRun, tokens: Option<usize>) -> Result<()> {
    let mut chat = Chat::open(run, tokens, Renderer::Child)?;
    let interactive = std::io::stdin().is_terminal();
    if interactive {
        eprint_line(&format!(
            "type one message per line; {CLEAR} begins a new conversation; Ctrl-D ends the chat"
        ));
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
            // White space at the ends is part of a message, such as the indent of code.
            _ => {
                let replied = chat.reply(&line, |part| {
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

/// Shows the reply as it is generated. A flush error is ignored because the next write reports it.
fn flush() -> Result<()> {
    std::io::stdout().flush().or(Ok(()))
}
