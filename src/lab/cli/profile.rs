//! `xrun profile RECIPE`, and `xrun ops bench RECIPE`.

use super::terminal::{print, print_json};
use super::what::RecipeArguments;
use crate::error::{IoContext, Result};
use crate::format::{Column, Table, now};
use crate::machine::Machine;
use crate::results::profile::{KeptOp, KeptProfile, KeptSpan};
use crate::train::{OpTime, Profile, ProfileRequest, profile};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `xrun profile`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recipe to measure.
    #[command(flatten)]
    pub what: RecipeArguments,
    /// Steps to run before measuring.
    #[arg(long, default_value_t = 3)]
    pub warmup: u16,
    /// Steps to measure; the table shows medians.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub steps: u16,
    /// Write the ops of one step as a trace for chrome://tracing or Perfetto.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Keep the times in the folder of the run that RECIPE names, where `xrun view` shows them.
    #[arg(long)]
    pub keep: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `xrun ops bench`.
#[derive(clap::Args, Debug)]
pub struct BenchArgs {
    /// What to measure, and how.
    #[command(flatten)]
    profile: Args,
    /// Also repeat one node of every kind for a second, at the clock that the GPU sustains, and show its
    /// time, power and energy. Small inputs then come from the L2 cache, and in-place ops read what they
    /// wrote.
    #[arg(long)]
    energy: bool,
    /// Occupy this many multiprocessors of the GPU while ops are measured, as collectives do: a kernel that
    /// only waits takes their shared memory.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    held: u16,
}

/// Runs `xrun profile`.
///
/// # Errors
/// If [`profile`] fails, or a file cannot be written.
pub fn run(args: &Args) -> Result<()> {
    measure(args, false, false, 0)
}

/// Runs `xrun ops bench`: a profile that lists every shape of an op separately.
///
/// # Errors
/// If [`profile`] fails, or a file cannot be written.
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

/// Formats a line per op and phase, then the phases, then the step. Rates are blank if the op has no products
/// or bytes; budgets are blank if the limits of the GPU were not measured.
fn table(found: &Profile) -> String {
    let total = found.ops.iter().map(|op| op.time).sum::<Duration>();
    let share = |time: Duration| format!("{:.1}%", 100.0 * time.as_secs_f64() / total.as_secs_f64());
    let has_energy = found.ops.iter().any(|op| op.under_load.is_some());
    let mut headings = vec!["op", "phase", "calls", "ms/step", "share", "GFLOP/s", "GB/s"];
    headings.extend(found.limits.iter().flat_map(|_| ["budget ms", "of it"]));
    headings.extend(has_energy.then_some(["ms loaded", "watts", "J/step"]).iter().flatten());
    let mut columns = vec![Column::Right; headings.len()];
    columns[..2].fill(Column::Left);
    columns.push(Column::Left);
    let mut table = Table::new(&columns);
    table.row(headings);
    let mut phases: BTreeMap<String, Duration> = BTreeMap::new();
    for op in &found.ops {
        let seconds = op.time.as_secs_f64();
        let rate =
            |amount: f64| if amount > 0.0 { format!("{:.1}", amount / seconds / 1e9) } else { String::new() };
        let mut cells =
            vec![op.op.to_owned(), word(op.phase), op.calls.to_string(), ms(op.time), share(op.time)];
        cells.extend([rate(op.product_flops), rate(op.bytes)]);
        if found.limits.is_some() {
            let budget_share =
                op.budget.map(|budget| format!("{:.0}%", 100.0 * budget.as_secs_f64() / seconds));
            cells.extend([op.budget.map(ms), budget_share].map(Option::unwrap_or_default));
        }
        if has_energy {
            let loaded = op.loaded_ms_and_watts().map(|(ms, watts)| {
                [format!("{ms:.3}"), format!("{watts:.0}"), format!("{:.3}", joules((ms, watts)))]
            });
            cells.extend(loaded.unwrap_or_default());
        }
        cells.push(op.shapes.clone());
        table.row(cells);
        *phases.entry(word(op.phase)).or_default() += op.time;
    }
    for (phase, time) in phases {
        table.row(["all".to_owned(), phase, String::new(), ms(time), share(time)]);
    }
    table.row(["all", "", "", &ms(total)]);
    let mut text = String::new();
    if let Some(limits) = found.limits {
        let fp8 = limits.fp8_flops.map(|flops| format!(", {:.1} TFLOP/s (product in fp8)", flops / 1e12));
        text += &format!(
            "this card: {:.0} GB/s (copy), {:.1} TFLOP/s (product){}, measured now; budgets are at these \
             limits\n",
            limits.bandwidth / 1e9,
            limits.flops / 1e12,
            fp8.unwrap_or_default()
        );
    }
    text += &table.render(0);
    if has_energy {
        let loaded: Vec<(f64, f64)> = found.ops.iter().filter_map(OpTime::loaded_ms_and_watts).collect();
        let (ms, joules): (f64, f64) =
            (loaded.iter().map(|(ms, _)| ms).sum(), loaded.iter().copied().map(joules).sum());
        text += &format!("all under load: {ms:.3} ms, {joules:.3} J, {:.0} W\n", joules / ms * 1e3);
    }
    let rate = found.tokens as f64 / found.step.as_secs_f64();
    text + &format!("a step as trained: {} ms, {rate:.0} tokens/s\n", ms(found.step))
}

fn ms(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1e3)
}

fn joules((ms, watts): (f64, f64)) -> f64 {
    ms * 1e-3 * watts
}

/// Returns a phase in lower case.
fn word(phase: impl Debug) -> String {
    format!("{phase:?}").to_lowercase()
}

fn as_json(found: &Profile) -> Value {
    let op = |t: &OpTime| {
        json!({
            "op": t.op, "phase": word(t.phase), "shapes": t.shapes, "calls": t.calls,
            "ms": t.time.as_secs_f64() * 1e3, "product_flops": t.product_flops, "bytes": t.bytes,
            "budget_ms": t.budget.map(|b| b.as_secs_f64() * 1e3),
            "loaded_ms": t.loaded_ms_and_watts().map(|(ms, _)| ms),
            "loaded_watts": t.loaded_ms_and_watts().map(|(_, watts)| watts),
        })
    };
    json!({
        "step_ms": found.step.as_secs_f64() * 1e3,
        "tokens": found.tokens,
        "copy_bytes_per_s": found.limits.map(|l| l.bandwidth),
        "product_flops_per_s": found.limits.map(|l| l.flops),
        "fp8_product_flops_per_s": found.limits.and_then(|l| l.fp8_flops),
        "ops": found.ops.iter().map(op).collect::<Vec<_>>(),
    })
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Converts the profile to the form stored in a run's folder.
fn kept(found: &Profile) -> KeptProfile {
    let spans = found.spans.iter().map(|span| KeptSpan {
        op: span.op.to_owned(),
        scope: span.scope.clone(),
        phase: word(span.phase),
        start_us: micros(span.start),
        us: micros(span.time),
    });
    let ops = found.ops.iter().map(|op| KeptOp {
        op: op.op.to_owned(),
        phase: word(op.phase),
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

/// Writes the nodes of a step in Chrome's trace-event format.
fn trace(found: &Profile) -> String {
    let events: Vec<_> = found
        .spans
        .iter()
        .map(|s| {
            json!({
                "name": s.op, "cat": word(s.phase), "ph": "X", "pid": 0, "tid": 0,
                "ts": micros(s.start), "dur": micros(s.time), "args": {"scope": s.scope},
            })
        })
        .collect();
    format!("{}\n", json!({"traceEvents": events, "displayTimeUnit": "ms"}))
}
