//! The planned effect at the planned pairs.

use super::{CONFIDENCE, PLANS, Source, count, fixed, least, most, some, trials};
use xrun::statistics::{
    Deviation, Direction, Looks, POWER, PowerPlan, SequentialDecision, SequentialDesign, Verdict,
    pairs_to_see, pairs_to_show_equivalence,
};

const SOURCES: [Source; 3] = [Source::Normal, Source::Centered("qk_norm"), Source::Centered("lr")];

fn shifted(differences: Vec<f64>, by: f64) -> Vec<f64> {
    differences.into_iter().map(|difference| difference + by).collect()
}

#[test]
fn the_planned_effect_is_found_at_the_planned_pairs() {
    println!("the planned effect, found of 10,000 or less at the planned pairs");
    for &source in some(&SOURCES) {
        for &(effect, pairs) in some(&PLANS) {
            assert_eq!(pairs_to_see(effect, CONFIDENCE, POWER), Some(pairs));
            let mut draw = source.open(2 * pairs as u64);
            let found = count(|| fixed(&shifted(draw(pairs), effect), effect) == Verdict::Better);
            println!("  {source:?}, {effect} deviations, {pairs} pairs: {found}");
            assert!(found >= least(POWER - 0.02), "{source:?} {pairs}: {found}");
            assert!(found < trials() - trials() / 100, "the pairs are not too many: {found}");
        }
    }
}

#[test]
fn a_deviation_from_eight_pilot_pairs_is_enough() {
    println!(
        "the planned effect, found of 10,000 or less where the deviation is the upper 80 % bound from 8 pilot pairs"
    );
    for &source in some(&SOURCES) {
        for &(effect, _) in some(&PLANS) {
            let mut draw = source.open(77);
            let mut planned = Vec::new();
            let found = count(|| {
                let bound = Deviation::from_differences(&draw(8)).unwrap().upper_bound();
                let pairs = pairs_to_see(effect / bound, CONFIDENCE, POWER).unwrap();
                planned.push(pairs as f64);
                fixed(&shifted(draw(pairs), effect), effect) == Verdict::Better
            });
            let mean = xrun::statistics::mean(&planned);
            println!("  {source:?}, {effect} deviations: {found}, {mean:.1} pairs on average");
            assert!(found >= least(POWER - 0.02), "{source:?} {effect}: {found}");
        }
    }
}

#[test]
fn no_difference_is_shown_at_the_planned_pairs() {
    println!(
        "no difference that matters, shown of 10,000 or less at the planned pairs | where the difference is at the limit"
    );
    for &source in some(&SOURCES) {
        for &(effect, _) in some(&PLANS) {
            let pairs = pairs_to_show_equivalence(effect, CONFIDENCE, POWER).unwrap();
            let mut draw = source.open(3 * pairs as u64);
            let shown = count(|| fixed(&draw(pairs), effect) == Verdict::NoDifference);
            // At the limit, each of two one-sided tests errs with half of 0.05.
            let wrong = count(|| fixed(&shifted(draw(pairs), effect), effect) == Verdict::NoDifference);
            println!("  {source:?}, ± {effect} deviations, {pairs} pairs: {shown} | {wrong}");
            assert!(shown >= least(POWER - 0.02), "{source:?} {pairs}: {shown}");
            assert!(wrong <= most(0.04), "{source:?} {pairs}: {wrong}");
        }
    }
}

/// The maximum that a plan with looks asks for, found as often as the plan says, with everything that stops a
/// comparison.
#[test]
fn a_plan_with_looks_finds_what_it_says() {
    println!("sequential, the maximum that the plan asks for: planned effect found, of {}", trials());
    for &source in some(&SOURCES) {
        for &(effect, single) in some(&PLANS) {
            // Its upper 80 % bound is the true deviation, 1.
            let pilot = Deviation { estimate: 1.0 / 1.353_272_9, freedom: 7 };
            let plan = PowerPlan::new(pilot, effect, CONFIDENCE, Some(single), Looks::EveryPair).unwrap();
            let maximum = plan.pairs_to_see.unwrap();
            let given = plan.given.unwrap();
            let found = |pairs: usize| {
                let design = SequentialDesign::new(pairs, CONFIDENCE).unwrap();
                let mut draw = source.open(9 + pairs as u64);
                count(|| {
                    match design.decide(&shifted(draw(pairs), effect), effect, Direction::HigherIsBetter) {
                        SequentialDecision::Stop(stop) => stop.verdict == Verdict::Better,
                        SequentialDecision::Continue => panic!("the last pair decides"),
                    }
                })
            };
            let [planned, at_single] = [found(maximum), found(single)];
            println!(
                "  {source:?}, {effect} deviations: {planned} with at most {maximum} pairs; {at_single} with \
                 {single}, planned {:.3}",
                given.power_to_see
            );
            let slack = if source == Source::Normal { 0.006 } else { 0.03 };
            assert!(planned >= least(POWER - slack), "{source:?} {maximum}: {planned}");
            let stated = given.power_to_see;
            assert!(at_single >= least(stated - slack) && at_single <= most(stated + slack), "{at_single}");
        }
    }
}
