//! How a step is executed: devices, memory, kernels, communication.

use super::recompute_choice::RecomputeChoice;
use crate::device::ProductPrecision;
use crate::machine::Machine;
use crate::policy::{
    Attention, Communication, Launcher, Placement, Recompute, Reduction, Shard, TrainingDtype, Transport,
};
use crate::recipe::{Recipe, Values};

/// How a step is executed. Except for `products` and `communicate`, none of this changes the loss curve
/// beyond rounding.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// The GPU of this machine's first rank; `None` if all ranks run on the CPU.
    pub gpu: Option<usize>,
    /// The GPUs of this machine's other ranks, in rank order.
    pub peers: Vec<usize>,
    /// CPU worker threads.
    pub threads: usize,
    /// Precision of matrix products.
    pub products: ProductPrecision,
    /// How memory of transient tensors is allocated.
    pub placement: Placement,
    /// On a GPU, replay steps as CUDA graphs.
    pub cuda_graphs: bool,
    /// Fill dead memory with NaN.
    pub poison: bool,
    /// Run fused ops; false replaces them by smaller ones.
    pub fused: bool,
    /// Implementation of attention.
    pub attention: Attention,
    /// Activations that the backward pass recomputes. If the recipe leaves this to the plan, it is `None`
    /// until a mode is chosen.
    pub recompute: Recompute,
    /// Why the mode was chosen, if the recipe leaves it to the plan.
    pub recompute_choice: Option<RecomputeChoice>,
    /// Smallest size of a gradient bucket in bytes; 0 for one bucket per parameter.
    pub bucket_bytes: usize,
    /// Reduction of gradients over ranks.
    pub reduction: Reduction,
    /// Reduce gradients while the backward pass still runs.
    pub overlap: bool,
    /// Let ranks exchange only the rows of the embedding's gradient that batches touch.
    pub embedding_exchange: bool,
    /// Whether ranks divide the optimizer's slots; never `Auto`.
    pub shard: Shard,
    /// How GPUs exchange data. `Auto` means by copies if the GPUs turn out to have access to each other's
    /// memory.
    pub transport: Transport,
    /// Thread blocks of a GPU that work on a collective; `None` leaves it to NCCL.
    pub channels: Option<usize>,
    /// Reduce gradients over ranks.
    pub communicate: bool,
    /// Memory limit of the engine, in bytes.
    pub memory_limit: Option<usize>,
}

/// Most ranks that divide the optimizer's slots by default: the most that were tested on GPUs.
const SHARDED_BY_DEFAULT: usize = 4;

/// Returns true if ranks on GPUs divide the optimizer's slots by default: if they are on one host and may
/// exchange data by copies.
fn shards_by_default(recipe: &Recipe, machine: &Machine) -> bool {
    let Values { engine, parallelism, .. } = recipe.values();
    let world = recipe.world_size();
    let on_one_host = match parallelism.launcher {
        Launcher::Thread | Launcher::Process => true,
        Launcher::Env => machine.local_ranks == Some(world),
    };
    (2..=SHARDED_BY_DEFAULT).contains(&world)
        && on_one_host
        && parallelism.transport != Transport::Nccl
        && parallelism.reduction == Reduction::Bucketed
        && engine.placement == Placement::Arena
        && engine.communication == Communication::On
}

impl Execution {
    /// Returns the execution that a recipe asks for on the GPUs of its ranks; no GPUs means the CPU.
    pub(super) fn from_recipe(recipe: &Recipe, gpus: &[usize], machine: &Machine) -> Self {
        let Values { engine, parallelism, training, activation_checkpoint, .. } = recipe.values();
        let shard = match parallelism.shard {
            Shard::Auto if !gpus.is_empty() && shards_by_default(recipe, machine) => Shard::Optimizer,
            Shard::Auto => Shard::None,
            chosen => chosen,
        };
        Self {
            gpu: gpus.first().copied(),
            peers: gpus.iter().skip(1).copied().collect(),
            threads: engine.threads.unwrap_or_else(|| (machine.threads / machine.processes).max(1)),
            products: match training.dtype {
                TrainingDtype::Tf32 => ProductPrecision::Tf32,
                TrainingDtype::Fp32 | TrainingDtype::Bf16 | TrainingDtype::Fp8 => ProductPrecision::Native,
            },
            placement: engine.placement,
            cuda_graphs: engine.cuda_graphs.unwrap_or(engine.placement == Placement::Arena),
            poison: engine.poison,
            fused: engine.fused,
            attention: engine.attention,
            recompute: activation_checkpoint.mode.fixed().unwrap_or(Recompute::None),
            recompute_choice: None,
            bucket_bytes: (parallelism.bucket_mib * f64::from(1 << 20)) as usize,
            reduction: parallelism.reduction,
            overlap: parallelism.overlap,
            embedding_exchange: parallelism.embedding_exchange,
            shard,
            transport: match parallelism.transport {
                Transport::Auto if shard == Shard::None => Transport::Nccl,
                chosen => chosen,
            },
            channels: parallelism.channels,
            communicate: engine.communication == Communication::On,
            memory_limit: engine.memory_limit_gib.map(|gib| (gib * f64::from(1 << 30)) as usize),
        }
    }

    /// Returns the GPUs of this machine's ranks, in rank order; empty for the CPU.
    pub fn gpus(&self) -> impl Iterator<Item = usize> + '_ {
        self.gpu.into_iter().chain(self.peers.iter().copied())
    }

    /// Returns the GPU of a rank, counted from 0 on this machine; `None` for the CPU.
    pub fn gpu_for_rank(&self, local_rank: usize) -> Option<usize> {
        self.gpus().nth(local_rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe;
    use std::path::Path;

    fn shard(gpus: &[usize], text: &str) -> Shard {
        let machine = Machine::named("h200").unwrap();
        let recipe = recipe::load_str(Path::new("r.toml"), text, &[], std::iter::empty(), &machine).unwrap();
        Execution::from_recipe(&recipe, gpus, &machine).shard
    }

    #[test]
    fn up_to_four_gpus_shard_the_optimizer_by_default() {
        let two = "[parallelism]\nworld_size = 2\n";
        assert_eq!(shard(&[0, 1], two), Shard::Optimizer);
        assert_eq!(shard(&[0, 1], &format!("{two}launcher = \"process\"")), Shard::Optimizer);
        assert_eq!(shard(&[], two), Shard::None, "on the CPU it saves no traffic");
        assert_eq!(shard(&[0], ""), Shard::None);
        assert_eq!(shard(&[0, 1, 2, 3], "[parallelism]\nworld_size = 4"), Shard::Optimizer);
        let eight: Vec<usize> = (0..8).collect();
        assert_eq!(shard(&eight, "[parallelism]\nworld_size = 8"), Shard::None, "untested on GPUs");
        // The variable of the launcher is unset here, so where the other ranks are is unknown.
        assert_eq!(shard(&[0, 1], &format!("{two}launcher = \"env\"")), Shard::None);
        for without_copies in [
            "transport = \"nccl\"",
            "reduction = \"grouped\"",
            "[engine]\nplacement = \"caching\"",
            "[engine]\ncommunication = \"off\"",
        ] {
            assert_eq!(shard(&[0, 1], &format!("{two}{without_copies}")), Shard::None, "{without_copies}");
        }
        assert_eq!(shard(&eight, "[parallelism]\nworld_size = 8\nshard = \"optimizer\""), Shard::Optimizer);
    }
}
