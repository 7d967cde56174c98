//! `xrun profile RECIPE`, and `xrun ops bench RECIPE`.

use super::terminal::{print, print_json};
use super::what::RecipeArguments;
use crate::error::{IoContext, Result};
use crate::format::now;
use crate::machine::Machine;
use crate::results::profile::{KeptOp, KeptProfile, KeptSpan};
use crate::train::{OpTime, Profile, ProfileRequest, profile};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `xrun profile`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to measure.
    #[command(flatten)]
    pub what: RecipeArguments,
    /// Steps before the measurement.
    #[arg(long, default_value_t = 3)]
    pub warmup: u16,
    /// Steps measured; the table shows medians.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub steps: u16,
    /// Write the nodes of one step as a trace for chrome://tracing or Perfetto.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Keep the times in the folder of the run whose recipe this is, where `xrun view` shows them.
    #[arg(long)]
    pub keep: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `xrun ops bench`.
#[derive(clap::Args, Debug)]
pub struct BenchArgs {
    /// What is measured, and how.
    #[command(flatten)]
    profile: Args,
    /// Also repeat one node of every kind for a second, at the clock that the GPU sustains: its time, power
    /// and energy. Small inputs come from the L2 cache then, and ops in place read what they wrote.
    #[arg(long)]
    energy: bool,
    /// Hold multiprocessors of the GPU while ops are measured, as collectives do: a kernel that only waits
    /// takes the shared memory of this many.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    held: u16,
}

/// Runs `xrun profile`.
///
/// # Errors
/// As [`profile`].
pub fn run(args: &Args) -> Result<()> {
    measure(args, false, false, 0)
}

/// Runs `xrun ops bench`: as a profile, with every shape of an op by itself.
///
/// # Errors
/// As [`profile`].
pub fn bench(args: &BenchArgs) -> Result<()> {
    measure(&args.profile, true, args.energy, args.held.into())
}

fn measure(args: &Args, by_shape: bool, energy: bool, held: usize) -> Result<()> {
    let machine = Machine::here();
    let recipe = args.what.load(&machine)?;
    let run = if args.keep { Some(args.what.run()?) } else { None };
    let (warmup, steps) = (usize::from(args.warmup), usize::from(args.steps));
    let request = ProfileRequest { warmup, steps, by_shape, energy, held };
    let found = profile(&recipe, &machine, request)?;
    if let Some(path) = &args.trace {
        std::fs::write(path, trace(&found)).at("write", path)?;
    }
    if let Some(run) = run {
        kept(&found).write(&run)?;
    }
    if args.json { print_json(&as_json(&found)) } else { print(&table(&found)) }
}

/// One line per op and phase, then phases, then the step; rates only where the op has products or bytes.
fn table(found: &Profile) -> String {
    let total: Duration = found.ops.iter().map(|t| t.time).sum();
    let mut text = String::new();
    if let Some(limits) = found.limits {
        let _ = writeln!(
            text,
            "this card: {:.0} GB/s (copy), {:.1} TFLOP/s (product), measured now; budgets are at these limits",
            limits.bandwidth / 1e9,
            limits.flops / 1e12
        );
    }
    // Budgets are known where limits were measured.
    let budgets = |budget: &str, of_it: &str| match found.limits {
        Some(_) => format!(" {budget:>9} {of_it:>7}"),
        None => String::new(),
    };
    let energy = found.ops.iter().any(|t| t.under_load.is_some());
    let energies = |time: &str, power: &str, joules: &str| match energy {
        true => format!(" {time:>9} {power:>6} {joules:>8}"),
        false => String::new(),
    };
    let _ = writeln!(
        text,
        "{:<22} {:<13} {:>5} {:>10} {:>7} {:>9} {:>8}{}{}",
        "op",
        "phase",
        "calls",
        "ms/step",
        "share",
        "GFLOP/s",
        "GB/s",
        budgets("budget ms", "of it"),
        energies("ms loaded", "watts", "J/step")
    );
    for t in &found.ops {
        let seconds = t.time.as_secs_f64();
        let rate =
            |amount: f64| if amount > 0.0 { format!("{:.1}", amount / seconds / 1e9) } else { String::new() };
        let phase = format!("{:?}", t.phase).to_lowercase();
        let budget = t.budget.map_or(String::new(), |b| format!("{:.3}", b.as_secs_f64() * 1e3));
        let of_it = t.budget.map_or(String::new(), |b| format!("{:.0}%", 100.0 * b.as_secs_f64() / seconds));
        let _ = writeln!(
            text,
            "{:<22} {phase:<13} {:>5} {:>10.3} {:>6.1}% {:>9} {:>8}{}{}  {}",
            t.op,
            t.calls,
            seconds * 1e3,
            100.0 * seconds / total.as_secs_f64(),
            rate(t.product_flops),
            rate(t.bytes),
            budgets(&budget, &of_it),
            t.loaded_ms_and_watts().map_or_else(
                || energies("", "", ""),
                |(ms, watts)| {
                    let joules = ms * 1e-3 * watts;
                    energies(&format!("{ms:.3}"), &format!("{watts:.0}"), &format!("{joules:.3}"))
                }
            ),
            t.shapes
        );
    }
    let mut phases: BTreeMap<String, Duration> = BTreeMap::new();
    for t in &found.ops {
        *phases.entry(format!("{:?}", t.phase).to_lowercase()).or_default() += t.time;
    }
    for (phase, time) in phases {
        let share = 100.0 * time.as_secs_f64() / total.as_secs_f64();
        let _ = writeln!(
            text,
            "{:<22} {phase:<13} {:>5} {:>10.3} {share:>6.1}%",
            "all",
            "",
            time.as_secs_f64() * 1e3
        );
    }
    let _ = writeln!(text, "{:<22} {:<13} {:>5} {:>10.3}", "all", "", "", total.as_secs_f64() * 1e3);
    if energy {
        let loaded = found.ops.iter().filter_map(OpTime::loaded_ms_and_watts);
        let (ms, joules) = loaded.fold((0.0, 0.0), |(ms, joules), (m, w)| (ms + m, joules + m * 1e-3 * w));
        let _ = writeln!(
            text,
            "{:<22} {:<13} {:>5} {ms:>10.3}         {joules:.3} J, {:.0} W",
            "all under load",
            "",
            "",
            joules / ms * 1e3
        );
    }
    let _ = writeln!(
        text,
        "{:<22} {:<13} {:>5} {:>10.3}         {:.0} tokens/s",
        "a step as trained",
        "",
        "",
        found.step.as_secs_f64() * 1e3,
        found.tokens as f64 / found.step.as_secs_f64()
    );
    text
}

fn as_json(found: &Profile) -> String {
    let op = |t: &OpTime| {
        json!({
            "op": t.op, "phase": format!("{:?}", t.phase).to_lowercase(), "shapes": t.shapes, "calls": t.calls,
            "ms": t.time.as_secs_f64() * 1e3, "product_flops": t.product_flops, "bytes": t.bytes,
            "budget_ms": t.budget.map(|b| b.as_secs_f64() * 1e3),
            "loaded_ms": t.loaded_ms_and_watts().map(|(ms, _)| ms),
            "loaded_watts": t.loaded_ms_and_watts().map(|(_, watts)| watts),
        })
    };
    let value = json!({
        "step_ms": found.step.as_secs_f64() * 1e3,
        "tokens": found.tokens,
        "copy_bytes_per_s": found.limits.map(|l| l.bandwidth),
        "product_flops_per_s": found.limits.map(|l| l.flops),
        "ops": found.ops.iter().map(op).collect::<Vec<_>>(),
    });
    format!("{value:#}\n")
}

/// The profile as a run's folder keeps it.
fn kept(found: &Profile) -> KeptProfile {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let spans = found.spans.iter().map(|span| KeptSpan {
        op: span.op.to_owned(),
        scope: span.scope.clone(),
        phase: format!("{:?}", span.phase).to_lowercase(),
        start_us: micros(span.start),
        us: micros(span.time),
    });
    let ops = found.ops.iter().map(|op| KeptOp {
        op: op.op.to_owned(),
        phase: format!("{:?}", op.phase).to_lowercase(),
        calls: op.calls,
        ms: op.time.as_secs_f64() * 1e3,
        budget_ms: op.budget.map(|budget| budget.as_secs_f64() * 1e3),
        shapes: op.shapes.clone(),
    });
    KeptProfile {
        made: now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        device: found.device.clone(),
        step_ms: found.step.as_secs_f64() * 1e3,
        tokens: found.tokens,
        spans: spans.collect(),
        ops: ops.collect(),
    }
}

/// The nodes of a step in the trace-event format of Chrome's tracing.
fn trace(found: &Profile) -> String {
    let micros = |d: Duration| d.as_secs_f64() * 1e6;
    let events: Vec<_> = found
        .spans
        .iter()
        .map(|s| {
            json!({
                "name": s.op, "cat": format!("{:?}", s.phase).to_lowercase(), "ph": "X", "pid": 0, "tid": 0,
                "ts": micros(s.start), "dur": micros(s.time), "args": {"scope": s.scope},
            })
        })
        .collect();
    format!("{}\n", json!({"traceEvents": events, "displayTimeUnit": "ms"}))
}
