//! The devices that a recipe's ranks use on a machine.

use super::Plan;
use crate::error::Result;
use crate::machine::Machine;
use crate::policy::{DeviceChoice, Launcher, TrainingDtype, Transport};
use crate::recipe::Recipe;

/// Returns the GPUs of a recipe's ranks on this machine, in rank order; empty for the CPU.
///
/// # Errors
/// If the machine lacks something: a usage error that points at the key. An unknown machine accepts
/// everything.
pub fn choose_gpus(recipe: &Recipe, machine: &Machine) -> Result<Vec<usize>> {
    let engine = &recipe.values().engine;
    match (engine.device, machine.usable_gpus()) {
        (_, None) => Ok(assumed_gpus(recipe, machine)),
        (DeviceChoice::Cpu, _) => check_cpu(recipe, "engine.device = \"cpu\"").map(|()| Vec::new()),
        (_, Some(Err(reason))) => check_cpu(recipe, reason).map(|()| Vec::new()),
        (_, Some(Ok(count))) if machine.single_device => {
            let gpu = engine.devices.as_ref().and_then(|devices| devices.first());
            known_gpu(recipe, gpu.copied().unwrap_or(0), count).map(|gpu| vec![gpu])
        }
        (_, Some(Ok(count))) => gpus_for_ranks(recipe, machine, count),
    }
}

/// Rejects ranks on several GPUs of a machine without NCCL, unless they may exchange data by copies. If their
/// GPUs turn out not to have access to each other's memory, the run fails later with the message that NCCL is
/// missing.
///
/// # Errors
/// A usage error that points at the number of ranks.
pub(super) fn check_nccl(recipe: &Recipe, machine: &Machine, plan: &Plan) -> Result<()> {
    let ranks = plan.execution.gpus().count();
    match machine.nccl_missing {
        Some(remedy) if ranks > 1 && !plan.copies_between_gpus() => Err(recipe.error(
            &["parallelism.transport", "parallelism.world_size"],
            format!("{ranks} ranks on GPUs exchange data through NCCL here, which was not found; try: {remedy}"),
            "or set parallelism.shard = \"optimizer\" with neither parallelism.transport nor engine.placement, \
             to exchange data by copies; or parallelism.world_size = 1, or engine.device = \"cpu\"",
        )),
        _ => Ok(()),
    }
}

/// Returns one GPU per rank for a machine that was named rather than probed; empty if nothing is known about
/// it.
fn assumed_gpus(recipe: &Recipe, machine: &Machine) -> Vec<usize> {
    let has_gpus = machine.gpu(0).is_some() && recipe.values().engine.device != DeviceChoice::Cpu;
    if has_gpus { (0..recipe.world_size()).collect() } else { Vec::new() }
}

/// Returns one GPU per rank: the ones in `engine.devices`, or the first ones.
fn gpus_for_ranks(recipe: &Recipe, machine: &Machine, count: usize) -> Result<Vec<usize>> {
    let values = recipe.values();
    if let Some(devices) = &values.engine.devices {
        return devices.iter().map(|&gpu| known_gpu(recipe, gpu, count)).collect();
    }
    let world = recipe.world_size();
    // Ranks started by an external launcher may be on other machines.
    let local = match values.parallelism.launcher {
        Launcher::Env => machine.local_ranks.unwrap_or(world).min(count),
        _ => world,
    };
    if local > count {
        return Err(recipe.error(
            &["parallelism.world_size"],
            format!("{local} ranks need {local} GPUs, one for each, but this machine has {count}"),
            format!("set parallelism.world_size = {count} or \"auto\", or engine.device = \"cpu\""),
        ));
    }
    Ok((0..local).collect())
}

fn known_gpu(recipe: &Recipe, gpu: usize, count: usize) -> Result<usize> {
    if gpu < count {
        return Ok(gpu);
    }
    Err(recipe.error(
        &["engine.devices"],
        format!("there is no GPU {gpu}: this machine has {count}, counted from 0"),
        "name one of them, or leave engine.devices out",
    ))
}

/// Rejects settings that need a GPU.
fn check_cpu(recipe: &Recipe, reason: &str) -> Result<()> {
    let values = recipe.values();
    if values.engine.device == DeviceChoice::Cuda {
        return Err(recipe.error(
            &["engine.device"],
            format!("engine.device = \"cuda\", but {reason}"),
            "see `xrun doctor`; or set engine.device = \"cpu\", or keep \"auto\"",
        ));
    }
    let for_gpus = [
        (values.engine.devices.is_some(), "engine.devices", "engine.devices chooses among GPUs, but"),
        (
            values.parallelism.channels.is_some(),
            "parallelism.channels",
            "channels are a setting of NCCL for GPUs, but",
        ),
        (
            values.parallelism.transport != Transport::Auto,
            "parallelism.transport",
            "a transport moves data between GPUs, but",
        ),
        (
            values.engine.cuda_graphs == Some(true),
            "engine.cuda_graphs",
            "there are no CUDA graphs on the CPU, and",
        ),
    ];
    if let Some((_, key, what)) = for_gpus.into_iter().find(|(is_set, ..)| *is_set) {
        return Err(recipe.error(
            &[key],
            format!("{what} the run is on the CPU: {reason}"),
            format!("leave {key} out"),
        ));
    }
    if values.training.dtype == TrainingDtype::Tf32 {
        return Err(recipe.error(
            &["training.dtype"],
            format!("training.dtype = \"tf32\" is a mode of NVIDIA's tensor cores, but the run is on the CPU: {reason}"),
            "set training.dtype = \"fp32\"",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{GpuModel, Gpus};
    use crate::plan::corpus_facts;
    use crate::recipe;
    use std::path::Path;

    fn machine(gpus: usize) -> Machine {
        let model = GpuModel { name: "NVIDIA H200".to_owned(), memory_bytes: 1 << 37 };
        Machine { gpus: Gpus::Found(vec![model; gpus]), ..Machine::none() }
    }

    fn gpus_on(machine: &Machine, text: &str) -> Result<Vec<usize>> {
        let recipe = recipe::load_str(Path::new("r.toml"), text, &[], std::iter::empty(), machine).unwrap();
        choose_gpus(&recipe, machine)
    }

    fn gpus(text: &str, count: usize) -> Result<Vec<usize>> {
        gpus_on(&machine(count), text)
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
        assert!(text.contains("8 ranks need 8 GPUs, one for each, but this machine has 4"), "{text}");
        assert!(text.contains("parallelism.world_size = 4 or \"auto\""), "{text}");
        let error = gpus("[parallelism]\nworld_size = 2\n[engine]\ndevices = [0, 4]", 4).unwrap_err();
        assert!(error.message().contains("there is no GPU 4: this machine has 4"), "{error}");
    }

    #[test]
    fn several_gpus_need_nccl_unless_they_exchange_data_by_copies() {
        let without = Machine { nccl_missing: Some("install it"), ..machine(8) };
        let check = |text: &str| {
            let recipe = recipe::load_str(Path::new("r.toml"), text, &[], std::iter::empty(), &without)?;
            Plan::new(&recipe, &corpus_facts(&recipe)?, &without).map(|_| ())
        };
        let world = |ranks: usize| format!("[parallelism]\nworld_size = {ranks}\n");
        for alone in ["", &world(2), &world(4), &format!("{}shard = \"optimizer\"", world(8))] {
            check(alone).unwrap();
        }
        let nccl = [
            format!("{}transport = \"nccl\"", world(2)),
            format!("{}shard = \"none\"", world(2)),
            format!("{}shard = \"optimizer\"\n[engine]\nplacement = \"caching\"", world(2)),
            world(8),
        ];
        for text in nccl {
            let error = check(&text).unwrap_err();
            assert!(error.message().contains("NCCL here, which was not found; try: install it"), "{error}");
        }
    }

    #[test]
    fn the_cpu_refuses_what_only_gpus_do_and_an_unknown_machine_nothing() {
        let cpu = Machine { gpus: Gpus::Unusable("there is no driver".to_owned()), ..Machine::none() };
        assert_eq!(gpus_on(&cpu, "").unwrap(), [] as [usize; 0]);
        for text in ["engine.device = \"cuda\"", "training.dtype = \"tf32\"", "engine.devices = [0]"] {
            let error = gpus_on(&cpu, text).unwrap_err();
            assert!(error.message().contains("there is no driver"), "{error}");
            assert_eq!(gpus_on(&Machine::none(), text).unwrap(), [] as [usize; 0]);
        }
        let named = Machine::named("h200").unwrap();
        assert_eq!(gpus_on(&named, "parallelism.world_size = 3").unwrap(), [0, 1, 2]);
    }

    #[test]
    fn a_process_beside_a_run_has_one_gpu() {
        let one = Machine { single_device: true, ..machine(2) };
        assert_eq!(gpus_on(&one, "parallelism.world_size = 2").unwrap(), [0]);
        assert_eq!(gpus_on(&one, "parallelism.world_size = 2\nengine.devices = [1, 0]").unwrap(), [1]);
    }
}
