//! `xrun watch [RUN|SWEEP|COMPARISON]`.

use super::terminal::print;
use super::what::Results;
use crate::error::{Error, Result};
use crate::results::find::LATEST;
use crate::watch::{self, Options, Subject};

/// Arguments of `xrun watch`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "It reads files alone: also from another terminal, over ssh, and after the run has ended. Keys \
                        are at the foot of the screen, `?` explains them; q leaves, and what is watched goes on. \
                        Without a terminal, one frame is printed as text."
)]
pub struct Args {
    /// The run: its folder or name, or a recipe's name for its newest. Or a comparison: its folder, its id,
    /// or `comparisons/NAME` for the newest. Or a sweep: `sweeps/NAME`, with its own name or its recipe's.
    #[arg(value_name = "RUN|SWEEP|COMPARISON", default_value = LATEST)]
    name: String,
    /// Print one frame as text and leave.
    #[arg(long)]
    once: bool,
    /// Draw with the characters of ASCII alone, as is done where the locale has no others.
    #[arg(long)]
    ascii: bool,
    /// Where results are.
    #[command(flatten)]
    results: Results,
}

/// Runs the command.
///
/// # Errors
/// When the name means nothing, or the terminal cannot be used; after a frame as text, when the files of what
/// it shows are damaged.
pub fn run(args: &Args) -> Result<()> {
    let subject = Subject::find(&args.results.folder, &args.name)?;
    let options = Options { once: args.once, ascii: args.ascii };
    let Some(frame) = watch::watch(&subject, options)? else { return Ok(()) };
    print(&frame.text)?;
    frame.fault.map_or(Ok(()), |fault| Err(Error::failed(fault)))
}
