//! Parses the command line, runs the command, turns an error into an exit code.

use clap::Parser;
use std::process::ExitCode;
use xrun::cli::{Cli, dispatch, eprint_line, normalize_args};

fn main() -> ExitCode {
    match dispatch(Cli::parse_from(normalize_args(std::env::args_os()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprint_line(&format!("error: {e}"));
            ExitCode::from(e.kind().exit_code())
        }
    }
}
