//! Recipe to plan.

use super::runnable::{choose_gpu, choose_gpus};
use super::{
    AdamW, Batch, Corpus, Execution, Generation, Intervals, Model, Plan, Sampling, Scaling, Schedule,
};
use crate::device::{DType, Precision, ProductPrecision};
use crate::error::Result;
use crate::policy::{Batching, Communication, Placement, TrainingDtype};
use crate::recipe::{BATCH_KEYS, Resolved, WorldSize, batch};

impl Plan {
    /// Derives every number of a recipe for a corpus, to run it here.
    ///
    /// # Errors
    /// A usage error that points at the recipe, for what contradicts itself, is too large to be counted, or cannot be
    /// done here.
    pub fn new(resolved: &Resolved, corpus: Corpus) -> Result<Plan> {
        Self::on(resolved, corpus, &choose_gpus(resolved)?)
    }

    /// As [`Plan::new`], for one process beside a run, however many ranks the run has: on one GPU or the CPU.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn for_one_process(resolved: &Resolved, corpus: Corpus) -> Result<Plan> {
        let gpu = choose_gpu(resolved)?;
        let mut plan = Self::anywhere(resolved, corpus)?;
        plan.execution.gpu = gpu;
        Ok(plan)
    }

    /// As [`Plan::new`], for whichever machine: what this one or this version cannot run is planned all the same.
    ///
    /// # Errors
    /// As [`Plan::new`], but for what cannot be done here.
    pub fn anywhere(resolved: &Resolved, corpus: Corpus) -> Result<Plan> {
        Self::on(resolved, corpus, &[])
    }

    /// The plan for these GPUs, one per rank; for none, that of the CPU.
    fn on(resolved: &Resolved, corpus: Corpus, gpus: &[usize]) -> Result<Plan> {
        let recipe = &resolved.recipe;
        let world = match recipe.parallelism.world_size {
            WorldSize::Fixed(world) => world,
            // One rank per device, and the CPU is one device.
            WorldSize::Auto => gpus.len().max(1),
        };
        let batch = plan_batch(resolved, world)?;
        let model = plan_model(resolved, &corpus);
        let stream = match recipe.training.dtype {
            TrainingDtype::Bf16 => DType::Bf16,
            TrainingDtype::Fp32 | TrainingDtype::Tf32 => DType::F32,
        };
        let plan = Plan {
            name: resolved.name.clone(),
            model,
            batch,
            steps: recipe.training.steps,
            seed: recipe.training.seed,
            precision: Precision::of(stream),
            cross_documents: recipe.data.cross_documents,
            optimizer: AdamW {
                beta1: recipe.optimizer.betas[0],
                beta2: recipe.optimizer.betas[1],
                eps: recipe.optimizer.eps,
                weight_decay: recipe.optimizer.weight_decay,
                max_norm: recipe.training.max_norm,
            },
            schedule: Schedule {
                lr: recipe.optimizer.lr,
                warmup: recipe.lr_scheduler.warmup_steps,
                steps: recipe.training.steps,
                min_ratio: recipe.lr_scheduler.min_lr_ratio,
                decay: recipe.lr_scheduler.decay,
                decay_ratio: recipe.lr_scheduler.decay_ratio,
            },
            execution: plan_execution(resolved, gpus),
            intervals: Intervals {
                validation: recipe.validation.interval,
                validation_steps: recipe.validation.steps,
                checkpoint: recipe.checkpoint.interval,
                keep: recipe.checkpoint.keep,
                generation: recipe.generation.interval,
                check: recipe.parallelism.check_interval,
                metrics: recipe.metrics.interval,
                warmup: recipe.metrics.warmup,
            },
            generation: Generation {
                samples: recipe.generation.samples,
                tokens: recipe.generation.tokens,
                prompt: recipe.generation.prompt.clone(),
                sampling: Sampling {
                    temperature: recipe.generation.temperature,
                    top_k: recipe.generation.top_k,
                    top_p: recipe.generation.top_p,
                    seed: recipe.generation.seed,
                },
            },
            corpus,
        };
        check_size(resolved, &plan)?;
        Ok(plan)
    }
}

fn plan_model(resolved: &Resolved, corpus: &Corpus) -> Model {
    let m = &resolved.recipe.model;
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

fn plan_batch(resolved: &Resolved, world: usize) -> Result<Batch> {
    let training = &resolved.recipe.training;
    let split = batch(training, world).map_err(|reason| {
        resolved.error(&BATCH_KEYS, reason, "global = local · accumulation · world; leave one of them unset")
    })?;
    let looped = resolved.recipe.engine.batching == Batching::Looped;
    let (micro, micro_steps) =
        if looped { (1, split.local * split.accumulation) } else { (split.local, split.accumulation) };
    Ok(Batch {
        world,
        local: split.local,
        accumulation: split.accumulation,
        global: split.global,
        seq_len: training.seq_len,
        scaling: if training.global_batch_size.is_some() { Scaling::Strong } else { Scaling::Weak },
        micro,
        micro_steps,
    })
}

fn plan_execution(resolved: &Resolved, gpus: &[usize]) -> Execution {
    let engine = &resolved.recipe.engine;
    let parallelism = &resolved.recipe.parallelism;
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    Execution {
        gpu: gpus.first().copied(),
        peers: gpus.iter().skip(1).copied().collect(),
        threads: engine.threads.unwrap_or(available),
        products: match resolved.recipe.training.dtype {
            TrainingDtype::Tf32 => ProductPrecision::Tf32,
            TrainingDtype::Fp32 | TrainingDtype::Bf16 => ProductPrecision::Native,
        },
        placement: engine.placement,
        cuda_graphs: engine.cuda_graphs.unwrap_or(engine.placement == Placement::Arena),
        poison: engine.poison,
        fused: engine.fused,
        attention: engine.attention,
        recompute: resolved.recipe.activation_checkpoint.mode,
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
fn check_size(resolved: &Resolved, plan: &Plan) -> Result<()> {
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
        return Err(resolved.error(
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
    Err(resolved.error(
        &["model.dim", "model.n_layers", "model.ffn_dim", "training.local_batch_size", "training.seq_len"],
        format!("a step of this model would take about {:.0} PB", bytes / 1e15),
        "make one of them smaller",
    ))
}
