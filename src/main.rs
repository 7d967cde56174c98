//! Parses the command line, runs the command, turns an error into an exit code.

use clap::Parser;
use std::process::ExitCode;
use xrun::cli::{Cli, dispatch, spelled_out, tell};

fn main() -> ExitCode {
    match dispatch(Cli::parse_from(spelled_out(std::env::args_os()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tell(&format!("error: {e}"));
            ExitCode::from(e.kind().exit_code())
        }
    }
}
