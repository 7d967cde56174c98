//! `xrun ops check`.

use super::print;
use crate::check::{Finding, check};
use crate::device::DType;
use crate::error::{Error, Result};
use crate::ir::Precision;
use crate::ops;
use std::fmt::Write;

/// Arguments of `xrun ops`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Run every case of every op on this machine: against its reference, finite differences and f64.
    Check {
        /// Only ops whose name contains this.
        #[arg(value_name = "OP")]
        op: Option<String>,
        /// Print every case, not only those that fail.
        #[arg(long, short)]
        verbose: bool,
    },
}

/// Runs the command.
///
/// # Errors
/// Exit 1 when a case does not hold.
pub fn run(args: &Args) -> Result<()> {
    let Command::Check { op, verbose } = &args.command;
    let (mut held, mut failed) = (0, 0);
    for dtype in [DType::F64, DType::F32, DType::Bf16] {
        let precision = Precision::of(dtype);
        let cases = ops::cases(precision);
        let wanted = |name: &str| op.as_ref().is_none_or(|part| name.contains(part.as_str()));
        for case in cases.iter().filter(|case| wanted(case.op.name())) {
            for finding in check(case, precision)? {
                let holds = finding.holds();
                held += usize::from(holds);
                failed += usize::from(!holds);
                if *verbose || !holds {
                    print(&line(&finding, dtype))?;
                }
            }
        }
    }
    print(&format!("{held} checks hold, {failed} fail\n"))?;
    match (held, failed) {
        (0, 0) => Err(Error::usage(format!("no op is named like {}", op.as_deref().unwrap_or_default()))),
        (_, 0) => Ok(()),
        _ => Err(Error::failed(format!("{failed} checks of ops fail on this machine"))),
    }
}

/// One finding on one line.
fn line(finding: &Finding, dtype: DType) -> String {
    let mut text = String::new();
    let verdict = if finding.holds() { "ok  " } else { "FAIL" };
    let Finding { op, case, mode, error, bound } = finding;
    let _ = writeln!(text, "{verdict} {dtype:<4} {op:<20} {mode:<17} {error:>9.2e} of {bound:>8.1e}  {case}");
    text
}
