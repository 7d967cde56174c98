//! What this machine and this version can run.

use crate::device::cuda;
use crate::device::cuda::libraries::Nvidia;
use crate::error::Result;
use crate::policy::{DeviceChoice, Launcher, TrainingDtype};
use crate::recipe::{Resolved, WorldSize};

/// The GPUs that a recipe's ranks run on, in their order; none: the CPU. Refuses what the recipe asks for and this machine
/// or this version does not have; nothing is ignored.
///
/// # Errors
/// A usage error that points at the key.
pub(super) fn choose_gpus(resolved: &Resolved) -> Result<Vec<usize>> {
    match usable(resolved) {
        Ok(count) => {
            let gpus = gpus_of_ranks(resolved, count)?;
            if gpus.len() > 1 && Nvidia::Nccl.open().is_none() {
                return Err(resolved.error(
                    &["parallelism.world_size"],
                    format!(
                        "{} ranks on GPUs talk through NCCL, which is not found; try: {}",
                        gpus.len(),
                        Nvidia::Nccl.remedy()
                    ),
                    "or set parallelism.world_size = 1, or engine.device = \"cpu\"",
                ));
            }
            Ok(gpus)
        }
        Err(reason) => on_cpu(resolved, &reason).map(|()| Vec::new()),
    }
}

/// As [`choose_gpus`], for one process beside a run, however many ranks the run has.
///
/// # Errors
/// As there.
pub(super) fn choose_gpu(resolved: &Resolved) -> Result<Option<usize>> {
    match usable(resolved) {
        Ok(count) => {
            let gpu = resolved.recipe.engine.devices.as_ref().and_then(|devices| devices.first());
            known_gpu(resolved, gpu.copied().unwrap_or(0), count).map(Some)
        }
        Err(reason) => on_cpu(resolved, &reason).map(|()| None),
    }
}

/// How many ranks `parallelism.world_size = "auto"` means on this machine: one per GPU, and the CPU is one device.
pub fn devices(resolved: &Resolved) -> usize {
    let engine = &resolved.recipe.engine;
    match (engine.device, &engine.devices) {
        (DeviceChoice::Cpu, _) => 1,
        (_, Some(named)) => named.len(),
        (DeviceChoice::Auto | DeviceChoice::Cuda, None) => cuda::usable().unwrap_or(1),
    }
}

/// The number of GPUs that a recipe may use, or why it uses none.
fn usable(resolved: &Resolved) -> Result<usize, String> {
    match resolved.recipe.engine.device {
        DeviceChoice::Cpu => Err("engine.device = \"cpu\"".to_string()),
        DeviceChoice::Auto | DeviceChoice::Cuda => cuda::usable(),
    }
}

/// A GPU per rank: those of `engine.devices`, or as many as there are ranks, from 0.
fn gpus_of_ranks(resolved: &Resolved, count: usize) -> Result<Vec<usize>> {
    let recipe = &resolved.recipe;
    if let Some(devices) = &recipe.engine.devices {
        return devices.iter().map(|&gpu| known_gpu(resolved, gpu, count)).collect();
    }
    let world = match recipe.parallelism.world_size {
        WorldSize::Auto => count,
        WorldSize::Fixed(world) => world,
    };
    // Of ranks that somebody else has started, others may be on other machines.
    let world = if recipe.parallelism.launcher == Launcher::Env { world.min(count) } else { world };
    if world > count {
        return Err(resolved.error(
            &["parallelism.world_size"],
            format!("{world} ranks need {world} GPUs, one for each, and this machine has {count}"),
            format!("set parallelism.world_size = {count} or \"auto\", or engine.device = \"cpu\""),
        ));
    }
    Ok((0..world).collect())
}

fn known_gpu(resolved: &Resolved, gpu: usize, count: usize) -> Result<usize> {
    if gpu < count {
        return Ok(gpu);
    }
    Err(resolved.error(
        &["engine.devices"],
        format!("there is no GPU {gpu}: this machine has {count}, counted from 0"),
        "name one of them, or leave engine.devices out",
    ))
}

fn on_cpu(resolved: &Resolved, reason: &str) -> Result<()> {
    let recipe = &resolved.recipe;
    if recipe.engine.device == DeviceChoice::Cuda {
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
    if recipe.parallelism.channels.is_some() {
        return Err(resolved.error(
            &["parallelism.channels"],
            format!("channels are NCCL's, which joins GPUs, and the run is on the CPU: {reason}"),
            "leave parallelism.channels out",
        ));
    }
    if recipe.engine.cuda_graphs == Some(true) {
        return Err(resolved.error(
            &["engine.cuda_graphs"],
            format!("there are no CUDA graphs on the CPU, where the run is: {reason}"),
            "leave engine.cuda_graphs out",
        ));
    }
    if recipe.training.dtype == TrainingDtype::Tf32 {
        return Err(resolved.error(
            &["training.dtype"],
            format!("training.dtype = \"tf32\" is a mode of NVIDIA's tensor cores, and the run is on the CPU: {reason}"),
            "set training.dtype = \"fp32\"",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe;
    use std::path::Path;

    fn gpus(text: &str, count: usize) -> Result<Vec<usize>> {
        let resolved = recipe::load_str(Path::new("r.toml"), text, &[], std::iter::empty()).unwrap();
        gpus_of_ranks(&resolved, count)
    }

    #[test]
    fn every_rank_has_a_gpu_of_its_own() {
        assert_eq!(gpus("", 4).unwrap(), [0]);
        assert_eq!(gpus("[parallelism]\nworld_size = 3", 4).unwrap(), [0, 1, 2]);
        assert_eq!(gpus("[parallelism]\nworld_size = \"auto\"", 4).unwrap(), [0, 1, 2, 3]);
        let some = "[parallelism]\nworld_size = \"auto\"\n[engine]\ndevices = [3, 1]";
        assert_eq!(gpus(some, 4).unwrap(), [3, 1], "in the order in which they are named");
    }

    #[test]
    fn more_ranks_than_gpus_are_refused_at_the_key() {
        let error = gpus("[parallelism]\nworld_size = 8", 4).unwrap_err();
        let text = error.message();
        assert!(text.contains("8 ranks need 8 GPUs, one for each, and this machine has 4"), "{text}");
        assert!(text.contains("parallelism.world_size = 4 or \"auto\""), "{text}");
        let error = gpus("[parallelism]\nworld_size = 2\n[engine]\ndevices = [0, 4]", 4).unwrap_err();
        assert!(error.message().contains("there is no GPU 4: this machine has 4"), "{error}");
    }
}
