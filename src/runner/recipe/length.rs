//! The number of steps that a budget gives.

use super::batch::BatchSizes;
use super::schema::{MAX_TRAINING_STEPS, Training};
use super::until::{Budget, Until};
use crate::format::{duration, thousands};

/// The steps of a recipe whose budget is not yet turned into steps.
pub(super) const UNKNOWN_STEPS: usize = MAX_TRAINING_STEPS as usize;

/// The next step after a budget that cannot be trained.
pub(super) const HELP: &str =
    "set another training.until, or training.steps; `xrun plan` shows the tokens of a step";

/// The next step after two lengths in one layer.
pub(super) const DISAGREEMENT_HELP: &str =
    "leave one of them out, or set one in a higher layer, such as the command line";

/// Whether the number of steps is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// It is.
    Known,
    /// It follows from the FLOPs of a token, which a plan knows. A number that the recipe names besides is to
    /// be checked then.
    AwaitsPlan,
    /// It follows from the time of a step, which a run measures before its first step.
    AwaitsClock,
    /// The recipe has no valid length.
    Faulty(Fault),
}

/// Why a recipe has no valid length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The budget is too small or too large.
    Budget(String),
    /// One layer sets a budget and another number of steps.
    Disagreement(String),
}

/// Whether the layer that sets a budget sets the number of steps too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedSteps {
    /// It does not.
    No,
    /// It does, as a user may have written it.
    InRecipe,
    /// It does, as a run resolved it.
    InResolved,
}

/// Returns the number of steps of a recipe, or [`UNKNOWN_STEPS`], and whether it is the length. Without
/// `sizes` the batch is invalid, which is reported elsewhere.
pub(super) fn length(training: &Training, named: NamedSteps, sizes: Option<&BatchSizes>) -> (usize, Length) {
    let (Some(until), Some(sizes)) = (&training.until, sizes) else { return (training.steps, Length::Known) };
    match until.budget {
        Budget::Flops(_) if named == NamedSteps::No => (UNKNOWN_STEPS, Length::AwaitsPlan),
        Budget::Flops(_) => (training.steps, Length::AwaitsPlan),
        Budget::Seconds(_) => match named {
            NamedSteps::No => (UNKNOWN_STEPS, Length::AwaitsClock),
            NamedSteps::InResolved => (training.steps, Length::Known),
            NamedSteps::InRecipe => {
                let named = thousands(training.steps);
                let reason = format!(
                    "the length is set twice: training.until = {until}, and training.steps is {named}"
                );
                (training.steps, Length::Faulty(Fault::Disagreement(reason)))
            }
        },
        Budget::Tokens(_) => match steps(until, 1.0, training, sizes) {
            Ok(steps) if named != NamedSteps::No && steps != training.steps => {
                let reason = disagreement(until, steps, training.steps);
                (steps, Length::Faulty(Fault::Disagreement(reason)))
            }
            Ok(steps) => (steps, Length::Known),
            Err(reason) => (training.steps, Length::Faulty(Fault::Budget(reason))),
        },
    }
}

/// Says that a budget and a number of steps in one layer are two lengths.
pub(super) fn disagreement(until: &Until, steps: usize, named: usize) -> String {
    format!(
        "the length is set twice: training.until = {until} takes {} steps, and training.steps is {}",
        thousands(steps),
        thousands(named)
    )
}

/// Returns the smallest number of steps, through the ramp of the batch, that reach the budget. `per_token` is
/// the FLOPs or the seconds of a token; a budget in tokens ignores it.
///
/// # Errors
/// If the budget is less than the first step or takes more steps than a recipe may have: a sentence.
pub(super) fn steps(
    until: &Until,
    per_token: f64,
    training: &Training,
    sizes: &BatchSizes,
) -> Result<usize, String> {
    let tokens = match until.budget {
        Budget::Tokens(tokens) => u128::from(tokens),
        // Far larger numbers saturate, and are too many steps below.
        Budget::Flops(amount) | Budget::Seconds(amount) => (amount / per_token).ceil() as u128,
    };
    let in_step = |sequences: usize| sequences as u128 * training.seq_len as u128;
    let stages = training.batch_ramp.iter().map(|&[end, sequences]| (end, in_step(sequences)));
    let mut stages = stages.chain([(usize::MAX, in_step(sizes.global))]);
    let first = stages.clone().next().map_or(0, |(_, tokens)| tokens);
    if tokens < first {
        let cost = match until.budget {
            Budget::Tokens(_) => String::new(),
            Budget::Flops(_) => format!(" of {per_token:.3e} FLOPs"),
            Budget::Seconds(_) => format!(" and {}", duration(per_token * first as f64)),
        };
        return Err(format!(
            "training.until = {until} is less than one step, which takes {} tokens{cost}",
            thousands(usize::try_from(first).unwrap_or(usize::MAX))
        ));
    }
    let (mut done, mut left) = (0usize, tokens);
    let steps = stages.find_map(|(end, in_step)| {
        let in_stage = u128::from((end - done) as u64) * in_step;
        if left <= in_stage {
            return Some(done as u128 + left.div_ceil(in_step.max(1)));
        }
        (done, left) = (end, left - in_stage);
        None
    });
    steps.and_then(|steps| usize::try_from(steps).ok()).filter(|&steps| steps <= UNKNOWN_STEPS).ok_or_else(
        || {
            format!(
                "training.until = {until} takes more than {} steps, the most that a training may have",
                thousands(UNKNOWN_STEPS)
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Ramp;

    const SIZES: BatchSizes = BatchSizes { local: 4, accumulation: 2, global: 8 };

    fn training(until: &str, ramp: &[[usize; 2]]) -> Training {
        let until = Some(until.parse().expect("a budget"));
        Training { until, seq_len: 16, batch_ramp: ramp.to_vec(), ..Training::default() }
    }

    fn steps_of(text: &str, flops_per_token: f64, ramp: &[[usize; 2]]) -> Result<usize, String> {
        let training = training(text, ramp);
        steps(training.until.as_ref().expect("set"), flops_per_token, &training, &SIZES)
    }

    #[test]
    fn a_budget_takes_the_fewest_steps_that_reach_it() {
        let ramps: [&[[usize; 2]]; 4] = [&[], &[[3, 2]], &[[1, 16], [4, 4], [6, 12]], &[[2, 8]]];
        for ramp in ramps {
            let tokens = |steps: usize| {
                let stages = ramp.iter().map(|&[end, sequences]| (end as u64, sequences as u64));
                16 * Ramp::new(stages).before(steps as u64, 8)
            };
            for budget in tokens(1)..tokens(12) {
                let found = steps_of(&format!("{budget}tokens"), f64::NAN, ramp).expect("enough");
                assert!(tokens(found) >= budget && tokens(found - 1) < budget, "{ramp:?} {budget}: {found}");
                let flops = format!("{}flops", 1000 * budget);
                assert_eq!(steps_of(&flops, 1000.0, ramp), Ok(found), "{ramp:?} {flops}");
            }
            let less = steps_of(&format!("{}tokens", tokens(1) - 1), f64::NAN, ramp).unwrap_err();
            assert!(less.contains("less than one step"), "{less}");
        }
    }

    #[test]
    fn the_largest_budget_has_the_most_steps() {
        assert_eq!(steps_of("12.8Btokens", 1.0, &[]), Ok(UNKNOWN_STEPS));
        for text in ["12800000001tokens", "9e15tokens", "1e30flops"] {
            assert!(steps_of(text, 1.0, &[]).unwrap_err().contains("more than 100,000,000 steps"), "{text}");
        }
    }

    #[test]
    fn a_named_number_of_steps_must_be_that_of_the_budget() {
        let named = |steps, until: &str| {
            let training = Training { steps, ..training(until, &[]) };
            length(&training, NamedSteps::InRecipe, Some(&SIZES))
        };
        assert_eq!(named(3, "300tokens"), (3, Length::Known));
        assert!(matches!(named(4, "300tokens"), (3, Length::Faulty(Fault::Disagreement(_)))));
        assert_eq!(named(4, "1e9flops"), (4, Length::AwaitsPlan));
        assert!(matches!(named(4, "20min"), (4, Length::Faulty(Fault::Disagreement(_)))));
        let training_of_time = Training { steps: 4, ..training("20min", &[]) };
        let measured = length(&training_of_time, NamedSteps::InResolved, Some(&SIZES));
        assert_eq!(measured, (4, Length::Known));
        let free = length(&training("20min", &[]), NamedSteps::No, Some(&SIZES));
        assert_eq!(free, (UNKNOWN_STEPS, Length::AwaitsClock));
        let free = length(&training("1e9flops", &[]), NamedSteps::No, Some(&SIZES));
        assert_eq!(free, (UNKNOWN_STEPS, Length::AwaitsPlan));
    }
}
