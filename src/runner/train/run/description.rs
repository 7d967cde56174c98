//! Describes a run before its first step: its summary, and the metadata of its checkpoints.

use crate::checkpoint::{END_TOKEN_ID, INITIAL_WEIGHTS, Meta};
use crate::data::HeldOut;
use crate::device::cuda::Gpu;
use crate::error::Result;
use crate::forecast::memory::peak_bytes;
use crate::forecast::time::predicted_step_ms;
use crate::plan::Plan;
use crate::results::held_out::HeldOutSet;
use crate::results::summary::{BegunWith, HeldOutPart};
use crate::results::{Summary, memory};
use crate::train::gauges::engine_name;
use crate::train::import::shown;
use crate::train::initial::weights::InitialWeights;
use crate::train::job::Job;
use crate::train::start::{Start, corpus_files};
use std::collections::BTreeMap;

/// Returns the part of the held-out text that evaluations use; `None` without a limit.
pub(super) fn held_out_part(plan: &Plan) -> Option<HeldOutPart> {
    part_for(plan, plan.corpus.validation_tokens)
}

/// Returns the same as [`held_out_part`] for a held-out set of `tokens` tokens.
fn part_for(plan: &Plan, tokens: usize) -> Option<HeldOutPart> {
    let (batches, of) = plan.evaluated_batches_for(tokens);
    (plan.intervals.validation_steps > 0).then_some(HeldOutPart { batches: batches as u64, of: of as u64 })
}

/// Note in the summary of a run whose ranks do not exchange gradients.
const NOT_EXCHANGED_NOTE: &str =
    "communication off: replicas differ, so nothing from this run may be exported";

/// Fills in everything that is known before the first step.
pub(super) fn describe(mut summary: Summary, job: &Job, start: &Start) -> Result<Summary> {
    let Job { plan, programs, dataset, .. } = job;
    summary.recipe_hash.clone_from(&job.recipe_hash);
    summary.steps_planned = plan.steps as u64;
    summary.parameters = Some(programs.state.parameter_count() as u64);
    summary.parameters_core = Some(programs.state.core_parameter_count() as u64);
    summary.corpus_hash = Some(dataset.hash.clone());
    summary.corpus_files = corpus_files(dataset);
    summary.floor = dataset.floor;
    summary.val_part = held_out_part(plan);
    let known = std::mem::take(&mut summary.held_out);
    let entry = |set: &HeldOut| {
        let before = known.get(&set.name).cloned().unwrap_or_default();
        let (hash, part) = (Some(set.hash.clone()), part_for(plan, set.tokens.len()));
        (set.name.clone(), HeldOutSet { hash, part, ..before })
    };
    summary.held_out = dataset.held_out().map(entry).collect();
    summary.uniform_loss = Some((plan.model.vocab_size as f64).ln());
    let gpu = plan.execution.gpu.and_then(|gpu| Gpu::properties_of(gpu).ok());
    summary.predicted_step_ms = gpu.and_then(|gpu| predicted_step_ms(plan, programs, &gpu.name));
    summary.memory.planned_bytes = Some(peak_bytes(plan, programs) as u64);
    summary.memory.baseline_rss_bytes = memory::rss_bytes();
    if let Some(fork) = &start.forked_from {
        summary.forked_from = Some(fork.clone());
    }
    if let Some(InitialWeights { weights, hash }) = &start.initial {
        let folder = shown(weights.folder().path())?;
        summary.begun_with = Some(BegunWith { folder, blake3: hash.clone() });
    }
    summary.notes.extend(start.kept.iter().cloned());
    let changed = |change: &String| format!("after step {} with {change}", start.step());
    summary.notes.extend(start.changes.iter().map(changed));
    let exchanges = plan.batch.world_size == 1 || plan.execution.communicate;
    if !exchanges && !summary.notes.iter().any(|note| note == NOT_EXCHANGED_NOTE) {
        summary.notes.push(NOT_EXCHANGED_NOTE.to_owned());
    }
    Ok(summary)
}

/// Returns the metadata of checkpoints. Keeps the hash of the initial weights with which this run, or the run
/// that it continues, began.
pub(super) fn meta(job: &Job, start: &Start) -> Meta {
    let end_token = job.dataset.tokenizer.end_token().to_string();
    let mut extra = BTreeMap::from([(END_TOKEN_ID.to_string(), end_token)]);
    let before = start.loaded.as_ref().and_then(|loaded| loaded.meta().extra.get(INITIAL_WEIGHTS));
    if let Some(hash) = start.initial.as_ref().map(|initial| &initial.hash).or(before) {
        extra.insert(INITIAL_WEIGHTS.to_owned(), hash.clone());
    }
    let Job { recipe, recipe_hash, plan, dataset, .. } = job;
    Meta {
        step: 0,
        tokens_seen: 0,
        recipe_hash: recipe_hash.clone(),
        resolved_recipe_toml: recipe.to_toml(),
        corpus_hash: dataset.hash.clone(),
        tokenizer_hash: dataset.tokenizer.hash(),
        world_size: plan.batch.world_size as u64,
        seed: plan.seeds.training,
        xrun_version: env!("CARGO_PKG_VERSION").to_string(),
        engine: engine_name(plan),
        algorithms: None,
        extra,
        rows: BTreeMap::new(),
    }
}
