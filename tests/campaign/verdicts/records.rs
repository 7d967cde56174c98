//! Records of comparisons, judged as `xrun compare` judges them.

use super::{CONFIDENCE, Normals, count, fixed, is_different, least, most, trials};
use crate::runner::long;
use std::collections::BTreeMap;
use xrun::compare::judge::judge;
use xrun::results::experiment::{
    Arm, Budget, Design, Experiment, ExperimentRun, Finding, RegisteredPrediction,
};
use xrun::results::measure::{Measure, MeasureValue};
use xrun::statistics::{Direction, SequentialDecision, SequentialDesign, Verdict, bonferroni, unseen_rate};

/// Makes and judges a comparison. `value` gives the value of a pair's measure in an arm.
fn judged(
    measures: &[&str],
    pairs: usize,
    budgets: [u64; 2],
    mut value: impl FnMut(usize, &str, usize) -> MeasureValue,
) -> Experiment {
    let each = bonferroni(CONFIDENCE, measures.len());
    let finding = |name: &&str| {
        let measure: Measure = name.parse().unwrap();
        let min_effect = measure.default_min_effect();
        Finding::unjudged(measure, min_effect, each)
    };
    let findings: Vec<Finding> = measures.iter().map(finding).collect();
    let mut runs = Vec::new();
    for pair in 0..pairs {
        for arm in 0..2 {
            let values: BTreeMap<String, MeasureValue> = findings
                .iter()
                .map(|one| (one.measure.to_string(), value(pair, &one.measure.to_string(), arm)))
                .collect();
            runs.push(ExperimentRun {
                arm,
                seed: Some(pair as u64),
                status: Some("ok".to_owned()),
                metrics_hash: Some(format!("{pair}-{arm}")),
                values,
                ..ExperimentRun::default()
            });
        }
    }
    let arm = |budget: u64| Arm {
        budget: Some(Budget { steps: budget, tokens: budget, parameters: None, flops: None }),
        ..Arm::default()
    };
    let mut found = Experiment {
        design: Design::Pairs { pairs },
        confidence: CONFIDENCE,
        arms: budgets.map(arm).to_vec(),
        runs,
        findings,
        finished: true,
        ..Experiment::default()
    };
    judge(&mut found);
    found
}

/// One recipe reaches the target after 100 steps on average, however long it may go on.
#[test]
fn unequal_budgets_make_no_difference_in_time() {
    println!("time to a target, one recipe: better, worse of {}", trials());
    for (baseline, candidate) in [(300, 300), (60, 300), (100, 300), (300, 60), (110, 130)] {
        for pairs in [8, 20] {
            let mut normals = Normals::from_seed(baseline + candidate + pairs as u64);
            let (mut better, mut worse) = (0, 0);
            for _ in 0..trials() {
                let found = judged(&["steps_until:val_loss=2"], pairs, [baseline, candidate], |_, _, arm| {
                    let budget = [baseline, candidate][arm] as f64;
                    let time = (100.0 * (0.3 * normals.draw()).exp() / 5.0).ceil() * 5.0;
                    if time <= budget {
                        MeasureValue::Value(time)
                    } else {
                        MeasureValue::NeverReached(budget)
                    }
                });
                better += usize::from(found.verdict() == Verdict::Better);
                worse += usize::from(found.verdict() == Verdict::Worse);
            }
            println!("  budgets of {baseline} and {candidate} steps, {pairs} pairs: {better}, {worse}");
            assert!(better + worse <= most(0.05), "{baseline} {candidate} {pairs}: {better} {worse}");
        }
    }
}

/// A speed and other measures, all alike in both arms: any verdict of a difference is wrong.
#[test]
fn measures_asked_together_share_the_error() {
    println!(
        "measures asked together, one recipe: any better, any worse, either, joint worse, of {}",
        trials()
    );
    let lists: [&[&str]; 4] = [
        &["tok_s", "val_loss"],
        &["tok_s", "val_loss", "train_loss"],
        &["tok_s", "val_loss", "train_loss", "val_loss/a", "val_loss/b", "val_loss/c"],
        &["val_loss", "train_loss", "val_loss/a", "val_loss/b", "val_loss/c"],
    ];
    for list in lists {
        let mut normals = Normals::from_seed(list.len() as u64);
        let mut counts = [0; 4];
        for _ in 0..trials() {
            let found = judged(list, 8, [100, 100], |_, name, _| {
                let noise = normals.draw();
                MeasureValue::Value(if name == "tok_s" { (0.1 * noise).exp() } else { 3.0 + 0.1 * noise })
            });
            let any = |verdict| found.findings.iter().any(|one| one.verdict == verdict);
            let [better, worse] = [any(Verdict::Better), any(Verdict::Worse)];
            let joint = found.joint.as_ref().is_some_and(|joint| joint.verdict == Verdict::Worse);
            for (count, holds) in counts.iter_mut().zip([better, worse, better || worse, joint]) {
                *count += usize::from(holds);
            }
        }
        println!("  {}: {counts:?}", list.join(","));
        assert!(counts[2] <= most(0.05), "{list:?}: {counts:?}");
    }
}

/// A few seeds end far worse with the candidate. Where none of them is drawn, nothing shows it.
#[test]
fn pairs_miss_what_strikes_few_seeds() {
    println!(
        "8 pairs, spikes of 10 deviations: no difference that matters, without a spike drawn, of {}",
        trials()
    );
    for rate in [0.05, 0.1, unseen_rate(8, 0.95)] {
        let mut normals = Normals::from_seed((1000.0 * rate) as u64);
        let (mut shown, mut shown_without, mut without) = (0, 0, 0);
        for _ in 0..trials() {
            let mut spikes = 0;
            // Of deviation 0.002, so that 0.01 matters.
            let found = judged(&["val_loss"], 8, [100, 100], |_, _, arm| {
                let is_spike = arm == 1 && normals.below(100_000) < (100_000.0 * rate) as usize;
                spikes += usize::from(is_spike);
                MeasureValue::Value(3.0 + 0.002 * normals.draw() + if is_spike { 1.0 } else { 0.0 })
            });
            let is_shown = found.verdict() == Verdict::NoDifference;
            shown += usize::from(is_shown);
            without += usize::from(spikes == 0);
            shown_without += usize::from(is_shown && spikes == 0);
        }
        println!("  rate {rate:.3}: {shown}, {shown_without}; none drawn in {without}");
        assert!(without >= least((1.0 - rate).powi(8)) && without <= most((1.0 - rate).powi(8)), "{without}");
        assert!(shown_without * 100 >= shown * 99, "what is shown is shown for seeds without a spike");
    }
}

/// What the refusal of a sequential comparison after a fixed one prevents.
#[test]
fn a_sequential_comparison_after_a_fixed_one_would_err() {
    println!(
        "one recipe: a fixed comparison, then a sequential one of the same pairs, different in either, of {}",
        trials()
    );
    for (first, all, effect) in [(8, 16, 0.9), (8, 24, 0.7), (13, 44, 0.5)] {
        let design = SequentialDesign::new(all, CONFIDENCE).unwrap();
        let mut normals = Normals::from_seed(all as u64);
        let wrong = count(|| {
            let differences: Vec<f64> = (0..all).map(|_| normals.draw()).collect();
            let then = match design.decide(&differences, effect, Direction::HigherIsBetter) {
                SequentialDecision::Stop(stop) => is_different(stop.verdict),
                SequentialDecision::Continue => panic!("the last pair decides"),
            };
            is_different(fixed(&differences[..first], effect)) || then
        });
        println!("  {first} pairs, then at most {all}: {wrong}");
        // Too few comparisons would not show the difference.
        assert!(long().is_none() || wrong > most(0.05), "the refusal is needed: {wrong}");
    }
}

/// A predicted range that holds the true difference is falsified, and one that does not is held, no more
/// often than the interval errs.
#[test]
fn ranges_are_judged_with_the_error_of_the_interval() {
    println!("8 pairs of deviation 0.01, true difference -0.02: held, falsified, open, of {}", trials());
    for (low, high, holds) in [
        (-0.03, -0.01, true),
        (-0.025, -0.015, true),
        (-0.021, -0.019, true),
        (-100.0, 100.0, true),
        (-0.02, 0.0, true),
        (-0.018, 0.0, false),
        (-0.01, 0.01, false),
    ] {
        let mut normals = Normals::from_seed(77);
        let mut counts = [0; 3];
        for _ in 0..trials() {
            let mut found = judged(&["val_loss"], 8, [100, 100], |_, _, arm| {
                MeasureValue::Value(if arm == 0 { 3.0 } else { 2.98 + 0.01 * normals.draw() })
            });
            found.prediction =
                Some(RegisteredPrediction { text: format!("val_loss {low}..{high}"), held: None });
            judge(&mut found);
            counts[match found.prediction.unwrap().held {
                Some(true) => 0,
                Some(false) => 1,
                None => 2,
            }] += 1;
        }
        println!("  {low}..{high}: {counts:?}");
        let wrong = counts[usize::from(holds)];
        assert!(wrong <= most(0.05), "{low}..{high}: {counts:?}");
    }
}
