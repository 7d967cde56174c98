//! Trains a recipe for a few steps and measures the size of its activations. They are read from the
//! evaluation program, on CPUs and GPUs alike.

use crate::error::{Error, Result};
use crate::forecast::Planned;
use crate::machine::Machine;
use crate::model::{ActivationKind, activations, head_of};
use crate::plan::Plan;
use crate::recipe::Recipe;
use crate::train::{Rank, prepare};
use std::sync::Arc;

/// Maximum number of rows of the batch (tokens) whose activations are read. The mean over this many elements
/// is stable, and for a vocabulary of 50,000, their logits take 0.2 GB.
const ROWS: usize = 1024;

/// The size of one kind of activation after a step.
pub(super) struct Size {
    pub step: usize,
    pub kind: ActivationKind,
    /// Root mean square of the elements.
    pub rms: f64,
    /// Root mean square of the elements' change since the first step.
    pub change_rms: f64,
}

/// What a training showed.
pub(super) struct Measured {
    /// Ordered by step, then by kind.
    pub sizes: Vec<Size>,
    /// Number of rows of the batch that were read.
    pub rows: usize,
    pub plan: Arc<Plan>,
}

/// Sums over the elements of one kind.
#[derive(Clone, Copy, Default)]
struct Sums {
    count: usize,
    squares: f64,
    squared_changes: f64,
}

/// Trains a recipe for `steps` steps, and reads the activations of its first batch before the first step and
/// after each step.
///
/// # Errors
/// The same as for [`prepare`]. Also fails if the recipe has several ranks or loads initial weights, or if
/// training diverges.
pub(super) fn measure(recipe: &Recipe, machine: &Machine, steps: usize) -> Result<Measured> {
    if recipe.values().model.init_from.is_some() {
        return Err(recipe.error(
            &["model.init_from"],
            "coordinates are measured on models with randomly initialized weights",
            "leave out model.init_from",
        ));
    }
    let (Planned { plan, programs, .. }, dataset) = prepare(recipe, &machine.clone().with_ranks(1, 1))?;
    if plan.batch.world_size > 1 {
        return Err(Error::usage("coordinates are measured on one rank; set parallelism.world_size=1"));
    }
    let plan = Arc::new(plan);
    let mut rank = Rank::alone(Arc::clone(&plan), programs, dataset)?;
    let batch = rank.coming_batch()?;
    let (kinds, names): (Vec<ActivationKind>, Vec<String>) = activations(&plan.graph).into_iter().unzip();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let head = head_of(&plan.graph)?;
    // fp32 holds activations exactly.
    let mut initial: Vec<Vec<f32>> = vec![Vec::new(); names.len()];
    let mut sizes = Vec::new();
    for step in 0..=steps {
        if step > 0
            && let Some(bad) = rank.train_step()?.bad
        {
            return Err(Error::failed(format!(
                "step {step} is not finite: {} of {} is {}",
                bad.tensor, bad.op, bad.value
            )));
        }
        let mut sums = vec![Sums::default(); names.len()];
        rank.inspect_batch(&batch, &names, ROWS, |at, mut values| {
            if kinds[at] == ActivationKind::HeadProducts {
                values.iter_mut().for_each(|value| *value = head.logit(*value));
            }
            if step == 0 {
                initial[at] = values.iter().map(|&value| value as f32).collect();
            }
            let change =
                |(&value, &before): (&f64, &f32)| (f64::from(value as f32) - f64::from(before)).powi(2);
            sums[at] = Sums {
                count: values.len(),
                squares: values.iter().map(|value| value * value).sum(),
                squared_changes: values.iter().zip(&initial[at]).map(change).sum(),
            };
        })?;
        let mut seen = Vec::new();
        for &kind in &kinds {
            if seen.contains(&kind) {
                continue;
            }
            seen.push(kind);
            let kind_sums = kinds.iter().zip(&sums).filter(|(other, _)| **other == kind);
            let all = kind_sums.fold(Sums::default(), |all, (_, one)| Sums {
                count: all.count + one.count,
                squares: all.squares + one.squares,
                squared_changes: all.squared_changes + one.squared_changes,
            });
            let rms = |squares: f64| (squares / all.count.max(1) as f64).sqrt();
            sizes.push(Size { step, kind, rms: rms(all.squares), change_rms: rms(all.squared_changes) });
        }
    }
    let rows = plan.batch.rows().min(ROWS);
    Ok(Measured { sizes, rows, plan })
}
