//! Every combination of what changes the layout of the state or the programs of a step trains, and with the
//! bits that its parts promise.

use crate::engine::harness::{Setup, Trained};

/// Enough steps for the first stage of a ramp and the step after it.
const STEPS: usize = 2;

/// One block, so that a combination takes milliseconds.
const SMALL: [&str; 6] = [
    "model.dim=16",
    "model.n_layers=1",
    "model.n_heads=2",
    "model.n_kv_heads=2",
    "training.local_batch_size=2",
    "training.seq_len=8",
];

const OPTIMIZERS: [&[&str]; 6] = [
    &["optimizer.name=adamw"],
    &["optimizer.name=lion"],
    &["optimizer.name=sgd"],
    &["optimizer.name=sgd", "optimizer.momentum=0.0"],
    &["optimizer.name=muon"],
    &[
        "optimizer.name=muon",
        "optimizer.orthogonalization=polar_express",
        "optimizer.neuron_momentum=0.95",
        "optimizer.groups.embedding.name=lion",
        "optimizer.groups.vector.lr=1e-3",
    ],
];
const AVERAGES: [&[&str]; 3] = [&[], &["ema.decay=0.9"], &["ema.decay=0.9", "ema.evaluate=true"]];
const DTYPES: [&str; 2] = ["training.dtype=fp32", "training.dtype=bf16"];
const ACCUMULATIONS: [usize; 2] = [1, 2];
const RAMPS: [bool; 2] = [false, true];
const RECOMPUTES: [&str; 2] = ["activation_checkpoint.mode=none", "activation_checkpoint.mode=full"];

/// Trains one combination on this many ranks.
fn train(
    parts: &[&[&str]],
    accumulation: usize,
    ramp: bool,
    world: usize,
    shard: &str,
) -> Result<Vec<Trained>, String> {
    let local = 2;
    let accumulation = format!("training.accumulation={accumulation}");
    let mut settings = SMALL.to_vec();
    settings.extend(parts.iter().copied().flatten());
    let stage = format!("training.batch_ramp=[[1, {}]]", 3 * local * world);
    let (world, shard) = (format!("parallelism.world_size={world}"), format!("parallelism.shard={shard}"));
    settings.extend([accumulation.as_str(), &world, &shard]);
    settings.extend(ramp.then_some(stage.as_str()));
    let setup = Setup::try_new(&settings).map_err(|e| format!("{settings:?}: {e}"))?;
    let trained = setup.on_ranks(|_| setup.plan.clone(), |rank| Trained::new(rank, STEPS));
    trained.map_err(|e| format!("{settings:?}: {e}"))
}

/// Returns the averages and modes of recomputation to train: neither of both, and every average, either with
/// recomputation or without. That alternates with the sum of the places of the five other choices, so every
/// average and mode meets every combination of any four of them.
fn averages_and_recomputes(sum: usize) -> impl Iterator<Item = (&'static [&'static str], &'static str)> {
    let all = AVERAGES.into_iter().flat_map(|a| RECOMPUTES.map(|r| (a, r))).enumerate();
    all.filter(move |(at, _)| *at == 0 || at % 2 == sum % 2).map(|(_, pair)| pair)
}

/// Optimizers, averages of the weights, formats, accumulation, ramps, recomputation, ranks and shards: all
/// products of them, but recomputation and averages by turns. Shards never change bits, and neither does
/// recomputation or an average.
#[test]
fn everything_works_with_everything() {
    let mut wrong = Vec::new();
    let optimizers = OPTIMIZERS.into_iter().enumerate();
    for (at, (optimizer, dtype)) in optimizers.flat_map(|(at, o)| [0, 1].map(|i| (at + i, (o, DTYPES[i])))) {
        for (accumulation, ramp) in ACCUMULATIONS.into_iter().flat_map(|a| RAMPS.map(|ramp| (a, ramp))) {
            for (place, (world, shard)) in
                [(1, "none"), (2, "none"), (2, "optimizer")].into_iter().enumerate()
            {
                let mut first: Option<Vec<(f32, f32)>> = None;
                let sum = at + accumulation + usize::from(ramp) + place;
                for (average, recompute) in averages_and_recomputes(sum) {
                    let parts: [&[&str]; 3] = [optimizer, average, &[dtype, recompute]];
                    match train(&parts, accumulation, ramp, world, shard) {
                        Err(e) => wrong.push(e),
                        Ok(ranks) => {
                            let curve = &ranks[0].curve;
                            let bits = |curve: &[(f32, f32)]| -> Vec<_> {
                                curve.iter().map(|(loss, norm)| (loss.to_bits(), norm.to_bits())).collect()
                            };
                            let is_new =
                                curve.len() != STEPS || curve.iter().any(|(loss, _)| !loss.is_finite());
                            let differs = first.as_ref().is_some_and(|first| bits(first) != bits(curve));
                            if is_new || differs {
                                wrong.push(format!(
                                    "{parts:?} {accumulation} {ramp} {world} {shard}: {curve:?}"
                                ));
                            }
                            first.get_or_insert_with(|| curve.clone());
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}
