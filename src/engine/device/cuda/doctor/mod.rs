//! Checks whether a run on a GPU would work on this machine: what is missing, and the command that fixes it.

mod problems;
mod text;

use super::cache::{TOKENS, cache_folder};
use super::context::{CAPABILITY, any_device_properties};
use super::gpu::Gpu;
use super::libraries::Nvidia;
use super::monitor::nvml::{self, Process};
use super::monitor::versions;
use crate::device::gpu::Properties;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Findings about this machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The overall result.
    pub verdict: GpuStatus,
    /// Version of the driver.
    pub driver: Option<String>,
    /// The newest CUDA that the driver supports.
    pub driver_cuda: Option<(i32, i32)>,
    /// NVIDIA's libraries.
    pub libraries: Vec<Library>,
    /// The architectures that NVRTC can compile for, such as 90; `None` without NVRTC.
    pub compiles_for: Option<Vec<u32>>,
    /// The compiler's log of a trial kernel; `None` if it compiled, or without a compiler.
    pub trial_error: Option<String>,
    /// The GPUs visible to this process.
    pub gpus: Vec<Card>,
    /// Number of NVIDIA GPUs on the PCI bus, with or without a driver.
    pub cards_on_the_bus: usize,
    /// Connections between the GPUs, in the terms of `nvidia-smi topo -m`; `None` for fewer than two GPUs.
    pub topology: Option<Vec<Vec<String>>>,
    /// The cache of compiled kernels.
    pub cache: Cache,
    /// Capacity of `/dev/shm` in bytes; `None` if it is unlimited or absent.
    pub shared_memory_bytes: Option<u64>,
    /// Problems, fatal ones first.
    pub problems: Vec<SetupProblem>,
}

/// The overall result: would a run on a GPU work here?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuStatus {
    /// There is no GPU: runs use the CPU.
    NoGpu,
    /// A run on a GPU would work.
    Works,
    /// There is a GPU, but a run on it would fail.
    Fails,
}

/// One of NVIDIA's libraries.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Library {
    /// Name.
    pub name: &'static str,
    /// What the library does, as a predicate.
    pub purpose: &'static str,
    /// True if every run on a GPU needs it.
    pub needed: bool,
    /// The files the library was loaded from; none if it is missing.
    pub files: Vec<PathBuf>,
    /// Version of the library.
    pub version: Option<String>,
    /// How to install the library.
    pub remedy: &'static str,
}

/// A GPU visible to this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Card {
    /// Ordinal in CUDA's order.
    pub ordinal: usize,
    /// Name of the model, from the driver.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Memory in bytes.
    pub memory_bytes: usize,
    /// Free memory in bytes; `None` without NVML.
    pub free_bytes: Option<u64>,
    /// Processes that compute on this GPU; `None` if the driver does not report them.
    pub processes: Option<Vec<Process>>,
    /// Why the GPU cannot be opened; `None` if it can, or if that was not tried.
    pub refuses: Option<String>,
}

/// The cache for compiled kernels and tokens of texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cache {
    /// The folder; `None` if none is known.
    pub folder: Option<PathBuf>,
    /// Why the folder is not writable; `None` if it is.
    pub unwritable: Option<String>,
    /// Number of cached kernels.
    pub kernels: usize,
    /// Size of the cached kernels, in bytes.
    pub bytes: u64,
    /// Number of texts whose tokens are cached.
    pub texts: usize,
    /// Size of these tokens, in bytes.
    pub text_bytes: u64,
}

/// A problem with the setup of this machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SetupProblem {
    /// True if runs on a GPU fail because of it; other problems cost time or comparability.
    pub fatal: bool,
    /// Description.
    pub what: String,
    /// The command or action that fixes it.
    pub command: String,
}

/// Examines this machine. Opens every GPU briefly, as a run would.
pub fn examine() -> Report {
    let count = Gpu::count();
    let driver_cuda = Gpu::driver_version();
    // List processes first: opening a GPU adds this process to its list.
    let mut gpus: Vec<Card> = (0..count).filter_map(Card::probe).collect();
    let libraries: Vec<Library> = Nvidia::ALL.into_iter().map(Library::find).collect();
    for card in gpus.iter_mut().filter(|_| libraries.iter().all(Library::serves)) {
        card.refuses = Gpu::open(card.ordinal).err().map(|e| e.message().to_owned());
    }
    let compiles_for = super::compiler::architectures();
    let target = gpus.iter().map(|card| card.capability).max().filter(|c| *c >= CAPABILITY);
    let mut report = Report {
        verdict: GpuStatus::NoGpu,
        driver: nvml::driver_version(),
        driver_cuda,
        trial_error: compiles_for.as_ref().and_then(|_| trial_compile(target).err()),
        compiles_for,
        libraries,
        cards_on_the_bus: cards_on_the_bus(Path::new("/sys/bus/pci/devices")),
        topology: (count > 1).then(|| nvml::topology(&(0..count).collect::<Vec<_>>())).flatten(),
        gpus,
        cache: Cache::look(cache_folder()),
        shared_memory_bytes: std::fs::read_to_string("/proc/mounts").ok().and_then(|m| shared_memory(&m)),
        problems: Vec::new(),
    };
    report.judge();
    report
}

/// Compiles a trivial kernel for an architecture, or for Hopper if there is no GPU.
fn trial_compile(capability: Option<(u32, u32)>) -> Result<(), String> {
    let properties = Properties::for_architecture(capability.unwrap_or((9, 0)));
    super::compiler::compile_trivial_kernel(&properties.architecture()).map_err(|e| e.message().to_owned())
}

impl Library {
    fn find(library: Nvidia) -> Self {
        let (name, purpose, needed) = match library {
            Nvidia::Driver => ("driver", "runs everything", true),
            Nvidia::Nvrtc => ("NVRTC", "compiles kernels", true),
            Nvidia::CublasLt => ("cuBLASLt", "multiplies matrices", true),
            Nvidia::Nccl => ("NCCL", "joins several GPUs", false),
            Nvidia::Nvml => ("NVML", "reads clocks, power, temperature", false),
        };
        // Querying the version loads the library; after that, its files are known.
        let version = versions::version(library);
        Self { name, purpose, needed, files: versions::files(library), version, remedy: library.remedy() }
    }

    fn serves(&self) -> bool {
        !self.needed || !self.files.is_empty()
    }
}

impl Card {
    fn probe(ordinal: usize) -> Option<Self> {
        let (device, Properties { name, capability, memory_bytes, .. }) =
            any_device_properties(ordinal).ok()?;
        let found = nvml::find(device);
        Some(Self {
            ordinal,
            name,
            capability,
            memory_bytes,
            free_bytes: found.as_ref().and_then(|d| d.memory_info().ok()).map(|info| info.free),
            processes: found.as_ref().and_then(nvml::processes),
            refuses: None,
        })
    }
}

impl Cache {
    fn look(folder: Option<PathBuf>) -> Self {
        let Some(folder) = folder else { return Self::default() };
        let sizes = |folder: &Path, is_kept: &dyn Fn(&Path) -> bool| -> Vec<u64> {
            let kept = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let kept = kept.filter(|entry| is_kept(&entry.path()));
            kept.filter_map(|entry| Some(entry.metadata().ok()?.len())).collect()
        };
        let kernels = sizes(&folder.join("kernels"), &|_| true);
        // The folder also contains lock files.
        let texts =
            sizes(&folder.join(TOKENS), &|path| path.extension().is_some_and(|ending| ending == TOKENS));
        Self {
            unwritable: writable(&folder).err().map(|e| e.to_string()),
            folder: Some(folder),
            kernels: kernels.len(),
            bytes: kernels.iter().sum(),
            texts: texts.len(),
            text_bytes: texts.iter().sum(),
        }
    }
}

/// Checks that a file can be created in a folder, or in its nearest existing parent. Leaves nothing behind.
fn writable(folder: &Path) -> std::io::Result<()> {
    let there = folder.ancestors().find(|above| above.exists()).unwrap_or(folder);
    tempfile::NamedTempFile::new_in(there).map(drop)
}

/// Returns the number of NVIDIA display and compute cards in a folder of PCI devices.
fn cards_on_the_bus(devices: &Path) -> usize {
    let is = |path: PathBuf, beginning: &str| {
        std::fs::read_to_string(path).is_ok_and(|text| text.trim().starts_with(beginning))
    };
    let entries = std::fs::read_dir(devices).into_iter().flatten().flatten();
    entries.filter(|e| is(e.path().join("vendor"), "0x10de") && is(e.path().join("class"), "0x03")).count()
}

/// Returns the size limit of `/dev/shm` in a list of mounts.
fn shared_memory(mounts: &str) -> Option<u64> {
    let line = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some("/dev/shm"))?;
    let size = line.split(' ').nth(3)?.split(',').find_map(|option| option.strip_prefix("size="))?;
    let digits = size.trim_end_matches(['k', 'm', 'g']);
    let shift = match size.strip_prefix(digits)? {
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => 0,
    };
    digits.parse::<u64>().ok()?.checked_shl(shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_shared_memory_is_read_from_the_mounts() {
        let mounts = "proc /proc proc rw 0 0\nshm /dev/shm tmpfs rw,nosuid,size=65536k,inode64 0 0\n";
        assert_eq!(shared_memory(mounts), Some(64 << 20));
        assert_eq!(shared_memory("shm /dev/shm tmpfs rw 0 0\n"), None);
        assert_eq!(shared_memory(""), None);
    }

    #[test]
    fn only_graphics_and_compute_cards_of_nvidia_count() {
        let dir = tempfile::tempdir().unwrap();
        for (name, vendor, class) in [
            ("a", "0x10de\n", "0x030200\n"),
            ("b", "0x10de\n", "0x068000\n"),
            ("c", "0x8086\n", "0x030000\n"),
        ] {
            let device = dir.path().join(name);
            std::fs::create_dir(&device).unwrap();
            std::fs::write(device.join("vendor"), vendor).unwrap();
            std::fs::write(device.join("class"), class).unwrap();
        }
        assert_eq!(cards_on_the_bus(dir.path()), 1);
        assert_eq!(cards_on_the_bus(&dir.path().join("none")), 0);
    }

    #[test]
    fn a_cache_is_tried_by_writing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("kernels")).unwrap();
        std::fs::write(dir.path().join("kernels/a.cubin"), [0; 100]).unwrap();
        std::fs::create_dir(dir.path().join("tokens")).unwrap();
        std::fs::write(dir.path().join("tokens/a.tokens"), [0; 50]).unwrap();
        std::fs::write(dir.path().join("tokens/lock-0a"), "").unwrap();
        let cache = Cache::look(Some(dir.path().to_path_buf()));
        assert_eq!((cache.kernels, cache.bytes, cache.unwritable), (1, 100, None));
        assert_eq!((cache.texts, cache.text_bytes), (1, 50));
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(Cache::look(Some(file.join("cache"))).unwritable.is_some());
        assert_eq!(Cache::look(None), Cache::default());
    }
}
