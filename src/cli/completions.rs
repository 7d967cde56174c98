//! `xrun completions SHELL`.

use super::terminal::print;
use crate::error::Result;
use clap_complete::Shell;

/// Arguments of `xrun completions`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The shell to complete for.
    pub shell: Shell,
}

/// Prints a completion script of `command`.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: &Args, command: &mut clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "xrun", &mut script);
    print(&String::from_utf8_lossy(&script))
}
