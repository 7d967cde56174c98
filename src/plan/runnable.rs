//! What this version can run.

use crate::error::Result;
use crate::recipe::{Device, Dtype, Launcher, Resolved};

/// Refuses what a recipe asks for and this version has no engine for; nothing is ignored.
///
/// # Errors
/// A usage error that points at the key.
pub(super) fn check_runnable(resolved: &Resolved) -> Result<()> {
    let recipe = &resolved.recipe;
    if recipe.engine.device == Device::Cuda {
        return Err(resolved.error(
            &["engine.device"],
            "engine.device = \"cuda\" needs the CUDA engine, which this version does not have",
            "set engine.device = \"cpu\", or leave it at \"auto\"",
        ));
    }
    if recipe.engine.devices.is_some() {
        return Err(resolved.error(
            &["engine.devices"],
            "engine.devices chooses among GPUs, and this version runs on the CPU",
            "leave engine.devices out",
        ));
    }
    if recipe.engine.cuda_graphs == Some(true) {
        return Err(resolved.error(
            &["engine.cuda_graphs"],
            "there are no CUDA graphs on the CPU",
            "leave engine.cuda_graphs out",
        ));
    }
    if recipe.training.dtype == Dtype::Tf32 {
        return Err(resolved.error(
            &["training.dtype"],
            "training.dtype = \"tf32\" is a mode of NVIDIA's tensor cores, and the run is on the CPU",
            "set training.dtype = \"fp32\"",
        ));
    }
    if recipe.parallelism.launcher != Launcher::Thread {
        return Err(resolved.error(
            &["parallelism.launcher"],
            format!("parallelism.launcher = \"{}\" is not in this version", recipe.parallelism.launcher),
            "set parallelism.launcher = \"thread\"",
        ));
    }
    Ok(())
}
