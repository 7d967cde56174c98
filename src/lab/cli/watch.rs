//! `xrun watch [RUN|SWEEP|COMPARISON]`.

use super::terminal::print;
use super::what::Results;
use crate::error::{Error, Result};
use crate::results::find::LATEST;
use crate::watch::{self, Options, Subject};

/// Arguments of `xrun watch`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "It only reads files, so it works from another terminal, over ssh, and after the run has ended. Keys \
                        are shown at the bottom of the screen, `?` explains them; q quits and leaves the run going. \
                        Without a terminal, one frame is printed as text."
)]
pub struct Args {
    /// What to watch: a run (its folder or name, or a recipe's name for its newest), a comparison (its folder
    /// or id, or `comparisons/NAME` for the newest), or a sweep (`sweeps/NAME`, with its own name or its
    /// recipe's).
    #[arg(value_name = "RUN|SWEEP|COMPARISON", default_value = LATEST)]
    name: String,
    /// Print one frame as text and exit.
    #[arg(long)]
    once: bool,
    /// Draw with ASCII characters only, as is done when the locale has no others.
    #[arg(long)]
    ascii: bool,
    /// Where results are.
    #[command(flatten)]
    results: Results,
}

/// Runs the command.
///
/// # Errors
/// If the name means nothing, or the terminal cannot be used. After a frame printed as text, if the files it
/// shows are damaged.
pub fn run(args: &Args) -> Result<()> {
    let subject = Subject::find(&args.results.folder, &args.name)?;
    let options = Options { once: args.once, ascii: args.ascii };
    let Some(frame) = watch::watch(&subject, options)? else { return Ok(()) };
    print(&frame.text)?;
    frame.fault.map_or(Ok(()), |fault| Err(Error::failed(fault)))
}
