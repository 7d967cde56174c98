//! Turns a budget of time into steps, by timing a few steps of the same program before the run.

use super::job::prepare;
use super::rank::Rank;
use crate::error::Result;
use crate::forecast::Planned;
use crate::format::{duration, plural, thousands};
use crate::machine::Machine;
use crate::policy::Resume;
use crate::recipe::{Budget, Recipe};
use crate::results::quantiles;
use std::sync::Arc;
use std::time::{Duration, Instant};

const UNTIL: &str = "training.until";

/// Steps before the timed ones: the first allocate and touch their memory.
const WARMUP_STEPS: usize = 2;
/// Fewest and most timed steps. Their median stands for a step.
const TIMED_STEPS: std::ops::RangeInclusive<usize> = 5..=200;
/// Share of the budget that the timed steps may take beyond the fewest, and its bounds.
const SHARE: f64 = 0.05;
const SHARE_BOUNDS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// Returns a recipe with the steps that its budget of time gives on this machine; other recipes stay the
/// same. Times whole training steps without a ramp of the batch; evaluations, saves and samples are not
/// timed. Calls `say` with what was measured.
///
/// # Errors
/// If several ranks or `checkpoint.resume` forbid it, if the budget is less than a step or too many, or if a
/// step cannot be trained.
pub fn with_timed_length(recipe: Recipe, machine: &Machine, say: impl Fn(&str)) -> Result<Recipe> {
    let budget = recipe.values().training.until.clone().filter(|_| recipe.awaits_clock());
    let Some((until, Budget::Seconds(seconds))) = budget.map(|until| (until.text, until.budget)) else {
        return Ok(recipe);
    };
    if recipe.world_size() > 1 {
        return Err(recipe.error(
            &[UNTIL, "parallelism.world_size"],
            "a length of time is measured on one rank, and this run has several",
            "set training.steps, or a budget of tokens or FLOPs",
        ));
    }
    if recipe.values().checkpoint.resume != Resume::Never {
        return Err(recipe.error(
            &[UNTIL, "checkpoint.resume"],
            "a run that resumes keeps the steps that were measured when it began",
            "leave checkpoint.resume out, and continue the run with `xrun resume RUN`",
        ));
    }
    let times = time_steps(&recipe, machine, seconds)?;
    let median = quantiles::median(times.iter().copied()).unwrap_or(f64::NAN);
    let batch = recipe.batch()?;
    let tokens_per_step = (batch.global * recipe.values().training.seq_len) as f64;
    let timed = recipe.with_cost_per_token(median / tokens_per_step)?;
    say(&format!(
        "training.until = {until}: {} step{}, because {} steps timed before the run take {} each",
        thousands(timed.values().training.steps),
        plural(timed.values().training.steps),
        times.len(),
        duration(median)
    ));
    Ok(timed)
}

/// Trains a few steps of the full batch and returns the seconds of each after the warm-up. Nothing is kept.
fn time_steps(recipe: &Recipe, machine: &Machine, budget: f64) -> Result<Vec<f64>> {
    let most = WARMUP_STEPS + TIMED_STEPS.end();
    let recipe = recipe.with_overrides(&["training.batch_ramp=[]".to_owned()], machine)?;
    let recipe = recipe.with_number_of_steps(most);
    let (Planned { plan, programs, .. }, dataset) = prepare(&recipe, &machine.clone().with_ranks(1, 1))?;
    let mut rank = Rank::alone(Arc::new(plan), programs, dataset)?;
    for _ in 0..WARMUP_STEPS {
        rank.train_step()?;
    }
    let limit = Duration::from_secs_f64(SHARE * budget).clamp(SHARE_BOUNDS.0, SHARE_BOUNDS.1);
    let began = Instant::now();
    let mut times = Vec::new();
    while times.len() < *TIMED_STEPS.start() || (times.len() < *TIMED_STEPS.end() && began.elapsed() < limit)
    {
        let step = Instant::now();
        rank.train_step()?;
        times.push(step.elapsed().as_secs_f64());
    }
    rank.shutdown()?;
    Ok(times)
}
