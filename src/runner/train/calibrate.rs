//! Measures the speed of the CPU once, for predictions: times training steps of four small models, node by
//! node.

use super::job::prepare;
use super::rank::Rank;
use crate::device::DType;
use crate::device::cuda::cache::cache_folder;
use crate::error::{Error, IoContext, Result};
use crate::forecast::Planned;
use crate::ir::{Node, Program};
use crate::machine::{CpuPace, Gpus, Machine, NodeTime};
use crate::plan::Plan;
use crate::recipe;
use crate::regular;
use crate::results::provenance::{Build, Cpu};
use crate::results::{atomic, quantiles};
use std::fs::{File, TryLockError};
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Warm-up steps per model.
const WARMUP_STEPS: usize = 1;

/// Measured steps per model: as many as take [`MEASURED_TIME`], but at least and at most so many.
const MEASURED_STEPS: RangeInclusive<usize> = 2..=8;

/// Time of a model's measured steps after which there is no further one. Only where a step takes a large part
/// of a second, on a slow machine or in a build for tests, does this leave out steps.
const MEASURED_TIME: Duration = Duration::from_secs(1);

/// How long a process waits for another one that measures. A process that ends, however it does, is waited
/// for no longer.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes written to measure the disk.
const WRITTEN_BYTES: usize = 32 << 20;

/// The keys in which the calibration models differ.
const MODEL_KEYS: [&str; 6] = [
    "model.dim",
    "model.n_heads",
    "model.head_dim",
    "model.ffn_dim",
    "training.seq_len",
    "training.local_batch_size",
];

/// Models from tiny to the largest that a CPU trains in a fraction of a second per step, by [`MODEL_KEYS`].
/// The ops of a plan have shapes between these, or larger.
const CALIBRATION_MODELS: [[usize; 6]; 4] = [
    [32, 2, 16, 96, 32, 2],
    [128, 4, 32, 384, 128, 4],
    [128, 4, 32, 384, 128, 16],
    [384, 6, 64, 1152, 256, 4],
];

/// Returns the measured speed of this machine's CPU for a plan that runs on it. Reads it from the cache
/// folder, or measures it now, which takes a few seconds, and caches it. Processes that need it at the same
/// time do not measure each other: one measures, and the others wait for it. Returns `None` for a plan on a
/// GPU, without a cache folder, and if the measurement fails. Calls `say` before a measurement and with the
/// reason for a failure.
pub fn cpu_pace(plan: &Plan, machine: &Machine, say: impl Fn(&str)) -> Option<Arc<CpuPace>> {
    let (folder, path) = cache_place(plan, machine)?;
    if let Some(pace) = read(&path) {
        return Some(pace);
    }
    let (threads, dtype) = (plan.execution.threads, plan.act_dtype());
    say("measuring the speed of this CPU once, for predictions: a few seconds");
    let measured = std::fs::create_dir_all(&folder).at("create", &folder).and_then(|()| {
        let _lock = lock(&folder);
        if let Some(pace) = read(&path) {
            return Ok(pace);
        }
        let pace = measure(threads, dtype, machine, &folder)?;
        write(&path, &pace)?;
        Ok(Arc::new(pace))
    });
    match measured {
        Ok(pace) => Some(pace),
        Err(e) => {
            say(&format!("the speed of this CPU is unknown: {e}"));
            None
        }
    }
}

/// Returns the speed that [`cpu_pace`] measured before; measures nothing.
pub(super) fn known_cpu_pace(plan: &Plan, machine: &Machine) -> Option<Arc<CpuPace>> {
    cache_place(plan, machine).and_then(|(_, path)| read(&path))
}

/// Returns the cache folder and the file in it for a plan that runs on the CPU of this machine.
fn cache_place(plan: &Plan, machine: &Machine) -> Option<(PathBuf, PathBuf)> {
    if plan.execution.gpu.is_some() || machine.hardware.is_some() || machine.gpus == Gpus::Unknown {
        return None;
    }
    let folder = cache_folder()?;
    let path = cache_file(&folder, plan.execution.threads, plan.act_dtype());
    Some((folder, path))
}

/// Waits until no other process measures, and returns the lock that keeps them waiting; `None` if it cannot
/// be had, in which case the measurement is only less exact.
fn lock(folder: &Path) -> Option<File> {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = regular::open_own(options, &folder.join("cpu-pace.lock")).ok()?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Some(file),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(_) => return None,
        }
    }
}

fn read(path: &Path) -> Option<Arc<CpuPace>> {
    let bytes = regular::read(path, regular::MAX_TEXT).ok()?;
    serde_json::from_slice(&bytes).ok().map(Arc::new)
}

fn write(path: &Path, pace: &CpuPace) -> Result<()> {
    let text = serde_json::to_vec(pace);
    atomic::write(path, &text.map_err(|e| Error::failed(format!("cannot write the pace of the CPU: {e}")))?)
}

/// Returns the cache file for this CPU, a number of threads, a number format and this build.
fn cache_file(folder: &Path, threads: usize, dtype: DType) -> PathBuf {
    let cpu = Cpu::detect(threads);
    let what = format!("{cpu:?} {dtype} {:?}", Build::current());
    let hash = blake3::hash(what.as_bytes()).to_hex();
    folder.join(format!("cpu-pace-{}.json", &hash[..16]))
}

fn measure(threads: usize, dtype: DType, machine: &Machine, folder: &Path) -> Result<CpuPace> {
    let mut nodes = Vec::new();
    let mut spread = (f64::INFINITY, 0.0f64);
    for model in CALIBRATION_MODELS {
        let steps = time_model(model, threads, dtype, machine, &mut nodes)?;
        let median = quantiles::median(steps.iter().copied()).unwrap_or(f64::NAN);
        for step in steps {
            spread = (spread.0.min(step / median), spread.1.max(step / median));
        }
    }
    let write_bytes_per_s = write_speed(folder)?;
    let mut pace = CpuPace::new(threads, nodes);
    (pace.spread, pace.write_bytes_per_s) = (spread, write_bytes_per_s);
    Ok(pace)
}

/// Trains a few steps of a model, appends the time of every node to `nodes`, and returns the seconds of each
/// step.
fn time_model(
    model: [usize; 6],
    threads: usize,
    dtype: DType,
    machine: &Machine,
    nodes: &mut Vec<(String, NodeTime)>,
) -> Result<Vec<f64>> {
    let dtype = if dtype == DType::Bf16 { "bf16" } else { "fp32" };
    let mut settings: Vec<String> =
        MODEL_KEYS.iter().zip(model).map(|(key, value)| format!("{key}={value}")).collect();
    settings.extend(
        ["model.n_layers=1", "data.corpus=random", "engine.device=cpu", "generation.samples=1"]
            .map(str::to_owned),
    );
    settings.push(format!("engine.threads={threads}"));
    settings.push(format!("training.dtype={dtype}"));
    settings.push(format!("training.steps={}", WARMUP_STEPS + MEASURED_STEPS.end()));
    let recipe = recipe::load_str(Path::new("calibration"), "", &settings, std::iter::empty(), machine)?;
    let (Planned { plan, programs, .. }, dataset) = prepare(&recipe, &machine.clone().with_ranks(1, 1))?;
    let mut rank = Rank::alone(Arc::new(plan), programs, dataset)?;
    for _ in 0..WARMUP_STEPS {
        rank.time_step(|_, _, _| {})?;
    }
    let mut steps = Vec::new();
    let began = Instant::now();
    let goes_on = |steps: usize| match began.elapsed() < MEASURED_TIME {
        true => steps < *MEASURED_STEPS.end(),
        false => steps < *MEASURED_STEPS.start(),
    };
    while goes_on(steps.len()) {
        let mut step = Duration::ZERO;
        rank.time_step(|program, node, time| {
            step += time;
            nodes.push(timed(program, node, time));
        })?;
        rank.time_forward_programs(|program, node, time| nodes.push(timed(program, node, time)))?;
        steps.push(step.as_secs_f64());
    }
    Ok(steps)
}

fn timed(program: &Program, node: &Node, time: Duration) -> (String, NodeTime) {
    let work = program.cost(node).work();
    (node.op.name().to_owned(), NodeTime { work, seconds: time.as_secs_f64() })
}

/// Returns the speed of writing a file to the disk, in bytes per second.
fn write_speed(folder: &Path) -> Result<f64> {
    let bytes = vec![0x5au8; WRITTEN_BYTES];
    let began = Instant::now();
    let mut file = tempfile::tempfile_in(folder).at("create a temporary file in", folder)?;
    file.write_all(&bytes).and_then(|()| file.sync_all()).at("write a temporary file in", folder)?;
    Ok(WRITTEN_BYTES as f64 / began.elapsed().as_secs_f64())
}
