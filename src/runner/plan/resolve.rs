//! Turns a recipe into a plan.

use super::devices::{check_nccl, choose_gpus};
use super::{
    Adapter, BatchPlan, CorpusFacts, Execution, Fp8, Intervals, Model, Objective, Plan, Preference, Schedule,
    Seeds, held_out_loss, mixture,
};
use crate::device::{DType, Precision};
use crate::error::Result;
use crate::evaluation::tasks;
use crate::machine::Machine;
use crate::model_text::{Graph, Node, Operation};
use crate::optim::{GroupRole, RoleRule, UpdateGroup, Value, WeightEma};
use crate::policy::{Packing, TrainingDtype};
use crate::recipe::Recipe;
use std::sync::Arc;

impl Plan {
    /// Derives every number of a recipe for a corpus and a machine. Reads nothing else.
    ///
    /// # Errors
    /// If the recipe contradicts itself, is too large to count, or is impossible on the machine: a usage
    /// error that points at the recipe.
    pub fn new(recipe: &Recipe, corpus: &CorpusFacts, machine: &Machine) -> Result<Plan> {
        let values = recipe.values();
        let gpus = choose_gpus(recipe, machine)?;
        let batch = BatchPlan::from_recipe(recipe)?;
        let model = Model::from_recipe(recipe, corpus.vocab_size)?;
        check_size(recipe, &model, &batch)?;
        let graph = Arc::new(model.graph(batch.seq_len)?);
        check_text_size(recipe, &graph, &batch)?;
        let fp8 = Fp8::from_recipe(recipe, &graph, machine)?;
        let act_dtype = match values.training.dtype {
            TrainingDtype::Bf16 | TrainingDtype::Fp8 => DType::Bf16,
            TrainingDtype::Fp32 | TrainingDtype::Tf32 => DType::F32,
        };
        let update_groups = update_groups(recipe, &model)?;
        let stages = mixture::stages(recipe, &batch);
        let sources = mixture::sources(recipe, &batch, &stages, corpus)?;
        let plan = Plan {
            name: recipe.name().to_owned(),
            model,
            graph,
            adapter: Adapter::from_recipe(recipe),
            preference: Preference::from_recipe(recipe),
            batch,
            steps: values.training.steps,
            until: values.training.until.clone(),
            seeds: Seeds::from_values(values),
            precision: Precision::for_act_dtype(act_dtype),
            fp8,
            objective: Objective {
                z_loss: values.training.z_loss,
                label_smoothing: values.training.label_smoothing,
            },
            packing: values.data.packing,
            shuffle: values.data.shuffle,
            cross_documents: values.data.cross_documents && values.data.packing == Packing::Stream,
            update_groups,
            ema: values.ema.decay.map(|decay| WeightEma { decay, evaluates: values.ema.evaluate }),
            max_norm: values.training.max_norm,
            schedule: Schedule {
                lr: values.optimizer.lr,
                steps: values.training.steps,
                shape: values.lr_scheduler.clone(),
            },
            execution: Execution::from_recipe(recipe, &gpus, machine),
            intervals: Intervals::from_values(values),
            tasks: tasks(held_out_loss(recipe), &values.validation.tasks),
            generation: values.generation.clone(),
            corpus: corpus.clone(),
            mixture: stages,
            sources,
        };
        check_nccl(recipe, machine, &plan)?;
        Ok(plan)
    }
}

/// Returns the groups in which a recipe updates the parameters of a model.
fn update_groups(recipe: &Recipe, model: &Model) -> Result<Vec<UpdateGroup>> {
    let rule = |role| {
        let rule = recipe.values().optimizer.rule(role)?;
        if model.base_dim.is_some() { rule.at_width(model.width_ratio()) } else { Some(rule) }
    };
    let rules: Option<Vec<RoleRule>> = GroupRole::ALL.into_iter().map(rule).collect();
    let rules = rules.ok_or_else(|| {
        recipe.error(&["optimizer.name"], "there is no such optimizer", "`xrun schema` lists them")
    })?;
    if let Some((rule, name, x)) = rules.iter().find_map(vanishing) {
        return Err(recipe.error(
            &["model.base_dim", "optimizer.name"],
            format!(
                "at this width, {name} of {} is {x:e} for parameters of {}, which vanishes in fp32",
                rule.entry.name,
                rule.role.word()
            ),
            format!("take a larger optimizer.{name}, or a base width closer to model.dim"),
        ));
    }
    Ok(UpdateGroup::join(&rules))
}

/// Returns the first number of a rule that is not 0 but vanishes in fp32, with its name. A recipe's own
/// numbers do not, but a factor of the width multiplies them.
fn vanishing(rule: &RoleRule) -> Option<(&RoleRule, &'static str, f64)> {
    let hyperparameters =
        rule.entry.hyperparameters.iter().filter_map(|h| match rule.values.get(h.name)? {
            Value::Number(x) => Some((h.name, *x)),
            _ => None,
        });
    let mut numbers = hyperparameters.chain([("lr", rule.lr)]);
    let (name, x) = numbers.find(|(_, x)| *x != 0.0 && x.abs() < f64::from(f32::MIN_POSITIVE))?;
    Some((rule, name, x))
}

/// Rejects a text whose byte counts would overflow 64 bits; the keys may say little about its size.
fn check_text_size(recipe: &Recipe, graph: &Graph, batch: &BatchPlan) -> Result<()> {
    let rows = (batch.rows() + recipe.values().generation.samples * batch.seq_len) as f64;
    let weights: f64 = graph.parameters.iter().map(|parameter| parameter.elements() as f64).sum();
    let heads =
        |node: &Node| if let Operation::Attention { .. } = node.operation { node.shape.heads } else { 0 };
    let widths: f64 =
        graph.nodes.iter().map(|node| (node.shape.elements() + heads(node) * batch.seq_len) as f64).sum();
    if 32.0 * (weights + rows * widths) < 1e18 {
        return Ok(());
    }
    Err(recipe.error(
        &["model.definition", "training.local_batch_size", "training.seq_len"],
        "the model and its activations take more bytes than 64 bits can count",
        "make one of them smaller",
    ))
}

/// Rejects sizes whose byte counts would overflow 64 bits, long before anything is laid out.
fn check_size(recipe: &Recipe, m: &Model, batch: &BatchPlan) -> Result<()> {
    let (steps, samples) = (recipe.values().training.steps, recipe.values().generation.samples);
    // Samples keep the keys and values of all their positions.
    let rows = batch.rows() as f64 + (samples * batch.seq_len) as f64;
    let widest = m.padded_vocab().max(2 * m.padded_ffn()).max(m.qkv_width()).max(m.n_heads * batch.seq_len);
    let per_layer = m.qkv_width() + m.n_heads * m.head_dim + 3 * m.padded_ffn();
    let weights =
        m.n_layers as f64 * per_layer as f64 * m.dim as f64 + 2.0 * m.padded_vocab() as f64 * m.dim as f64;
    // 32 bytes per weight or activation exceed what all formats and moments together need.
    let bytes = 32.0 * (weights + rows * widest as f64 * m.n_layers as f64 + 4.0 * steps as f64);
    let tokens = [batch.global, batch.seq_len, steps].into_iter().try_fold(1, usize::checked_mul);
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
