//! The machine that a run is planned for: CPU threads, memory, GPUs, NCCL.
//!
//! [`Machine::here`] probes once. After that a machine is a plain value, so loading a recipe and planning
//! depend on nothing else and can be tested for other machines.

mod cpu_pace;
pub mod hardware;
pub mod host_memory;

pub use cpu_pace::{CpuPace, NodeTime};
pub use hardware::{Hardware, Limits};

use crate::device::cuda::libraries::Nvidia;
use crate::device::cuda::{self, Gpu};
use crate::device::gpu::Properties;
use crate::error::Result;
use std::sync::Arc;

/// A machine to plan for.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The device whose published figures are used; `None` for the machine that runs this program.
    pub hardware: Option<&'static Hardware>,
    /// CPU threads that this process may use.
    pub threads: usize,
    /// Bytes of host memory that this process may use, if known: a control group may have less than the
    /// machine.
    pub memory_bytes: Option<u64>,
    /// GPUs of the machine.
    pub gpus: Gpus,
    /// How the GPUs of a named device are linked, in the terms of `nvidia-smi topo -m`, if known.
    pub gpu_links: Option<String>,
    /// Measured pace of the CPU, if known.
    pub cpu_pace: Option<Arc<CpuPace>>,
    /// How to install NCCL, if the machine has several GPUs but no NCCL.
    pub nccl_missing: Option<&'static str>,
    /// World size set by an external launcher, for recipes with `parallelism.launcher = "env"`.
    pub launched_world: Option<usize>,
    /// Ranks of the run on this machine; `None` if all of them are.
    pub local_ranks: Option<usize>,
    /// Processes of the run on this machine, which share its CPU threads.
    pub processes: usize,
    /// True for a process next to a run, such as sampling: it uses one device, whatever the number of ranks.
    pub single_device: bool,
}

/// The GPUs of a machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Gpus {
    /// These, in the driver's order.
    Found(Vec<GpuModel>),
    /// No usable GPU, for this reason.
    Unusable(String),
    /// GPUs of this model, as many as a recipe has ranks.
    Assumed(GpuModel),
    /// Nothing is known about them; any choice of device is accepted.
    Unknown,
}

/// The model of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuModel {
    /// Name that the driver reports, such as `NVIDIA H200`.
    pub name: String,
    /// Memory in bytes, as reported by the driver.
    pub memory_bytes: u64,
}

impl Machine {
    /// Probes the machine that runs this program.
    pub fn here() -> Self {
        let gpus = match found_gpus() {
            Ok(models) => Gpus::Found(models),
            Err(reason) => Gpus::Unusable(reason),
        };
        let several = matches!(&gpus, Gpus::Found(models) if models.len() > 1);
        let nccl_missing = (several && Nvidia::Nccl.open().is_none()).then(|| Nvidia::Nccl.remedy());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let memory_bytes = host_memory::usable_bytes();
        Self { threads, memory_bytes, gpus, nccl_missing, ..Self::none() }
    }

    /// Returns a machine about which nothing is known. Every recipe can be read and planned for it.
    pub fn none() -> Self {
        Self {
            hardware: None,
            threads: 1,
            memory_bytes: None,
            gpus: Gpus::Unknown,
            gpu_links: None,
            cpu_pace: None,
            nccl_missing: None,
            launched_world: None,
            local_ranks: None,
            processes: 1,
            single_device: false,
        }
    }

    /// Returns a machine with a known device such as `h200`, as many as a recipe has ranks; see
    /// [`hardware::DEVICES`]. Unknown properties are not checked.
    ///
    /// # Errors
    /// A usage error that lists the devices if `name` is unknown.
    pub fn named(name: &str) -> Result<Self> {
        let hardware = hardware::find(name)?;
        let model = |memory_bytes| GpuModel { name: hardware.product.to_owned(), memory_bytes };
        let gpus = hardware.memory_bytes.map_or(Gpus::Unknown, |bytes| Gpus::Assumed(model(bytes)));
        Ok(Self { hardware: Some(hardware), gpus, ..Self::none() })
    }

    /// Sets how many ranks of the run are on this machine, in how many processes.
    pub fn with_ranks(mut self, local_ranks: usize, processes: usize) -> Self {
        (self.local_ranks, self.processes) = (Some(local_ranks), processes);
        self
    }

    /// Sets the measured pace of the CPU.
    pub fn with_cpu_pace(mut self, pace: Option<Arc<CpuPace>>) -> Self {
        self.cpu_pace = pace;
        self
    }

    /// Returns the number of usable GPUs, or the reason why there are none; `None` if nothing is known.
    pub fn usable_gpus(&self) -> Option<Result<usize, &str>> {
        match &self.gpus {
            Gpus::Found(models) => Some(Ok(models.len())),
            Gpus::Unusable(reason) => Some(Err(reason)),
            Gpus::Assumed(_) | Gpus::Unknown => None,
        }
    }

    /// Returns properties for the architecture of a named GPU, which tell which kernels run there.
    pub fn properties(&self) -> Option<Properties> {
        let (major, minor) = self.hardware?.compute_capability?.split_once('.')?;
        Some(Properties::for_architecture((major.parse().ok()?, minor.parse().ok()?)))
    }

    /// Returns the model of a GPU, by its index.
    pub fn gpu(&self, index: usize) -> Option<&GpuModel> {
        match &self.gpus {
            Gpus::Found(models) => models.get(index),
            Gpus::Assumed(model) => Some(model),
            Gpus::Unusable(_) | Gpus::Unknown => None,
        }
    }
}

/// Returns every GPU that this process can use, or the reason why it can use none.
fn found_gpus() -> Result<Vec<GpuModel>, String> {
    let model = |gpu| {
        let properties = Gpu::properties_of(gpu).map_err(|e| e.message().to_owned())?;
        Ok(GpuModel { name: properties.name, memory_bytes: properties.memory_bytes as u64 })
    };
    (0..cuda::usable()?).map(model).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_threads_and_a_reason_where_it_has_no_gpu() {
        let here = Machine::here();
        assert!(here.threads > 0 && here.processes == 1);
        match &here.gpus {
            Gpus::Found(models) => assert!(models.iter().all(|model| model.memory_bytes > 0)),
            Gpus::Unusable(reason) => assert!(!reason.is_empty()),
            other => panic!("{other:?}"),
        }
        #[cfg(target_os = "linux")]
        assert!(here.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn a_named_machine_has_any_number_of_its_device() {
        let h200 = Machine::named("H200").unwrap();
        assert_eq!(h200.gpu(7).map(|gpu| gpu.memory_bytes), Some(143_771 << 20));
        assert_eq!(h200.usable_gpus(), None);
        assert_eq!(Machine::named("cpu").unwrap().gpus, Gpus::Unknown);
        assert!(Machine::named("h2000").unwrap_err().message().contains("did you mean h200?"));
    }
}
