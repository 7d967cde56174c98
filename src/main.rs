//! Parses the command line, runs the command, turns an error into an exit code.

use clap::Parser;
use std::process::ExitCode;
use xrun::cli::{Cli, dispatch};

fn main() -> ExitCode {
    match dispatch(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(e.kind().exit_code())
        }
    }
}
