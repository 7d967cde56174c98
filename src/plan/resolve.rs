//! Recipe to plan.

use super::devices::choose_gpus;
use super::{
    AdamW, Batch, Corpus, Execution, Generation, Intervals, Model, Plan, Sampling, Scaling, Schedule,
};
use crate::device::{DType, Precision};
use crate::error::Result;
use crate::machine::Machine;
use crate::policy::{Batching, Communication, Placement, TrainingDtype};
use crate::recipe::{Recipe, Values};

impl Plan {
    /// Derives every number of a recipe for a corpus and a machine. Reads nothing else.
    ///
    /// # Errors
    /// A usage error that points at the recipe, for what contradicts itself, is too large to be counted, or cannot be
    /// done on that machine.
    pub fn new(recipe: &Recipe, corpus: &Corpus, machine: &Machine) -> Result<Plan> {
        let values = recipe.values();
        let gpus = choose_gpus(recipe, machine)?;
        let batch = plan_batch(recipe)?;
        let model = plan_model(recipe, corpus);
        let stream = match values.training.dtype {
            TrainingDtype::Bf16 => DType::Bf16,
            TrainingDtype::Fp32 | TrainingDtype::Tf32 => DType::F32,
        };
        let plan = Plan {
            name: recipe.name().to_owned(),
            model,
            batch,
            steps: values.training.steps,
            seed: values.training.seed,
            precision: Precision::of(stream),
            cross_documents: values.data.cross_documents,
            optimizer: AdamW {
                beta1: values.optimizer.betas[0],
                beta2: values.optimizer.betas[1],
                eps: values.optimizer.eps,
                weight_decay: values.optimizer.weight_decay,
                max_norm: values.training.max_norm,
            },
            schedule: Schedule {
                lr: values.optimizer.lr,
                warmup: values.lr_scheduler.warmup_steps,
                steps: values.training.steps,
                min_ratio: values.lr_scheduler.min_lr_ratio,
                decay: values.lr_scheduler.decay,
                decay_ratio: values.lr_scheduler.decay_ratio,
            },
            execution: plan_execution(recipe, &gpus, machine),
            intervals: Intervals {
                validation: values.validation.interval,
                validation_steps: values.validation.steps,
                checkpoint: values.checkpoint.interval,
                keep: values.checkpoint.keep,
                generation: values.generation.interval,
                check: values.parallelism.check_interval,
                metrics: values.metrics.interval,
                warmup: values.metrics.warmup,
            },
            generation: Generation {
                samples: values.generation.samples,
                tokens: values.generation.tokens,
                prompt: values.generation.prompt.clone(),
                sampling: Sampling {
                    temperature: values.generation.temperature,
                    top_k: values.generation.top_k,
                    top_p: values.generation.top_p,
                    seed: values.generation.seed,
                },
            },
            corpus: corpus.clone(),
        };
        check_size(recipe, &plan)?;
        Ok(plan)
    }
}

fn plan_model(recipe: &Recipe, corpus: &Corpus) -> Model {
    let m = &recipe.values().model;
    Model {
        vocab_size: corpus.vocab_size,
        dim: m.dim,
        n_layers: m.n_layers,
        n_heads: m.n_heads,
        n_kv_heads: m.n_kv_heads.unwrap_or(m.n_heads),
        head_dim: m.head_dim.unwrap_or(m.dim / m.n_heads),
        ffn_dim: m.ffn_dim,
        dropout: m.dropout,
        qk_norm: m.qk_norm,
        rope_theta: m.rope_theta,
        norm_eps: m.norm_eps,
        tie_embeddings: m.tie_embeddings,
    }
}

fn plan_batch(recipe: &Recipe) -> Result<Batch> {
    let training = &recipe.values().training;
    let split = recipe.batch()?;
    let looped = recipe.values().engine.batching == Batching::Looped;
    let (micro, micro_steps) =
        if looped { (1, split.local * split.accumulation) } else { (split.local, split.accumulation) };
    Ok(Batch {
        world: recipe.world_size(),
        local: split.local,
        accumulation: split.accumulation,
        global: split.global,
        seq_len: training.seq_len,
        scaling: if training.global_batch_size.is_some() { Scaling::Strong } else { Scaling::Weak },
        micro,
        micro_steps,
    })
}

fn plan_execution(recipe: &Recipe, gpus: &[usize], machine: &Machine) -> Execution {
    let Values { engine, parallelism, training, activation_checkpoint, .. } = recipe.values();
    Execution {
        gpu: gpus.first().copied(),
        peers: gpus.iter().skip(1).copied().collect(),
        threads: engine.threads.unwrap_or_else(|| (machine.threads / machine.processes).max(1)),
        tf32: training.dtype == TrainingDtype::Tf32,
        placement: engine.placement,
        cuda_graphs: engine.cuda_graphs.unwrap_or(engine.placement == Placement::Arena),
        poison: engine.poison,
        fused: engine.fused,
        attention: engine.attention,
        recompute: activation_checkpoint.mode,
        bucket_bytes: (parallelism.bucket_mib * f64::from(1 << 20)) as usize,
        reduction: parallelism.reduction,
        overlap: parallelism.overlap,
        embedding_exchange: parallelism.embedding_exchange,
        channels: parallelism.channels,
        communicate: engine.communication == Communication::On,
        memory_limit: engine.memory_limit_gib.map(|gib| (gib * f64::from(1 << 30)) as usize),
    }
}

/// Refuses sizes whose byte counts would leave 64 bits long before anything is laid out.
fn check_size(recipe: &Recipe, plan: &Plan) -> Result<()> {
    let m = &plan.model;
    // Samples keep the keys and values of all their positions.
    let rows = plan.batch.rows() as f64 + (plan.generation.samples * plan.batch.seq_len) as f64;
    let widest =
        m.padded_vocab().max(2 * m.padded_ffn()).max(m.qkv_width()).max(m.n_heads * plan.batch.seq_len);
    let per_layer = m.qkv_width() + m.n_heads * m.head_dim + 3 * m.padded_ffn();
    let weights =
        m.n_layers as f64 * per_layer as f64 * m.dim as f64 + 2.0 * m.padded_vocab() as f64 * m.dim as f64;
    // 32 bytes per weight or activation is more than any format and moment needs.
    let bytes = 32.0 * (weights + rows * widest as f64 * m.n_layers as f64 + 4.0 * plan.steps as f64);
    let tokens =
        [plan.batch.global, plan.batch.seq_len, plan.steps].into_iter().try_fold(1, usize::checked_mul);
    if tokens.is_none() {
        return Err(recipe.error(
            &[
                "training.steps",
                "training.seq_len",
                "training.global_batch_size",
                "training.local_batch_size",
            ],
            "all steps together take more tokens than 64 bits can count",
            "make one of them smaller",
        ));
    }
    if bytes < 1e18 {
        return Ok(());
    }
    Err(recipe.error(
        &["model.dim", "model.n_layers", "model.ffn_dim", "training.local_batch_size", "training.seq_len"],
        format!("a step of this model would take about {:.0} PB", bytes / 1e15),
        "make one of them smaller",
    ))
}
