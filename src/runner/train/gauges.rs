//! GPU readings during training, for the rows and the summary.

use super::energy::RowEnergy;
use super::rank::Rank;
use crate::device::cuda::libraries::Nvidia;
use crate::device::cuda::monitor::versions::version;
use crate::device::cuda::monitor::{EnergyMeter, Watch, nvml};
use crate::device::cuda::nccl::NcclSettings;
use crate::device::cuda::{self, Gpu, MemoryCause, WORKSPACE};
use crate::device::gpu::Queue;
use crate::error::Result;
use crate::forecast::time::{product_flops, product_peak};
use crate::machine::hardware;
use crate::model::Programs;
use crate::plan::Plan;
use crate::policy::Placement;
use crate::results::provenance::{Cpu, Environment};
use crate::results::summary::{self, BesidesPlan};
use crate::results::{TimingRow, provenance};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const MIB: f64 = (1 << 20) as f64;

/// Reads rank 0's GPU.
#[derive(Debug)]
pub(super) struct Gauges {
    gpu: Arc<Gpu>,
    watch: Option<Watch>,
    /// Energy of the GPUs of all ranks on this host; `None` if one of them has no counter.
    energy: Option<RowEnergy>,
    /// Bytes of all tensors.
    allocated: usize,
    /// Number of allocations up to the last row.
    allocations: usize,
    /// Dense peak of the GPU in the plan's format, in FLOP/s; `None` if it is unknown.
    peak: Option<f64>,
    /// FLOPs of the matrix products per step, by number of micro-steps.
    product_flops: BTreeMap<usize, f64>,
}

impl Gauges {
    /// Starts to watch the GPU of a rank; returns `None` on the CPU.
    pub(super) fn new(plan: &Plan, programs: &Programs, rank: &Rank) -> Option<Self> {
        let engine = rank.engine();
        let gpu = Arc::clone(engine.gpu()?);
        let limits = hardware::by_driver_name(&gpu.properties().name).and_then(|device| device.limits);
        let most_alive = || programs.sections().iter().map(|s| s.memory.peak.1).max().unwrap_or(0);
        let transient = match plan.execution.placement {
            Placement::Arena => engine.transient().0,
            Placement::Caching | Placement::Naive => most_alive(),
        };
        Some(Self {
            watch: Watch::start(&gpu.initial),
            energy: EnergyMeter::for_gpus(plan.execution.gpus()).map(|meter| {
                let share = plan.execution.gpus().count() as f64 / plan.batch.world_size as f64;
                RowEnergy::new(meter, share, Instant::now())
            }),
            allocated: rank.state_bytes() + transient,
            allocations: gpu.ledger().allocations,
            peak: limits.map(|limits| product_peak(plan, &limits).1),
            product_flops: plan
                .batch
                .stages(plan.steps)
                .map(|stage| (stage.micro_steps, product_flops(programs, stage.micro_steps)))
                .collect(),
            gpu,
        })
    }

    /// Fills the GPU columns of a row. `tokens` counts the tokens of a step over all ranks; it is 0 for other
    /// rows.
    pub(super) fn fill(&mut self, row: &mut TimingRow, tokens: usize) {
        let ledger = self.gpu.ledger();
        let before = std::mem::replace(&mut self.allocations, ledger.allocations);
        row.driver_allocations = Some((ledger.allocations - before) as u64);
        row.gpu_allocated_mib = Some(self.allocated as f64 / MIB);
        row.gpu_reserved_mib = Some(ledger.held as f64 / MIB);
        if let Some(energy) = &mut self.energy {
            energy.fill(row, tokens, Instant::now());
        }
        let Some(watch) = &self.watch else { return };
        let interval = watch.take_interval();
        row.gpu_util_pct = interval.util_pct;
        row.sm_clock_mhz = interval.sm_clock_mhz;
        row.mem_clock_mhz = interval.mem_clock_mhz;
        row.power_w = interval.power_w;
        row.temperature_c = interval.temperature_c;
        row.throttle = interval.throttle;
    }

    /// Returns the utilization in percent of the peak, by model FLOPs and by executed matrix-product FLOPs.
    /// `flops` is model FLOPs per second; the step had `micro_steps` micro-steps and took `took`.
    pub(super) fn utilization(&self, flops: f64, micro_steps: usize, took: Duration) -> Option<(f64, f64)> {
        let (peak, products) = (self.peak?, self.product_flops.get(&micro_steps)?);
        Some((100.0 * flops / peak, 100.0 * products / took.as_secs_f64() / peak))
    }

    /// Returns the device memory in use beyond the plan. Call it at the end, before the state is freed.
    pub(super) fn besides_plan(&self) -> BesidesPlan {
        self.gpu.attribute_memory(MemoryCause::Other);
        let usage = self.gpu.untracked_memory();
        BesidesPlan {
            context_bytes: usage.context,
            kernels_bytes: usage.kernels,
            workspace_bytes: Some(WORKSPACE as i64),
            rounding_bytes: usage.rounding,
            graphs_bytes: usage.graphs,
            rest_bytes: usage.other,
        }
    }

    /// Returns the GPU section of the summary.
    pub(super) fn summary(&self) -> summary::Gpu {
        let properties = self.gpu.properties();
        let contention = self.watch.as_ref().map(|watch| watch.summary().contention());
        summary::Gpu {
            name: properties.name.clone(),
            driver: nvml::driver_version(),
            memory_bytes: Some(properties.memory_bytes as u64),
            contended: contention.as_ref().map(Option::is_some),
            contended_because: contention.flatten(),
        }
    }
}

/// Describes everything besides the recipe that results may depend on to the bit: the instruction set, or GPU
/// and library versions.
pub(super) fn engine_name(plan: &Plan) -> String {
    let cpu = || format!("cpu {}", Cpu::detect(plan.execution.threads).instructions);
    plan.execution.gpu.map_or_else(cpu, |gpu| cuda::describe(gpu).unwrap_or_else(|e| e.message().to_string()))
}

/// Returns `env.json`: what a training depends on besides its recipe. Its start time is now.
///
/// # Errors
/// If the driver cannot describe the first GPU.
pub fn environment(plan: &Plan, command: Vec<String>) -> Result<Environment> {
    let execution = &plan.execution;
    let gpus: Vec<usize> = execution.gpus().collect();
    let gpu = (!gpus.is_empty()).then(|| provenance(&gpus, execution.channels)).transpose()?;
    Ok(Environment { gpu, command, ..Environment::detect(execution.threads, crate::format::now()) })
}

/// Returns the GPU section of `env.json`: the first GPU, the topology, and the settings of NCCL, including
/// the number of channels in the recipe.
///
/// # Errors
/// If the driver cannot describe the first GPU.
fn provenance(ordinals: &[usize], channels: Option<usize>) -> Result<provenance::Gpu> {
    let ordinal = ordinals.first().copied().unwrap_or_default();
    let properties = Gpu::properties_of(ordinal)?;
    let several = ordinals.len() > 1;
    Ok(provenance::Gpu {
        ordinal,
        uuid: Gpu::uuid_of(ordinal).map(|uuid| provenance::short_name_hash(&uuid)),
        architecture: properties.architecture(),
        memory_bytes: properties.memory_bytes as u64,
        processors: properties.sm_count,
        driver: nvml::driver_version(),
        cuda: Gpu::driver_version().map(|(major, minor)| format!("{major}.{minor}")),
        nvrtc: version(Nvidia::Nvrtc),
        cublaslt: version(Nvidia::CublasLt),
        topology: several.then(|| nvml::topology(ordinals)).flatten(),
        nccl: several.then(|| nccl(ordinals.len(), channels)),
        name: properties.name,
    })
}

/// Returns the settings of NCCL for this many GPUs.
fn nccl(ranks: usize, channels: Option<usize>) -> provenance::Nccl {
    let NcclSettings { algorithm, protocol, set_by_user, variables } = NcclSettings::from_environment();
    let version = version(Nvidia::Nccl);
    provenance::Nccl { ranks, version, algorithm, protocol, channels, set_by_user, variables }
}
