//! The CUDA back end: an NVIDIA GPU through its driver, kernels compiled where they run, products through cuBLASLt.
//!
//! Libraries are found when a run needs them: a binary built without CUDA runs on a machine with it.

pub mod algorithms;
pub mod buffer;
pub mod compiler;
pub mod doctor;
pub mod driver;
pub mod gpu;
mod graph;
pub mod libraries;
pub mod limits;
pub mod nccl;
pub mod nvml;
pub mod products;
mod ranks;
pub mod sources;
mod stream;
pub mod usage;
pub mod versions;
pub mod watch;

pub use algorithms::{Algorithm, Algorithms};
pub use gpu::Gpu;
pub use graph::Graph;
pub use nccl::Nccl;
pub use usage::{Part, Usage};
pub use watch::{Interval, Seen, Watch};

use libraries::Nvidia;
use std::path::PathBuf;

/// How many GPUs this process can run on, or why it can run on none.
///
/// # Errors
/// What is missing, and how to get it.
pub fn usable() -> Result<usize, String> {
    let missing = |what: &str, library: Nvidia| format!("{what} is missing: {}", library.remedy());
    if Nvidia::Driver.open().is_none() {
        return Err(missing("NVIDIA's driver", Nvidia::Driver));
    }
    let count = Gpu::count();
    if count == 0 {
        return Err("the driver finds no GPU: see `nvidia-smi` and CUDA_VISIBLE_DEVICES".to_string());
    }
    for (library, what) in
        [(Nvidia::Nvrtc, "the compiler of kernels (NVRTC)"), (Nvidia::CublasLt, "cuBLASLt")]
    {
        if library.open().is_none() {
            return Err(missing(what, library));
        }
    }
    Ok(count)
}

/// What the bits of a run on a GPU depend on besides the recipe: its model and the versions of the libraries.
///
/// # Errors
/// When the GPU or a library is missing.
pub fn describe(ordinal: usize) -> crate::error::Result<String> {
    let properties = Gpu::properties_of(ordinal)?;
    let architecture = properties.architecture();
    let (major, minor) = compiler::Compiler::new(&architecture)?.version();
    let cublaslt = products::library_version();
    Ok(format!("cuda {} {architecture} nvrtc {major}.{minor} cublaslt {cublaslt}", properties.name))
}

/// Where compiled kernels and chosen algorithms are kept between runs: `XRUN_CACHE`, else `xrun` in the user's cache
/// folder; `None` where neither is known.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("XRUN_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("xrun")))
        .or_else(|| set("HOME").map(|p| p.join(".cache/xrun")))
}
