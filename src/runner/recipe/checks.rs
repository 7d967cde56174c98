//! Checks values that are valid on their own but contradict each other.

use super::batch;
use super::derived;
use super::diagnostic::Diagnostic;
use super::fp8_checks;
use super::idle;
use super::length::{self, Fault};
use super::loaded::Recipe;
use super::optimizer_checks;
use super::position_checks;
use super::preference_checks;
use super::source_checks;
use super::sweep_checks;
use super::until::{STEPS, UNTIL};
use super::values::WorldSize;
use super::width_checks;
use crate::expression::Formula;
use crate::model_text::{DROPOUT_RATES, rounded_dropout};
use crate::policy::{
    AdapterKind, Communication, Cooldown, Decay, DeviceChoice, Norm, NormPlacement, OrFormula,
    Parametrization, Placement, Reduction, Shard, Transport,
};

/// Most rows (sequences · tokens) in one micro step: kernels index them with 32 bits.
const MAX_ROWS: usize = i32::MAX as usize;

const HEADS: &str = "model.n_heads";

/// Finds every contradiction within the recipe. With `open_world` the number of ranks is unknown, so a batch
/// that it might not divide is accepted.
pub(super) fn contradictions(recipe: &Recipe, open_world: bool) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    heads(recipe, &mut found);
    block_parts(recipe, &mut found);
    position_checks::contradictions(recipe, &mut found);
    width_checks::contradictions(recipe, &mut found);
    dropout(recipe, &mut found);
    batches(recipe, open_world, &mut found);
    optimizer_checks::contradictions(recipe, &mut found);
    source_checks::contradictions(recipe, &mut found);
    match recipe.length_fault() {
        Some(fault) => found.push(budget(recipe, fault)),
        None => schedule(recipe, &mut found),
    }
    ema(recipe, &mut found);
    adapter(recipe, &mut found);
    preference_checks::contradictions(recipe, &mut found);
    fp8_checks::contradictions(recipe, &mut found);
    initial_optimizer(recipe, &mut found);
    tasks(recipe, &mut found);
    engine(recipe, &mut found);
    sweep_checks::contradictions(recipe, &mut found);
    idle::contradictions(recipe, &mut found);
    found
}

/// Reports dropout rates near 0 and 1 that 16 bits cannot represent.
fn dropout(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let rate = recipe.values().model.dropout;
    let Some(rounded) = rounded_dropout(rate) else { return };
    let drawn = rate * DROPOUT_RATES;
    let nearest = [drawn.floor(), drawn.ceil()].map(|drawn| drawn / DROPOUT_RATES);
    let nearest: Vec<String> =
        nearest.into_iter().filter(|near| *near < 1.0).map(|near| format!("{near:?}")).collect();
    found.push(recipe.diagnostic(
        &["model.dropout"],
        format!(
            "a rate of dropout is rounded to a multiple of 1/65536, and {rate:?} would become {rounded:?}"
        ),
        format!("the nearest: {}", nearest.join(" and ")),
    ));
}

/// Reports adapters that adapt nothing, that have no model to adapt, or that cannot be scaled by width.
fn adapter(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let (adapter, model) = (&recipe.values().adapter, &recipe.values().model);
    if adapter.kind == AdapterKind::None {
        return;
    }
    if model.init_from.is_none() {
        found.push(recipe.diagnostic(
            &["adapter.kind", "model.init_from"],
            "adapters are trained in place of the weights, which would stay as they were drawn",
            "set model.init_from to the folder of a trained model or to a run, or leave adapter.kind out",
        ));
    }
    if adapter.targets.is_empty() {
        found.push(recipe.diagnostic(
            &["adapter.targets"],
            "no matrix gets an adapter, so nothing would be trained",
            "leave adapter.targets out for all matrices of the blocks",
        ));
    }
    if model.parametrization == Parametrization::Mup {
        found.push(recipe.diagnostic(
            &["adapter.kind", "model.parametrization"],
            "muP says how matrices of the model's width are trained, and adapters have another width",
            "leave model.parametrization out",
        ));
    }
}

/// Reports an optimizer's state to begin with that no run has, or that adapters do not have.
fn initial_optimizer(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let (adapter, model) = (&recipe.values().adapter, &recipe.values().model);
    if !model.init_optimizer {
        return;
    }
    if model.init_from.is_none() {
        found.push(recipe.diagnostic(
            &["model.init_optimizer", "model.init_from"],
            "no run is named whose optimizer's state could be taken",
            "set model.init_from to a run, or leave model.init_optimizer out",
        ));
    }
    if adapter.kind != AdapterKind::None {
        found.push(recipe.diagnostic(
            &["model.init_optimizer", "adapter.kind"],
            "the optimizer's state of a run belongs to its weights, and adapters are trained in their place",
            "leave model.init_optimizer out",
        ));
    }
}

/// Reports tasks whose files nobody names.
fn tasks(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let evaluation = &recipe.values().evaluation;
    if !evaluation.tasks.is_empty() && evaluation.data.is_none() {
        found.push(recipe.diagnostic(
            &["evaluation.tasks"],
            "evaluation.tasks needs the folder with the files of the tasks",
            "set evaluation.data; docs/tasks.md says how the files are found",
        ));
    }
}

fn heads(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let model = &recipe.values().model;
    let (dim, heads) = (model.dim, derived::n_heads(model));
    if let Some(kv) = model.n_kv_heads
        && !heads.is_multiple_of(kv)
    {
        found.push(recipe.diagnostic(
            &["model.n_kv_heads", if recipe.locate(HEADS).is_some() { HEADS } else { "model.dim" }],
            format!("{heads} query heads do not share {kv} key and value heads evenly"),
            format!("n_kv_heads divides n_heads: {}", divisors(heads)),
        ));
    }
    match model.head_dim {
        Some(width) if !width.is_multiple_of(2) => found.push(recipe.diagnostic(
            &["model.head_dim"],
            format!("model.head_dim = {width} is odd, but the rotary embedding rotates pairs of elements"),
            format!("take {} or {}", width - 1, width + 1),
        )),
        Some(_) => {}
        None if !dim.is_multiple_of(heads) => found.push(recipe.diagnostic(
            &[HEADS, "model.dim"],
            format!("a width of {dim} does not divide into {heads} heads"),
            "change one of them, or set model.head_dim",
        )),
        None if !(dim / heads).is_multiple_of(2) => found.push(recipe.diagnostic(
            &[HEADS, "model.dim"],
            format!(
                "heads of {dim} / {heads} = {} elements are odd, but the rotary embedding rotates pairs",
                dim / heads
            ),
            if heads == 1 {
                "take an even width, or set model.head_dim"
            } else {
                "take half as many heads, or set model.head_dim"
            },
        )),
        None => {}
    }
}

/// Reports parts of a block that exclude each other.
fn block_parts(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let model = &recipe.values().model;
    if model.parallel_blocks && model.norm_placement != NormPlacement::Pre {
        found.push(recipe.diagnostic(
            &["model.parallel_blocks", "model.norm_placement"],
            format!(
                "the sublayers of a parallel block share one norm before them, but norm_placement = \"{}\" adds others",
                model.norm_placement
            ),
            "take norm_placement = \"pre\", or leave parallel_blocks unset",
        ));
    }
    if model.norm_bias == Some(true) && model.norm == Norm::RmsNorm {
        found.push(recipe.diagnostic(
            &["model.norm_bias", "model.norm"],
            "RMSNorm has no bias, and norm_bias is true",
            "take norm = \"layer_norm\", or leave norm_bias unset",
        ));
    }
    if model.norm_bias == Some(true) && !model.norm_weight {
        found.push(recipe.diagnostic(
            &["model.norm_bias", "model.norm_weight"],
            "a norm has a bias only together with a weight, and norm_weight is false",
            "leave norm_weight or norm_bias unset",
        ));
    }
    if let (Some(interval), None) = (model.global_interval, model.window) {
        found.push(recipe.diagnostic(
            &["model.global_interval"],
            format!("one of every {interval} blocks would attend to all keys, but without a window every block does"),
            "set model.window, or leave global_interval unset",
        ));
    }
}

fn batches(recipe: &Recipe, open_world: bool, found: &mut Vec<Diagnostic>) {
    let training = &recipe.values().training;
    let local = match recipe.batch_or_reason() {
        Ok(batch) => {
            if let Some((reason, help)) = batch::ramp_fault(training, &batch).filter(|_| !open_world) {
                found.push(recipe.diagnostic(&batch::RAMP_KEYS, reason, help));
            }
            Some(batch.local)
        }
        Err(_) if open_world => training.local_batch_size,
        Err(reason) => {
            let keys: Vec<&str> = batch::KEYS
                .into_iter()
                .filter(|key| recipe.locate(key).is_some() || *key == "parallelism.world_size")
                .collect();
            found.push(recipe.diagnostic(
                &keys,
                reason,
                "global = local · accumulation · world; leave one of them unset and it is derived",
            ));
            None
        }
    };
    let seq_len = training.seq_len;
    if let Some(local) = local
        && local.checked_mul(seq_len).is_none_or(|rows| rows > MAX_ROWS)
    {
        found.push(recipe.diagnostic(
            &["training.local_batch_size", "training.seq_len"],
            format!(
                "{local} sequences of {seq_len} tokens in one micro step are more than {MAX_ROWS} tokens"
            ),
            "take a smaller local batch and raise training.accumulation",
        ));
    }
}

/// Reports a budget that is less than a step or too many steps, or that contradicts `training.steps` in the
/// same layer.
fn budget(recipe: &Recipe, fault: &Fault) -> Diagnostic {
    match fault {
        Fault::Budget(reason) => recipe.diagnostic(&[UNTIL], reason, length::HELP),
        Fault::Disagreement(reason) => recipe.diagnostic(&[STEPS, UNTIL], reason, length::DISAGREEMENT_HELP),
    }
}

fn schedule(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    const WARMUP: &str = "lr_scheduler.warmup_steps";
    const RATIO: &str = "lr_scheduler.warmup_ratio";
    let (schedule, written) = (&recipe.values().lr_scheduler, &recipe.written().lr_scheduler);
    let steps = recipe.values().training.steps;
    let warmup = derived::warmup_steps(schedule, steps);
    let (by_steps, by_ratio) = (recipe.merged.position(WARMUP), recipe.merged.position(RATIO));
    if written.warmup_ratio.is_some() && written.warmup_steps.is_some() && by_steps == by_ratio {
        found.push(recipe.diagnostic(
            &[WARMUP, RATIO],
            "the warm-up is set twice: in steps, and as a share of the steps",
            "keep one of them",
        ));
        return;
    }
    let warmup_key = if by_ratio > by_steps { RATIO } else { WARMUP };
    if warmup > steps {
        found.push(recipe.diagnostic(
            &[warmup_key, "training.steps"],
            format!("a warm-up of {warmup} steps does not end within {steps} steps"),
            "set lr_scheduler.warmup_ratio = 0.1 in place of warmup_steps: such a warm-up follows the steps",
        ));
    } else if schedule.decay == Decay::Wsd
        && let (key, decay) = match schedule.decay_steps {
            Some(decay) => ("lr_scheduler.decay_steps", decay as f64),
            None => ("lr_scheduler.decay_ratio", schedule.decay_ratio * steps as f64),
        }
        && warmup as f64 + decay > steps as f64
    {
        let length = schedule.decay_steps.map_or(schedule.decay_ratio.to_string(), |steps| steps.to_string());
        found.push(recipe.diagnostic(
            &[key, warmup_key, "training.steps"],
            format!("warm-up ({warmup}) and decay ({length} of {steps}) take more steps than there are"),
            "shorten one of them",
        ));
    }
    let exponential = match schedule.decay {
        OrFormula::Word(Decay::Exponential) => Some("lr_scheduler.decay"),
        OrFormula::Word(Decay::Wsd) if schedule.cooldown == Cooldown::Exponential => {
            Some("lr_scheduler.cooldown")
        }
        _ => None,
    };
    if let Some(key) = exponential.filter(|_| schedule.min_lr_ratio == 0.0) {
        found.push(recipe.diagnostic(
            &["lr_scheduler.min_lr_ratio", key],
            "an exponential decay never reaches a learning rate of 0",
            "set lr_scheduler.min_lr_ratio = 0.01 or another ratio above 0",
        ));
    }
    if let OrFormula::Formula(formula) = &schedule.decay {
        found.extend(decay(recipe, formula, (warmup, steps)));
    }
}

/// Most steps at which a decay formula is checked, to keep the check fast.
const MAX_CHECKED_STEPS: usize = 100_000;

/// How far rounding may take a decay outside 0 to 1.
const DECAY_ROUNDING: f64 = 1e-9;

/// Reports a decay formula that leaves 0 to 1 at a step after the warm-up. Of more than [`MAX_CHECKED_STEPS`]
/// steps, only evenly spaced ones are checked.
fn decay(recipe: &Recipe, formula: &Formula, (warmup, steps): (usize, usize)) -> Option<Diagnostic> {
    let after = steps.saturating_sub(warmup);
    let range = -DECAY_ROUNDING..=1.0 + DECAY_ROUNDING;
    let apart = after.div_ceil(MAX_CHECKED_STEPS).max(1);
    let tried = (1..=after).step_by(apart).chain((after > 0).then_some(after));
    let shares = tried.map(|step| step as f64 / after as f64);
    let (share, value) =
        shares.map(|share| (share, formula.value(&[share]))).find(|(_, value)| !range.contains(value))?;
    Some(recipe.diagnostic(
        &["lr_scheduler.decay"],
        format!("the decay {formula} is {value} at t = {share}"),
        "keep its value between 0, where the rate is min_lr_ratio of the peak, and 1, where it is the peak",
    ))
}

fn engine(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let engine = &recipe.values().engine;
    let parallelism = &recipe.values().parallelism;
    let for_gpus = [
        (
            engine.devices.is_some(),
            "engine.devices",
            "engine.devices chooses among GPUs, and the run is on the CPU",
        ),
        (
            parallelism.transport != Transport::Auto,
            "parallelism.transport",
            "a transport moves data between GPUs",
        ),
        (
            parallelism.channels.is_some(),
            "parallelism.channels",
            "channels belong to NCCL, which connects GPUs",
        ),
        (engine.cuda_graphs == Some(true), "engine.cuda_graphs", "there are no CUDA graphs on the CPU"),
    ];
    for (_, key, reason) in
        for_gpus.into_iter().filter(|(is_set, ..)| *is_set && engine.device == DeviceChoice::Cpu)
    {
        found.push(recipe.diagnostic(
            &[key, "engine.device"],
            reason,
            format!("leave {key} out, or set engine.device = \"cuda\""),
        ));
    }
    if let Some(devices) = &engine.devices
        && let WorldSize::Fixed(world) = recipe.written().parallelism.world_size
        && devices.len() != world
    {
        found.push(recipe.diagnostic(
            &["engine.devices", "parallelism.world_size"],
            format!("{} devices for {world} ranks", devices.len()),
            "name one device per rank, or set parallelism.world_size = \"auto\"",
        ));
    }
    if parallelism.shard == Shard::Optimizer && parallelism.reduction == Reduction::Grouped {
        found.push(recipe.diagnostic(
            &["parallelism.reduction", "parallelism.shard"],
            "reduction = \"grouped\" gives every rank all gradient sums, but with shard = \"optimizer\" each rank needs only its part",
            "leave one of them out",
        ));
    }
    if parallelism.shard == Shard::Optimizer && engine.communication == Communication::Off {
        found.push(recipe.diagnostic(
            &["engine.communication", "parallelism.shard"],
            "ranks that share the optimizer's slots must communicate",
            "leave parallelism.shard or engine.communication out",
        ));
    }
    if parallelism.transport == Transport::Copies && parallelism.shard == Shard::None {
        found.push(recipe.diagnostic(
            &["parallelism.transport", "parallelism.shard"],
            "copies go to the ranks that own parts of the parameters, but without shard = \"optimizer\" no rank does",
            "set parallelism.shard = \"optimizer\", or leave parallelism.transport out",
        ));
    }
    if parallelism.transport == Transport::Copies && recipe.world_size() > Transport::MOST_COPYING {
        found.push(recipe.diagnostic(
            &["parallelism.transport", "parallelism.world_size"],
            format!("copies are between the GPUs of at most {} ranks", Transport::MOST_COPYING),
            "leave parallelism.transport out, for NCCL",
        ));
    }
    if parallelism.transport == Transport::Copies && engine.placement != Placement::Arena {
        found.push(recipe.diagnostic(
            &["parallelism.transport", "engine.placement"],
            "GPUs that have access to each other's memory wait for each other when a tensor is freed",
            "leave engine.placement or parallelism.transport out",
        ));
    }
    if engine.cuda_graphs == Some(true) && engine.placement != Placement::Arena {
        found.push(recipe.diagnostic(
            &["engine.cuda_graphs", "engine.placement"],
            "a CUDA graph replays fixed addresses, which only the arena gives",
            "set engine.placement = \"arena\", or leave engine.cuda_graphs out",
        ));
    }
}

/// Reports that the average is to be evaluated but none is kept.
fn ema(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let ema = &recipe.values().ema;
    if ema.evaluate && ema.decay.is_none() {
        found.push(recipe.diagnostic(
            &["ema.evaluate", "ema.decay"],
            "there is no moving average of the weights to evaluate",
            "set ema.decay, such as to 0.999, or leave ema.evaluate out",
        ));
    }
}

/// Lists the divisors of `n` for a message.
fn divisors(n: usize) -> String {
    (1..=n).filter(|d| n.is_multiple_of(*d)).map(|d| d.to_string()).collect::<Vec<_>>().join(", ")
}
