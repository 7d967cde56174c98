//! Columns of tables: what is measured, with its unit, and keys of recipes.

use super::did_you_mean;
use super::kept::KeptRun;
use super::text::{code, plain};
use crate::format::{BLANK, decimal};
use crate::recipe::{KEYS, find_path};
use crate::results::ledger::Measured;

/// A quantity: its name, its heading with the unit, its decimals, and what it is divided by before it is shown.
struct Quantity(&'static str, &'static str, usize, f64);

const MIB: f64 = (1 << 20) as f64;

/// Those that a run's summary has. Names with a unit in them are those of the files.
const OF_RUNS: [Quantity; 25] = [
    Quantity("tok_s", "tokens/s", 0, 1.0),
    Quantity("tok_s_p25", "tokens/s, lower quartile", 0, 1.0),
    Quantity("tok_s_p75", "tokens/s, upper quartile", 0, 1.0),
    Quantity("step_ms", "ms/step", 2, 1.0),
    Quantity("mfu_pct", "MFU (%)", 1, 1.0),
    Quantity("hfu_pct", "HFU (%)", 1, 1.0),
    Quantity("loss", "loss (nats/token)", 4, 1.0),
    Quantity("val_loss", "val. loss (nats/token)", 4, 1.0),
    Quantity("floor", "floor (nats/token)", 4, 1.0),
    Quantity("val_loss_over_floor", "val. loss ÷ floor", 3, 1.0),
    Quantity("parameters", "parameters", 0, 1.0),
    Quantity("parameters_core", "parameters without embedding and head", 0, 1.0),
    Quantity("steps", "steps", 0, 1.0),
    Quantity("tokens_seen", "tokens", 0, 1.0),
    Quantity("wall_s", "wall time (s)", 1, 1.0),
    Quantity("kernels_s", "kernels ready (s)", 1, 1.0),
    Quantity("planned_mib", "planned (MiB)", 1, 1.0),
    Quantity("allocated_mib", "allocated (MiB)", 1, 1.0),
    Quantity("peak_rss_mib", "peak resident (MiB)", 1, 1.0),
    Quantity("besides_plan_mib", "besides the plan (MiB)", 1, 1.0),
    Quantity("data_wait_ms", "data wait (ms/step)", 3, 1.0),
    Quantity("communication_ms", "collectives (ms/step)", 2, 1.0),
    Quantity("exposed_communication_ms", "collectives, exposed (ms/step)", 2, 1.0),
    Quantity("gpu_util_pct", "GPU busy (%)", 0, 1.0),
    Quantity("driver_allocations", "driver allocations per step", 0, 1.0),
];

/// Those that only comparisons have.
const OF_COMPARISONS: [Quantity; 5] = [
    Quantity("planned_bytes", "planned (MiB)", 1, MIB),
    Quantity("allocated_bytes", "allocated (MiB)", 1, MIB),
    Quantity("peak_rss_bytes", "peak resident (MiB)", 1, MIB),
    Quantity("train_loss", "loss (nats/token)", 4, 1.0),
    Quantity("startup_s", "start (s)", 2, 1.0),
];

/// Columns of runs that are words.
const WORDS: [&str; 2] = ["status", "contended"];

/// Columns of a sweep that are words.
const SWEEP_WORDS: [&str; 3] = ["status", "reason", "contended"];

/// Quantities that a ledger has.
const OF_SWEEPS: [&str; 8] =
    ["steps", "loss", "val_loss", "tok_s", "step_ms", "mfu_pct", "planned_mib", "allocated_mib"];

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// A quantity, or a word about the row.
    Named(&'static str),
    /// A key of the resolved recipe.
    Key(String),
}

impl Column {
    /// The heading; numbers are flush right.
    pub fn heading(&self) -> String {
        match self {
            Column::Named(name) => heading(name),
            Column::Key(key) => code(key),
        }
    }
}

fn quantity(name: &str) -> Option<&'static Quantity> {
    OF_RUNS.iter().chain(&OF_COMPARISONS).find(|quantity| quantity.0 == name)
}

/// The heading of a quantity, with its unit; an unknown one is its own.
pub fn heading(name: &str) -> String {
    match quantity(name) {
        Some(quantity) => format!(">{}", quantity.1),
        None if SWEEP_WORDS.contains(&name) => name.to_owned(),
        None => format!(">{}", code(name)),
    }
}

/// A quantity as it is shown.
pub fn value(name: &str, value: Option<f64>) -> String {
    match quantity(name) {
        Some(Quantity(_, _, places, per)) => decimal(value.map(|value| value / per), *places),
        None => decimal(value, 3),
    }
}

/// The columns of a table of runs: those asked for, or the customary ones.
pub fn runs(asked: Option<&str>) -> Result<Vec<Column>, String> {
    let names: Vec<&'static str> = OF_RUNS.iter().map(|quantity| quantity.0).chain(WORDS).collect();
    choose(asked.unwrap_or("tok_s,loss,val_loss"), &names, true)
}

/// The columns of a sweep's table, besides what its cells set.
pub fn sweep(asked: Option<&str>) -> Result<Vec<Column>, String> {
    let names: Vec<&'static str> = OF_SWEEPS.into_iter().chain(SWEEP_WORDS).collect();
    choose(asked.unwrap_or("status,tok_s,val_loss,allocated_mib"), &names, false)
}

fn choose(asked: &str, names: &[&'static str], with_keys: bool) -> Result<Vec<Column>, String> {
    let column = |word: &str| match names.iter().find(|name| **name == word) {
        Some(name) => Ok(Column::Named(name)),
        None if with_keys && word.contains('.') => Ok(Column::Key(known_key(word)?.to_owned())),
        None => {
            let near = did_you_mean(word, names.iter().copied());
            Err(format!("no column `{word}`; there are {}{near}", names.join(", ")))
        }
    };
    asked.split(',').map(|word| column(word.trim())).collect()
}

/// The key of recipes at this path, by its own name.
pub fn known_key(path: &str) -> Result<&'static str, String> {
    find_path(path).map(|key| key.path).ok_or_else(|| {
        format!("recipes have no key `{path}`{}", did_you_mean(path, KEYS.iter().map(|key| key.path)))
    })
}

/// A run's cell.
pub fn of_run(run: &KeptRun, column: &Column) -> String {
    let name = match column {
        Column::Named(name) => *name,
        Column::Key(key) => return run.resolved.get(key).map_or(BLANK.to_owned(), |value| plain(value)),
    };
    let summary = &run.summary;
    let steady = summary.steady_state.as_ref();
    let tok_s = steady.and_then(|s| s.tok_s);
    let whole = |value: Option<u64>| value.map(|value| value as f64);
    let mib = |value: Option<u64>| whole(value).map(|bytes| bytes / MIB);
    let shown = match name {
        "tok_s" => summary.tok_s,
        "tok_s_p25" => tok_s.map(|spread| spread.p25),
        "tok_s_p75" => tok_s.map(|spread| spread.p75),
        "mfu_pct" => summary.mfu_pct,
        "hfu_pct" => summary.hfu_pct,
        "loss" => summary.train_loss.last.map(|at| at.loss.into()),
        "val_loss" => summary.val_loss.last.map(|at| at.loss.into()),
        "floor" => summary.floor,
        "val_loss_over_floor" => summary.val_loss_over_floor,
        "parameters" => whole(summary.parameters),
        "parameters_core" => whole(summary.parameters_core),
        "steps" => Some(summary.steps as f64),
        "tokens_seen" => Some(summary.tokens_seen as f64),
        "wall_s" => summary.wall_s,
        "kernels_s" => summary.startup.kernels_s,
        "planned_mib" => mib(summary.memory.planned_bytes),
        "allocated_mib" => mib(summary.memory.allocated_bytes),
        "peak_rss_mib" => mib(summary.memory.peak_rss_bytes),
        "besides_plan_mib" => summary.memory.besides_plan_bytes.map(|bytes| bytes as f64 / MIB),
        "status" => return summary.status.as_str().to_owned(),
        "contended" => return yes_or_no(summary.gpu.as_ref().and_then(|gpu| gpu.contended)),
        _ => steady.and_then(|s| s.medians().into_iter().find(|(median, _)| *median == name)?.1),
    };
    value(name, shown)
}

/// A cell of what a sweep measured; blank for words.
pub fn of_measured(measured: &Measured, name: &str) -> Option<f64> {
    let mib = |value: Option<u64>| value.map(|bytes| bytes as f64 / MIB);
    match name {
        "steps" => measured.steps.map(|steps| steps as f64),
        "loss" => measured.loss,
        "val_loss" => measured.val_loss,
        "tok_s" => measured.tok_s,
        "step_ms" => measured.step_ms,
        "mfu_pct" => measured.mfu_pct,
        "planned_mib" => mib(measured.planned_bytes),
        "allocated_mib" => mib(measured.allocated_bytes),
        _ => None,
    }
}

/// A fact that may be unknown.
pub fn yes_or_no(value: Option<bool>) -> String {
    value.map_or(BLANK, |value| if value { "yes" } else { "no" }).to_owned()
}
