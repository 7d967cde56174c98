//! `xrun profile RECIPE`.

use super::print;
use crate::error::Result;
use crate::recipe;
use crate::train::{OpTime, profile};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `xrun profile`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recipe: a file, or the name of a built-in one.
    pub recipe: PathBuf,
    /// Keys to change, as `section.key=value`.
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Steps before the measurement.
    #[arg(long, default_value_t = 3)]
    pub warmup: usize,
    /// Steps measured; the table shows medians.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub steps: u16,
}

/// Runs the command.
///
/// # Errors
/// As [`profile`].
pub fn run(args: &Args) -> Result<()> {
    let resolved = recipe::load(&args.recipe, &args.overrides, recipe::environment())?;
    print(&table(&profile(resolved, args.warmup, usize::from(args.steps))?))
}

/// One line per op and phase; rates only where the op has products or bytes.
fn table(times: &[OpTime]) -> String {
    let total: Duration = times.iter().map(|t| t.time).sum();
    let mut text = format!(
        "{:<22} {:<13} {:>5} {:>10} {:>7} {:>9} {:>8}\n",
        "op", "phase", "calls", "ms/step", "share", "GFLOP/s", "GB/s"
    );
    for t in times {
        let seconds = t.time.as_secs_f64();
        let rate =
            |amount: f64| if amount > 0.0 { format!("{:.1}", amount / seconds / 1e9) } else { String::new() };
        let phase = format!("{:?}", t.phase).to_lowercase();
        let _ = writeln!(
            text,
            "{:<22} {phase:<13} {:>5} {:>10.3} {:>6.1}% {:>9} {:>8}",
            t.op,
            t.calls,
            seconds * 1e3,
            100.0 * seconds / total.as_secs_f64(),
            rate(t.product_flops),
            rate(t.bytes)
        );
    }
    let _ = writeln!(text, "{:<22} {:<13} {:>5} {:>10.3}", "all", "", "", total.as_secs_f64() * 1e3);
    text
}
