//! `env.json`: the build, hardware and environment of a run, so that numbers can be traced and comparable
//! runs recognized.

use super::memory::total_bytes;
use super::names::ENVIRONMENT;
use crate::format::plural;
use crate::regular::{self, MAX_TEXT};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

/// Environment variables that change what a run does or how fast it is.
const VARIABLES: [&str; 7] = [
    "RAYON_NUM_THREADS",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "CUDA_VISIBLE_DEVICES",
    "MALLOC_ARENA_MAX",
];

/// Prefix of the variables that set recipe keys. All of them are stored.
const RECIPE_PREFIX: &str = "XRUN__";

/// Everything that a run depends on besides its recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Sources and compiler of the binary.
    pub build: Build,
    /// The processor.
    pub cpu: Cpu,
    /// The GPU; `None` on the CPU.
    pub gpu: Option<Gpu>,
    /// The operating system.
    pub system: System,
    /// The command line, beginning with the program.
    pub command: Vec<String>,
    /// The relevant environment variables that were set.
    pub variables: BTreeMap<String, String>,
    /// When the run started, UTC.
    pub started: Timestamp,
    /// BLAKE3 of the program's file, because builds of one commit may differ. `None` if it could not be read,
    /// and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<String>,
}

/// Sources and compiler of the binary. Fields are `None` if the build could not tell, for example without
/// git.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Build {
    /// The version of xrun.
    pub version: String,
    /// The git commit that the sources came from.
    pub commit: Option<String>,
    /// True if the sources differed from that commit.
    pub dirty: Option<bool>,
    /// The compiler, as `rustc --version` prints it.
    pub rustc: Option<String>,
    /// The target triple.
    pub target: Option<String>,
    /// Cargo's profile and its optimization level: `release, opt-level 3`.
    pub profile: Option<String>,
    /// Versions of the crates that affect numbers.
    pub crates: BTreeMap<String, String>,
}

/// The processor, and the cores and threads that the run used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// The model name; `None` if unknown.
    pub model: Option<String>,
    /// Logical cores of the machine; `None` if unknown.
    pub logical_cores: Option<usize>,
    /// Cores available to this process, after affinity and container limits.
    pub available_cores: Option<usize>,
    /// Compute threads of the run.
    pub threads: usize,
    /// The widest detected vector instructions, such as `avx512`.
    pub instructions: String,
}

/// The GPU of the run and the versions of its libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Index among the GPUs that the process sees.
    pub ordinal: usize,
    /// The model's name, as the driver reports it.
    pub name: String,
    /// A hash that distinguishes cards without identifying them.
    pub uuid: Option<String>,
    /// The architecture's name in the compiler, such as `sm_90a`.
    pub architecture: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Number of streaming multiprocessors (SMs).
    pub processors: usize,
    /// The driver's version.
    pub driver: Option<String>,
    /// The newest CUDA version that the driver supports.
    pub cuda: Option<String>,
    /// The version of the kernel compiler.
    pub nvrtc: Option<String>,
    /// The version of the matrix-product library.
    pub cublaslt: Option<String>,
    /// Links between the run's GPUs, in the terms of `nvidia-smi topo -m`; `None` for one GPU.
    pub topology: Option<Vec<Vec<String>>>,
    /// The collectives library that the run used; `None` for one GPU.
    pub nccl: Option<Nccl>,
}

/// The collectives library and its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nccl {
    /// Number of GPUs that the run uses on this machine.
    pub ranks: usize,
    /// The library's version.
    pub version: Option<String>,
    /// The algorithm; `None` if NCCL chose it.
    pub algorithm: Option<String>,
    /// The protocol; `None` if NCCL chose it.
    pub protocol: Option<String>,
    /// Number of channels (thread blocks per call); `None` if NCCL chose it.
    pub channels: Option<usize>,
    /// True if the user set a variable of the library to a value other than xrun's.
    pub set_by_user: bool,
    /// Other variables of the library that were set.
    pub variables: BTreeMap<String, String>,
}

impl Gpu {
    /// Returns the device class of the GPUs; see [`gpu_class`].
    pub fn class(&self) -> String {
        let count = self.nccl.as_ref().map_or(1, |nccl| nccl.ranks);
        gpu_class(&self.name, count, self.links().as_deref())
    }

    /// Returns how the GPUs are linked; see [`links`].
    pub fn links(&self) -> Option<String> {
        links(self.topology.as_deref()?)
    }
}

/// Returns the device class of `count` GPUs of one model: the model alone for one GPU, and otherwise also
/// their number and links, such as `2 × NVIDIA H200 by NV18`.
pub fn gpu_class(model: &str, count: usize, links: Option<&str>) -> String {
    if count < 2 {
        return model.to_owned();
    }
    let linked = links.map(|links| format!(" by {links}")).unwrap_or_default();
    format!("{count} × {model}{linked}")
}

/// Describes how GPUs are linked: with one term if all pairs are alike, and otherwise with every term and its
/// number of pairs. `None` if there are no pairs. `topology` holds the links between all pairs, in the terms
/// of `nvidia-smi topo -m`.
pub fn links(topology: &[Vec<String>]) -> Option<String> {
    let mut pairs: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, row) in topology.iter().enumerate() {
        for word in row.iter().skip(at + 1) {
            *pairs.entry(word).or_default() += 1;
        }
    }
    let alike = pairs.len() == 1;
    let named = pairs.iter().map(|(word, n)| if alike { (*word).to_owned() } else { format!("{n} {word}") });
    Some(named.collect::<Vec<_>>().join(" and ")).filter(|words| !words.is_empty())
}

/// Returns a hash that distinguishes names without revealing them.
pub fn short_name_hash(name: &str) -> String {
    blake3::hash(name.as_bytes()).to_hex()[..16].to_owned()
}

/// The operating system and the machine's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct System {
    /// The distribution or operating system.
    pub os: String,
    /// The kernel release.
    pub kernel: Option<String>,
    /// Memory of the machine, in bytes.
    pub memory_bytes: Option<u64>,
    /// A hash that distinguishes hosts without identifying them.
    pub host: Option<String>,
}

/// Returns the command line of this process, with the program's name instead of its path.
pub fn this_command() -> Vec<String> {
    command(std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()))
}

/// Replaces the program's path in a command line by its name.
fn command(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut command: Vec<String> = arguments.collect();
    if let Some(program) = command.first_mut()
        && let Some(name) = Path::new(program.as_str()).file_name()
    {
        *program = name.to_string_lossy().into_owned();
    }
    command
}

impl Environment {
    /// Detects the environment of this process. `threads` is the number of compute threads of the run.
    pub fn detect(threads: usize, started: Timestamp) -> Self {
        Self {
            build: Build::current(),
            cpu: Cpu::detect(threads),
            gpu: None,
            system: System::detect(),
            command: this_command(),
            variables: relevant(std::env::vars_os().map(|(name, value)| {
                (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
            })),
            started,
            binary: own_binary_hash().map(str::to_owned),
        }
    }

    /// Names the program by the hash of its file or, in records of earlier versions, by what it was built
    /// from.
    pub fn program(&self) -> String {
        self.binary.as_ref().map_or_else(
            || self.build.in_words(),
            |hash| format!("{} binary {}", self.build.version, hash.get(..12).unwrap_or(hash)),
        )
    }

    /// Returns true if both were recorded by the same program, as far as both records tell.
    pub fn has_same_program(&self, other: &Self) -> bool {
        match (&self.binary, &other.binary) {
            (Some(one), Some(other)) => one == other,
            _ => self.build == other.build,
        }
    }

    /// Reads the environment of the process that began a run, kept or not; `None` if there is no record that
    /// this version can read.
    pub fn read(run: &Path) -> Option<Self> {
        serde_json::from_slice(&regular::read(&run.join(ENVIRONMENT), MAX_TEXT).ok()?).ok()
    }

    /// Returns the device class without the threads of a processor, which change no bits.
    pub fn class(&self) -> String {
        self.gpu.as_ref().map_or_else(|| self.cpu.class(), Gpu::class)
    }

    /// Returns the device class, such as `NVIDIA H200`, `2 × NVIDIA H200 by NV18` or `cpu avx512 (AMD EPYC, 2
    /// threads)`. Runs with the same class can be compared in one table.
    pub fn device_class(&self) -> String {
        self.gpu.as_ref().map_or_else(|| self.cpu.class_with_threads(), Gpu::class)
    }
}

/// What the program was built from. The program passes it to the library, so that a new commit does not
/// recompile the library.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp {
    /// The git commit.
    pub commit: Option<&'static str>,
    /// `true` if the sources differed from that commit.
    pub dirty: Option<&'static str>,
    /// The version of the compiler.
    pub rustc: Option<&'static str>,
    /// The target triple.
    pub target: Option<&'static str>,
    /// The profile, such as `release`.
    pub profile: Option<&'static str>,
    /// The profile's level of optimization.
    pub opt_level: Option<&'static str>,
    /// `name version` of the crates whose version can change numbers, separated by commas.
    pub crates: Option<&'static str>,
}

/// Returns the BLAKE3 of the running program's file, in hexadecimal; `None` if the file cannot be read.
pub fn own_binary_hash() -> Option<&'static str> {
    static HASH: OnceLock<Option<String>> = OnceLock::new();
    // On Linux the link leads to the running program even if its file was replaced since.
    let own = Path::new("/proc/self/exe");
    let hash = || {
        let path = if own.exists() { own.to_owned() } else { std::env::current_exe().ok()? };
        let mut hasher = blake3::Hasher::new();
        hasher.update_mmap(&path).ok()?;
        Some(hasher.finalize().to_hex().to_string())
    };
    HASH.get_or_init(hash).as_deref()
}

static STAMP: OnceLock<Stamp> = OnceLock::new();

impl Stamp {
    /// Sets the stamp. The program calls this once, before anything reads it.
    pub fn set(self) {
        let _ = STAMP.set(self);
    }
}

impl Build {
    /// Returns what the program's [`Stamp`] says. Without a stamp, as in tests of the library, only the
    /// version is known.
    pub fn current() -> Self {
        let stamp = STAMP.get().copied().unwrap_or_default();
        let profile =
            stamp.profile.map(|name| format!("{name}, opt-level {}", stamp.opt_level.unwrap_or("unknown")));
        let crates = stamp.crates.unwrap_or_default();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: stamp.commit.map(str::to_owned),
            dirty: stamp.dirty.map(|dirty| dirty == "true"),
            rustc: stamp.rustc.map(str::to_owned),
            target: stamp.target.map(str::to_owned),
            profile,
            crates: crates
                .split(',')
                .filter_map(|entry| entry.split_once(' '))
                .map(|(name, version)| (name.to_owned(), version.to_owned()))
                .collect(),
        }
    }

    /// Describes version, commit and compiler: `0.9.0 (d31aa781 with changes, rustc 1.91.0)`.
    pub fn in_words(&self) -> String {
        let changes = if self.dirty == Some(true) { " with changes" } else { "" };
        let commit = self.commit.as_ref().map(|commit| format!("{:.8}{changes}", commit));
        // Leave out the compiler's own commit and date.
        let rustc = self.rustc.as_ref().map(|rustc| rustc.split(" (").next().unwrap_or(rustc).to_owned());
        let parts: Vec<String> = commit.into_iter().chain(rustc).collect();
        if parts.is_empty() {
            self.version.clone()
        } else {
            format!("{} ({})", self.version, parts.join(", "))
        }
    }
}

impl Cpu {
    /// Returns the device class of the processor without threads, such as `cpu avx512 (AMD EPYC)`. Cells of a
    /// sweep share it, because a run's threads are only known once it has begun.
    pub fn class(&self) -> String {
        self.format_class(None)
    }

    /// Returns the device class of a run on the processor, such as `cpu avx512 (AMD EPYC, 2 threads)`.
    pub fn class_with_threads(&self) -> String {
        self.format_class(Some(format!("{} thread{}", self.threads, plural(self.threads))))
    }

    fn format_class(&self, threads: Option<String>) -> String {
        let details: Vec<String> = self.model.clone().into_iter().chain(threads).collect();
        let details = if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) };
        format!("cpu {}{details}", self.instructions)
    }

    /// Detects the processor. `threads` is the number of compute threads of the run.
    pub fn detect(threads: usize) -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processors = info.lines().filter(|line| line.starts_with("processor")).count();
        Self {
            model: cpuinfo_field(&info, "model name").or_else(|| cpuinfo_field(&info, "Model")),
            logical_cores: (processors > 0).then_some(processors),
            available_cores: std::thread::available_parallelism().ok().map(Into::into),
            threads,
            instructions: instructions().to_owned(),
        }
    }
}

/// Returns the first value of a field in `/proc/cpuinfo`.
fn cpuinfo_field(info: &str, name: &str) -> Option<String> {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(field, _)| field.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

/// Returns the widest vector instructions that floating-point products use on this processor.
fn instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        "avx512"
    } else if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        "avx2"
    } else {
        "sse2"
    }
    #[cfg(not(target_arch = "x86_64"))]
    if cfg!(target_arch = "aarch64") { "neon" } else { "scalar" }
}

impl System {
    fn detect() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let distribution = read("/etc/os-release").and_then(|text| {
            let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
            Some(name.trim_matches('"').to_owned())
        });
        Self {
            os: distribution.unwrap_or_else(|| std::env::consts::OS.to_owned()),
            kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
            memory_bytes: total_bytes(),
            host: host_name().map(|name| short_name_hash(&name)),
        }
    }
}

/// Returns the host's name, for the owner record of a lock. Results store only its hash.
pub fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Selects the relevant variables.
fn relevant(variables: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    variables
        .filter(|(name, _)| name.starts_with(RECIPE_PREFIX) || VARIABLES.contains(&name.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_alone_knows_only_its_version() {
        let build = Build::current();
        assert_eq!(build.version, env!("CARGO_PKG_VERSION"));
        assert_eq!((build.commit, build.dirty, build.rustc, build.target, build.profile), Default::default());
        assert!(build.crates.is_empty());
    }

    #[test]
    fn a_build_is_told_in_words_as_far_as_it_is_known() {
        let known = Build {
            version: "0.9.0".into(),
            commit: Some("d31aa78102030405".into()),
            dirty: Some(true),
            rustc: Some("rustc 1.91.0 (f8297e351 2025-10-28)".into()),
            ..Build::current()
        };
        assert_eq!(known.in_words(), "0.9.0 (d31aa781 with changes, rustc 1.91.0)");
        let packaged = Build { dirty: None, rustc: None, ..known };
        assert_eq!(packaged.in_words(), "0.9.0 (d31aa781)");
        assert_eq!(Build { commit: None, ..packaged }.in_words(), "0.9.0");
    }

    #[test]
    fn gpus_that_are_joined_otherwise_are_another_class() {
        let gpu = |words: &[&str]| {
            let topology = words.iter().map(|row| row.split(' ').map(str::to_owned).collect()).collect();
            let nccl = Nccl { ranks: words.len(), ..Nccl::default() };
            Gpu { name: "H".into(), topology: Some(topology), nccl: Some(nccl), ..Gpu::default() }
        };
        // Keys in existing ledgers were hashed from these strings.
        let cpu = Cpu {
            model: Some("AMD EPYC".into()),
            logical_cores: None,
            available_cores: None,
            threads: 1,
            instructions: "avx512".into(),
        };
        assert_eq!(cpu.class(), "cpu avx512 (AMD EPYC)");
        assert_eq!(cpu.class_with_threads(), "cpu avx512 (AMD EPYC, 1 thread)");
        assert_eq!(
            Cpu { threads: 2, ..cpu.clone() }.class_with_threads(),
            "cpu avx512 (AMD EPYC, 2 threads)"
        );
        let unknown = Cpu { model: None, ..cpu };
        assert_eq!(
            (unknown.class(), unknown.class_with_threads()),
            ("cpu avx512".into(), "cpu avx512 (1 thread)".into())
        );
        assert_eq!(Gpu { name: "H".into(), ..Gpu::default() }.class(), "H");
        assert_eq!(gpu_class("NVIDIA H200", 1, None), "NVIDIA H200");
        assert_eq!(gpu(&["X NV18", "NV18 X"]).class(), "2 × H by NV18");
        assert_eq!(gpu(&["X SYS", "SYS X"]).class(), "2 × H by SYS");
        assert_eq!(gpu(&["X NV4 SYS", "NV4 X SYS", "SYS SYS X"]).class(), "3 × H by 1 NV4 and 2 SYS");
        let unknown = Gpu { topology: None, ..gpu(&["X NV4", "NV4 X"]) };
        assert_eq!(unknown.class(), "2 × H");
    }

    #[test]
    fn detects_this_machine_without_naming_it() {
        let environment = Environment::detect(3, "2026-01-02T03:04:05Z".parse().unwrap());
        assert_eq!(environment.cpu.threads, 3);
        assert!(environment.cpu.available_cores.unwrap() >= 1);
        assert!(!environment.command.is_empty());
        let json = serde_json::to_string(&environment).unwrap();
        assert_eq!(serde_json::from_str::<Environment>(&json).unwrap(), environment);
        if cfg!(target_os = "linux") {
            assert!(environment.system.memory_bytes.unwrap() > 1 << 20);
            assert!(environment.cpu.logical_cores.unwrap() >= 1);
            assert_ne!(environment.system.host, host_name());
        }
    }

    #[test]
    fn a_command_names_its_program_without_its_place() {
        let arguments = ["/some/where/xrun", "run", "/a/recipe.toml"].map(str::to_owned);
        assert_eq!(command(arguments.into_iter()), ["xrun", "run", "/a/recipe.toml"]);
    }

    #[test]
    fn only_relevant_variables_are_kept() {
        let variables =
            [("XRUN__TRAINING__SEED", "1"), ("HOME", "/root"), ("RAYON_NUM_THREADS", "2"), ("TOKEN", "s")];
        let kept = relevant(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        assert_eq!(kept.into_keys().collect::<Vec<_>>(), ["RAYON_NUM_THREADS", "XRUN__TRAINING__SEED"]);
    }

    #[test]
    fn cpu_fields_are_matched_whole() {
        let info = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Fast CPU @ 2 GHz: x\n";
        assert_eq!(cpuinfo_field(info, "model name").as_deref(), Some("Fast CPU @ 2 GHz: x"));
        assert_eq!(cpuinfo_field(info, "Model"), None);
    }
}
