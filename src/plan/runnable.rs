//! What this machine and this version can run.

use crate::device::cuda;
use crate::error::Result;
use crate::recipe::{Device, Dtype, Resolved, WorldSize};

/// The GPU that a recipe runs on; `None` is the CPU. Refuses what the recipe asks for and this machine or this version
/// does not have; nothing is ignored.
///
/// # Errors
/// A usage error that points at the key.
pub(super) fn choose_gpu(resolved: &Resolved) -> Result<Option<usize>> {
    let recipe = &resolved.recipe;
    let usable = match recipe.engine.device {
        Device::Cpu => Err("engine.device = \"cpu\"".to_string()),
        Device::Auto | Device::Cuda => cuda::usable(),
    };
    match usable {
        Ok(count) => on_gpu(resolved, count).map(Some),
        Err(reason) => on_cpu(resolved, &reason).map(|()| None),
    }
}

/// How many ranks `parallelism.world_size = "auto"` means on this machine: one per GPU, and the CPU is one device.
pub fn devices(resolved: &Resolved) -> usize {
    let engine = &resolved.recipe.engine;
    match (engine.device, &engine.devices) {
        (Device::Cpu, _) => 1,
        (_, Some(named)) => named.len(),
        (Device::Auto | Device::Cuda, None) => cuda::usable().unwrap_or(1),
    }
}

fn on_gpu(resolved: &Resolved, count: usize) -> Result<usize> {
    let recipe = &resolved.recipe;
    if !matches!(recipe.parallelism.world_size, WorldSize::Auto | WorldSize::Fixed(1)) {
        return Err(resolved.error(
            &["parallelism.world_size"],
            "several ranks on GPUs are not in this version",
            "set parallelism.world_size = 1, or engine.device = \"cpu\"",
        ));
    }
    let gpu = recipe.engine.devices.as_ref().and_then(|devices| devices.first()).copied().unwrap_or(0);
    if gpu >= count {
        return Err(resolved.error(
            &["engine.devices"],
            format!("there is no GPU {gpu}: this machine has {count}, counted from 0"),
            "name one of them, or leave engine.devices out",
        ));
    }
    Ok(gpu)
}

fn on_cpu(resolved: &Resolved, reason: &str) -> Result<()> {
    let recipe = &resolved.recipe;
    if recipe.engine.device == Device::Cuda {
        return Err(resolved.error(
            &["engine.device"],
            format!("engine.device = \"cuda\", and {reason}"),
            "see `xrun doctor`; or set engine.device = \"cpu\", or leave it at \"auto\"",
        ));
    }
    if recipe.engine.devices.is_some() {
        return Err(resolved.error(
            &["engine.devices"],
            format!("engine.devices chooses among GPUs, and the run is on the CPU: {reason}"),
            "leave engine.devices out",
        ));
    }
    if recipe.engine.cuda_graphs == Some(true) {
        return Err(resolved.error(
            &["engine.cuda_graphs"],
            format!("there are no CUDA graphs on the CPU, where the run is: {reason}"),
            "leave engine.cuda_graphs out",
        ));
    }
    if recipe.training.dtype == Dtype::Tf32 {
        return Err(resolved.error(
            &["training.dtype"],
            format!("training.dtype = \"tf32\" is a mode of NVIDIA's tensor cores, and the run is on the CPU: {reason}"),
            "set training.dtype = \"fp32\"",
        ));
    }
    Ok(())
}
