//! `xrun doctor`: reports whether a run on the GPU would work.

use super::terminal::print_value;
use crate::device::cuda::doctor::{GpuStatus, examine};
use crate::error::{Error, Result};

/// Arguments of `xrun doctor`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints what a run on the GPU needs, where each piece was found, and how to get what is missing.
///
/// # Errors
/// If there is a GPU and a run on it would fail (exit code 1), or if the report cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let report = examine();
    print_value(&report, args.json)?;
    match report.verdict {
        GpuStatus::NoGpu | GpuStatus::Works => Ok(()),
        GpuStatus::Fails => {
            let first = report.problems.first().map_or("", |problem| problem.what.as_str());
            Err(Error::failed(format!("a run on the GPU would fail: {first}")))
        }
    }
}
