//! How often each source of a mixture is read.

use super::{BatchPlan, CorpusFacts};
use crate::data::{MixtureStage, SourceFacts, Windows, mixture_shares};
use crate::error::Result;
use crate::format::{plural, thousands};
use crate::recipe::Recipe;

/// A source of a mixture in a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedSource {
    /// What is known of its text.
    pub facts: SourceFacts,
    /// Sequences that are read from it, to within one.
    pub sequences: f64,
    /// Their share of all sequences of the run, from 0 to 1.
    pub share: f64,
    /// Passes over its windows, or over the rows of its documents.
    pub epochs: f64,
}

/// An estimate of a source's length may be this much too short: a plan does not refuse what a run may do.
const ESTIMATE: f64 = 1.05;

/// Returns the weights of a mixture by sequence; nothing for a corpus that is one source.
pub(super) fn stages(recipe: &Recipe, batch: &BatchPlan) -> Vec<MixtureStage> {
    let data = &recipe.values().data;
    if data.sources.is_empty() {
        return Vec::new();
    }
    let weights = data.sources.values().map(|source| source.weight.unwrap_or(1.0)).collect();
    let mut stages = vec![MixtureStage { from: 0, weights }];
    for phase in &data.phases {
        let from = batch.sequences_in_first_steps(phase.steps_before(recipe.values().training.steps));
        // A short run may have no step between two phases.
        stages.retain(|stage| stage.from < from);
        let weight = |name: &String| phase.weights.get(name).copied().unwrap_or_default();
        stages.push(MixtureStage { from, weights: data.sources.keys().map(weight).collect() });
    }
    stages
}

/// Returns how often each source is read in the steps of a recipe.
///
/// # Errors
/// If a source would be read more often than its `epochs`. The usage error shows the passes of each.
pub(super) fn sources(
    recipe: &Recipe,
    batch: &BatchPlan,
    stages: &[MixtureStage],
    corpus: &CorpusFacts,
) -> Result<Vec<PlannedSource>> {
    if stages.is_empty() || corpus.sources.is_empty() {
        return Ok(Vec::new());
    }
    let steps = recipe.values().training.steps;
    let sequences = batch.sequences_in_first_steps(steps as u64);
    let drawn = mixture_shares(corpus.sources.len(), stages, sequences)?;
    let planned = corpus.sources.iter().zip(drawn).map(|(facts, drawn)| {
        let count = match facts.packed {
            Some(packed) => packed.rows,
            None => Windows::new(facts.train_tokens, batch.seq_len).count,
        };
        PlannedSource {
            facts: facts.clone(),
            sequences: drawn,
            share: drawn / sequences.max(1) as f64,
            epochs: drawn / count.max(1) as f64,
        }
    });
    let planned: Vec<PlannedSource> = planned.collect();
    for source in &planned {
        let name = &source.facts.name;
        let limit = recipe.values().data.sources.get(name).and_then(|source| source.epochs);
        let tolerance = if source.facts.exact { 1.0 } else { ESTIMATE };
        // The interleaving may give a source one sequence more than its share.
        let one = source.epochs / source.sequences.max(1.0);
        if limit.is_some_and(|limit| source.epochs > limit * tolerance + one) {
            let epochs: Vec<String> =
                planned.iter().map(|other| format!("{} {:.2}", other.facts.name, other.epochs)).collect();
            let [epochs_key, weight_key] =
                ["epochs", "weight"].map(|field| format!("data.sources.{name}.{field}"));
            return Err(recipe.error(
                &[&epochs_key, &weight_key, "training.steps"],
                format!(
                    "source {name} would be read {:.2} times in {} step{}; the sources are read {} times",
                    source.epochs,
                    thousands(steps),
                    plural(steps),
                    epochs.join(", ")
                ),
                "lower its weight, allow it more epochs, or train fewer steps",
            ));
        }
    }
    Ok(planned)
}
