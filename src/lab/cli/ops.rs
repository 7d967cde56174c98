//! `xrun ops`, with its commands `check` and `attention`.

use super::terminal::print;
use super::{compile, profile, tune};
use crate::check::{
    AttentionShape, Finding, LongCase, Target, check_long_attention, check_ops, check_writes, time_attention,
};
use crate::device::DType;
use crate::device::cuda::Gpu;
use crate::error::{Error, Result};
use std::time::Duration;

/// Arguments of `xrun ops`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Check every case of every op on this machine against its reference, finite differences and f64, and
    /// check that steps read the state as last written.
    Check {
        /// Only ops whose name contains this; `state` checks writes into the state.
        #[arg(value_name = "OP")]
        op: Option<String>,
        /// Device to run the cases on.
        #[arg(long, value_enum, default_value_t = CheckDevice::Cpu)]
        device: CheckDevice,
        /// Check attention over 4,097 to 32,768 tokens instead, on sampled rows; takes minutes on a GPU.
        #[arg(long, conflicts_with = "op")]
        long: bool,
        /// Print every case, not only failures.
        #[arg(long, short)]
        verbose: bool,
    },
    /// Time every op of a recipe at its shapes, and compare with what the GPU's measured limits allow.
    Bench(profile::BenchArgs),
    /// Time attention alone on a GPU, in bf16, over causal sequences.
    Attention {
        /// Shapes, as batch,tokens,heads,kv_heads,head_dim.
        #[arg(value_name = "SHAPE", required = true)]
        shapes: Vec<AttentionShape>,
        /// Include the norm and rotation of queries and keys.
        #[arg(long)]
        norm: bool,
    },
    /// Choose the algorithms of a recipe's matrix products at the clock that the GPU sustains.
    Tune(tune::Args),
    /// Compile every kernel for all architectures, with or without a GPU.
    Compile(compile::Args),
}

/// Device to run the cases on.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum CheckDevice {
    /// The CPU.
    Cpu,
    /// The first NVIDIA GPU.
    Cuda,
}

/// Runs the command.
///
/// # Errors
/// Exits with 1 if a check fails.
pub fn run(args: &Args) -> Result<()> {
    let (op, device, long, verbose) = match &args.command {
        Command::Check { op, device, long, verbose } => (op, device, *long, verbose),
        Command::Bench(args) => return profile::bench(args),
        Command::Attention { shapes, norm } => return attention(shapes, *norm),
        Command::Tune(args) => return tune::run(args),
        Command::Compile(args) => return compile::run(args),
    };
    if long && *device == CheckDevice::Cpu {
        return Err(Error::usage("--long checks GPU kernels; add --device cuda"));
    }
    let part = op.as_deref().unwrap_or_default();
    let (mut held, mut failed) = (0, 0);
    let target = match device {
        CheckDevice::Cpu => Target::Cpu,
        CheckDevice::Cuda => Target::Gpu(Gpu::open(0)?),
    };
    let mut see = |finding: &Finding| {
        let holds = finding.holds();
        held += usize::from(holds);
        failed += usize::from(!holds);
        if *verbose || !holds { print(&format!("{finding}\n")) } else { Ok(()) }
    };
    if long {
        check_long_attention(&LongCase::all(), DType::Bf16, &target, see)?;
    } else {
        check_ops(part, &target, &mut see)?;
        if "state".contains(part) {
            check_writes(&target, see)?;
        }
    }
    print(&format!("{held} checks hold, {failed} fail\n"))?;
    match (held, failed) {
        (0, 0) => Err(Error::usage(format!("no op's name contains {part}"))),
        (_, 0) => Ok(()),
        _ => Err(Error::failed(format!("{failed} op checks fail on this machine"))),
    }
}

/// Prints a line for each shape, with its times in microseconds.
fn attention(shapes: &[AttentionShape], norm: bool) -> Result<()> {
    let gpu = Gpu::open(0)?;
    gpu.make_current()?;
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    for &shape in shapes {
        let found = time_attention(&gpu, shape, norm)?;
        print(&format!(
            "{:<24} forward {:>9.1} µs  backward {:>9.1} µs\n",
            shape.to_string(),
            micros(found.forward),
            micros(found.backward)
        ))?;
    }
    Ok(())
}
