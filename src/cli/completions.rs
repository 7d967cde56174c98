//! `xrun completions SHELL`.

use super::{Cli, print};
use crate::error::Result;
use clap::CommandFactory;
use clap_complete::Shell;

/// Arguments of `xrun completions`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The shell to complete for.
    pub shell: Shell,
}

/// Prints a completion script.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "xrun", &mut script);
    print(&String::from_utf8_lossy(&script))
}
