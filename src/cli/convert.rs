//! `xrun convert`: comparisons of earlier versions become experiments, once.

use super::terminal::print;
use super::what::Results;
use crate::error::Result;
use crate::results::convert;

/// Arguments of `xrun convert`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where results are.
    #[command(flatten)]
    results: Results,
}

/// Converts every comparison, kept ones too, and lists them.
///
/// # Errors
/// For a record of which a figure would change, or that cannot be read or written.
pub fn run(args: &Args) -> Result<()> {
    let converted = convert::convert(&args.results.folder)?;
    let lines: String = converted.iter().map(|folder| format!("{}\n", folder.display())).collect();
    print(&lines)
}
