//! What every verdict of a comparison must be read with: unequal budgets, several changes at once, fixed
//! seeds, programs and devices that differ, earlier questions, arms that learned nothing, and little text.

use crate::format::{plural, significant, two_digits};
use crate::results::experiment::{ARM_NAMES, Arm, Experiment, Finding, Provenance};
use crate::results::held_out::MAIN_SET;
use crate::results::measure::{Clock, Measure, MeasuredMetric};

/// Budgets that differ by less than this fraction are equal.
const EQUAL: f64 = 0.005;

/// An evaluation over fewer tokens than this says little about other text.
const FEW_TOKENS: u64 = 10_000;

/// Returns the qualifiers, as clauses that follow a verdict after a comma.
pub fn qualifiers(experiment: &Experiment) -> Vec<String> {
    let mut found = Vec::new();
    if !experiment.has_trials() {
        found.extend(budgets(experiment));
    }
    if let Some(count) = experiment.keys_set.filter(|count| *count > 1) {
        found.push(format!("with {count} keys changed at once"));
    }
    if !experiment.fixed_seeds.is_empty() {
        found.push(format!("for {} alone", experiment.fixed_seeds.join(" and ")));
    }
    let Provenance { programs, devices, .. } = &experiment.provenance;
    for (count, what) in [(programs.len(), "programs"), (devices.len(), "kinds of device")] {
        found.extend((count > 1).then(|| format!("by runs of {count} {what}")));
    }
    found.extend(other_clock(experiment));
    if experiment.other_recipes > 0 {
        found.push(format!(
            "asked after {} answer{} about the same change of another recipe",
            experiment.other_recipes,
            plural(experiment.other_recipes)
        ));
    }
    let earlier = experiment.earlier_questions;
    let unnamed = experiment.unnamed_runs;
    if unnamed > 0 {
        let are = if unnamed == 1 { "is" } else { "are" };
        let runs = format!("{unnamed} earlier run{}", plural(unnamed));
        found.push(format!("though {runs} of these arms {are} in no line of the ledger"));
    } else if earlier == 0 && experiment.other_recipes == 0 && experiment.exploratory_reasons().is_empty() {
        found.push("the first answer about this change in this results folder".to_owned());
    }
    if earlier > 0 {
        let share = match experiment.has_trials() {
            true => String::new(),
            false => format!(" and judged at {} %", significant(100.0 * experiment.confidence)),
        };
        found.push(format!(
            "asked after {earlier} other answer{} about this change or a near one{share}",
            plural(earlier)
        ));
    }
    let judged = experiment.findings.iter().filter(|finding| finding.measure != Measure::LossCurves);
    found.extend(judged.clone().filter_map(|finding| guessing(finding, experiment)).next());
    found.extend(trained_on(experiment));
    found.extend(little_text(experiment));
    found
}

/// Returns a clause if tokens until a target are counted in steps of another size: an arm reaches the target
/// at an evaluation, and evaluations come after equally many steps.
fn other_clock(experiment: &Experiment) -> Option<String> {
    let in_tokens =
        |finding: &Finding| matches!(finding.measure, Measure::Until { clock: Clock::Tokens, .. });
    experiment.findings.iter().find(|finding| in_tokens(finding))?;
    let per_step = |arm: &Arm| {
        let budget = arm.budget.filter(|budget| budget.steps > 0)?;
        Some(budget.tokens as f64 / budget.steps as f64)
    };
    let ratio = per_step(experiment.candidate())? / per_step(experiment.baseline())?;
    ((ratio - 1.0).abs() > EQUAL)
        .then(|| format!("evaluated after {} times as many tokens", significant(ratio)))
}

/// Returns how much more the candidate took, such as `at 50 % more tokens and 50 % more FLOPs`.
fn budgets(experiment: &Experiment) -> Option<String> {
    let both = [experiment.baseline(), experiment.candidate()];
    let quantity = |name: &str, of: fn(&Arm) -> Option<f64>| {
        let [a, b] = both.map(of);
        let ratio = b? / a.filter(|a| *a > 0.0)? - 1.0;
        let word = if ratio > 0.0 { "more" } else { "fewer" };
        (ratio.abs() > EQUAL)
            .then(|| format!("{} % {word} {name}", significant((1000.0 * ratio.abs()).round() / 10.0)))
    };
    let parts: Vec<String> = [
        quantity("tokens", |arm| Some(arm.budget?.tokens as f64)),
        quantity("FLOPs", |arm| arm.budget?.flops),
        quantity("parameters", |arm| Some(arm.budget?.parameters? as f64)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let (last, first) = parts.split_last()?;
    let first = first.join(", ");
    Some(if first.is_empty() { format!("at {last}") } else { format!("at {first} and {last}") })
}

/// Returns a clause if arms are no better than a uniform guess.
fn guessing(finding: &Finding, experiment: &Experiment) -> Option<String> {
    let is_loss = matches!(
        finding.measure,
        Measure::Final {
            metric: MeasuredMetric::ValLoss | MeasuredMetric::EmaValLoss | MeasuredMetric::TrainLoss,
            ..
        }
    );
    let guess = experiment.provenance.uniform_loss.filter(|_| is_loss)?;
    let arms = [finding.baseline, finding.candidate];
    let worse: Vec<&str> = ARM_NAMES
        .into_iter()
        .zip(arms)
        .filter(|(_, loss)| loss.is_some_and(|loss| loss >= guess))
        .map(|(name, _)| name)
        .collect();
    let who = match worse.as_slice() {
        [] => return None,
        [one] => format!("the {one} is"),
        _ => "both arms are".to_owned(),
    };
    Some(format!("though {who} no better than a uniform guess ({guess:.4})"))
}

/// Returns a clause if text that a measure is taken on was also trained on.
fn trained_on(experiment: &Experiment) -> Option<String> {
    let held_out = experiment.findings.iter().filter(|finding| finding.measure.metric().is_held_out());
    let held_out = held_out.filter(|finding| finding.withheld.is_none());
    let share = |finding: &Finding| {
        experiment.provenance.in_training.get(finding.measure.set().unwrap_or(MAIN_SET)).copied()
    };
    let largest = held_out.filter_map(share).reduce(f64::max)?;
    Some(format!("though {:.0} % of the held-out text is also trained on", 100.0 * largest))
}

/// Returns a clause if held-out measures rest on little text, with the smallest difference that the pairs can
/// see.
fn little_text(experiment: &Experiment) -> Option<String> {
    let of = |finding: &&Finding| finding.measure.metric().is_held_out();
    let finding = experiment.findings.iter().find(of)?;
    let tokens = *experiment.provenance.evaluated_tokens.get(finding.measure.set().unwrap_or(MAIN_SET))?;
    if tokens >= FEW_TOKENS {
        return None;
    }
    let visible = finding.interval.map(|interval| 0.5 * (interval.high - interval.low));
    let visible = visible.filter(|_| finding.pairs > 1).map_or(String::new(), |half| {
        format!(", on which {} pairs see no mean difference below {}", finding.pairs, two_digits(half))
    });
    // The clause follows the verdicts of all measures.
    let judged = experiment.findings.iter().filter(|finding| finding.measure != Measure::LossCurves);
    let whose = if judged.count() > 1 { format!("{} ", finding.measure) } else { String::new() };
    Some(format!("{whose}on {tokens} held-out tokens alone{visible}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::experiment::example::experiment;
    use crate::results::experiment::{Budget, Design, Standing};

    /// Every qualifier, alone.
    #[test]
    fn what_a_verdict_must_be_read_with_is_said() {
        let finding = || {
            let measure: Measure = "val_loss".parse().unwrap();
            Finding {
                baseline: Some(5.0),
                candidate: Some(4.9),
                ..Finding::unjudged(measure, Some(0.01), 0.95)
            }
        };
        let mut fair = experiment(Design::Pairs { pairs: 4 }, vec![finding()], Vec::new());
        assert_eq!(qualifiers(&fair), ["the first answer about this change in this results folder"]);
        fair.standing = Some(Standing::from_reasons(vec!["its runs are older".to_owned()]));
        assert_eq!(qualifiers(&fair), [] as [String; 0]);
        let with = |change: fn(&mut Experiment)| {
            let mut changed = fair.clone();
            let budget = Budget { steps: 10, tokens: 1000, parameters: Some(100), flops: Some(1e6) };
            changed.arms.iter_mut().for_each(|arm| arm.budget = Some(budget));
            change(&mut changed);
            qualifiers(&changed).join("; ")
        };
        type Change = fn(&mut Experiment);
        let cases: [(Change, &str); 15] = [
            (|e| e.arms[1].budget.as_mut().unwrap().tokens = 1500, "at 50 % more tokens"),
            (|e| e.arms[1].budget.as_mut().unwrap().flops = Some(5e5), "at 50 % fewer FLOPs"),
            (|e| e.arms[1].budget.as_mut().unwrap().parameters = Some(125), "at 25 % more parameters"),
            (
                |e| {
                    let budget = e.arms[1].budget.as_mut().unwrap();
                    (budget.tokens, budget.flops, budget.parameters) = (1100, Some(2e6), Some(150));
                },
                "at 10 % more tokens, 100 % more FLOPs and 50 % more parameters",
            ),
            (|e| e.keys_set = Some(2), "with 2 keys changed at once"),
            (|e| e.provenance.programs = ["a", "b"].map(str::to_owned).into(), "by runs of 2 programs"),
            (|e| e.provenance.devices = ["a", "b"].map(str::to_owned).into(), "by runs of 2 kinds of device"),
            (
                |e| e.fixed_seeds = ["seeds.init = 1", "seeds.order = 7"].map(str::to_owned).into(),
                "for seeds.init = 1 and seeds.order = 7 alone",
            ),
            (|e| e.unnamed_runs = 8, "though 8 earlier runs of these arms are in no line of the ledger"),
            (|e| e.other_recipes = 3, "asked after 3 answers about the same change of another recipe"),
            (
                |e| {
                    e.findings[0].measure = "tokens_until:val_loss=2".parse().unwrap();
                    e.arms[1].budget.as_mut().unwrap().steps = 5;
                },
                "evaluated after 2 times as many tokens",
            ),
            (
                |e| (e.earlier_questions, e.confidence) = (2, 0.975),
                "asked after 2 other answers about this change or a near one and judged at 97.5 %",
            ),
            (
                |e| e.provenance.uniform_loss = Some(4.5),
                "though both arms are no better than a uniform guess (4.5000)",
            ),
            (
                |e| _ = e.provenance.in_training.insert(String::new(), 0.5),
                "though 50 % of the held-out text is also trained on",
            ),
            (
                |e| _ = e.provenance.evaluated_tokens.insert(String::new(), 640),
                "on 640 held-out tokens alone",
            ),
        ];
        for (change, said) in cases {
            assert_eq!(with(change), said);
        }
        let said = with(|e| {
            e.provenance.evaluated_tokens.insert(String::new(), 640);
            e.findings.push(Finding::unjudged("tok_s".parse().unwrap(), Some(0.01), 0.95));
        });
        assert_eq!(said, "val_loss on 640 held-out tokens alone", "it is nothing about the speed");
    }
}
