//! Parses the command line, runs the command, turns an error into an exit code.

use clap::Parser;
use std::process::ExitCode;
use xrun::cli::{Cli, dispatch, normalize_args, tell};

fn main() -> ExitCode {
    match dispatch(Cli::parse_from(normalize_args(std::env::args_os()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tell(&format!("error: {e}"));
            ExitCode::from(e.kind().exit_code())
        }
    }
}
