//! Which GPUs this process can use.

use super::compiler::Compiler;
use super::cublaslt::library_version;
use super::gpu::Gpu;
use super::libraries::Nvidia;

/// Returns the number of GPUs that this process can run on.
///
/// # Errors
/// If there is none. The message says what is missing and how to get it.
pub fn usable() -> Result<usize, String> {
    let missing = |what: &str, library: Nvidia| format!("{what} is missing: {}", library.remedy());
    if Nvidia::Driver.open().is_none() {
        return Err(missing("NVIDIA's driver", Nvidia::Driver));
    }
    let count = Gpu::count();
    if count == 0 {
        return Err("the driver finds no GPU: see `nvidia-smi` and CUDA_VISIBLE_DEVICES".to_string());
    }
    for (library, what) in [(Nvidia::Nvrtc, "the kernel compiler (NVRTC)"), (Nvidia::CublasLt, "cuBLASLt")] {
        if library.open().is_none() {
            return Err(missing(what, library));
        }
    }
    Ok(count)
}

/// Describes everything besides the recipe that determines the bits of a run on a GPU: the GPU model and the
/// library versions.
///
/// # Errors
/// If the GPU or a library is missing.
pub fn describe(ordinal: usize) -> crate::error::Result<String> {
    let properties = Gpu::properties_of(ordinal)?;
    let architecture = properties.architecture();
    let (major, minor) = Compiler::new(&architecture)?.version;
    let cublaslt = library_version();
    Ok(format!("cuda {} {architecture} nvrtc {major}.{minor} cublaslt {cublaslt}", properties.name))
}
