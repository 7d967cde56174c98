//! A thing compared with itself.

use super::{CONFIDENCE, PLANS, Source, count, fixed, is_different, most, some, trials};
use xrun::statistics::{Direction, SequentialDecision, SequentialDesign, Verdict};

const SAME: [Source; 5] = [
    Source::Normal,
    Source::Disjoint,
    Source::Centered("arithmetic_bf16"),
    Source::Centered("qk_norm"),
    Source::Centered("lr"),
];

/// The error that is asked for is 0.05. Pools of 64 and 128 real differences are not normal, and one is drawn
/// more than once: the page says how often they err.
fn largest_error(source: Source) -> f64 {
    if source == Source::Normal { 0.05 } else { 0.065 }
}

/// Where any difference matters, which is the strictest: a smallest one that matters only makes more of *no
/// difference*.
#[test]
fn a_thing_is_seldom_different_from_itself() {
    println!("A/A, different of {} at a fixed number of pairs, any difference matters", trials());
    for &source in some(&SAME) {
        let counts = [8, 13, 44].map(|pairs| {
            let mut draw = source.open(pairs as u64);
            count(|| is_different(fixed(&draw(pairs), 0.0)))
        });
        println!("  {source:?}: {counts:?} at 8, 13, 44 pairs");
        let largest = most(largest_error(source));
        assert!(counts.into_iter().all(|wrong| wrong <= largest), "{source:?}: {counts:?}");
        assert!(counts.into_iter().all(|wrong| wrong >= trials() / 70), "it sees something: {counts:?}");
    }
}

#[test]
fn looking_after_every_pair_does_not_change_that() {
    println!("A/A, different of {} with a look after every pair", trials());
    for &source in some(&SAME) {
        for &(effect, pairs) in some(&PLANS) {
            let design = SequentialDesign::new(pairs, CONFIDENCE).unwrap();
            let mut draw = source.open(pairs as u64 + 1);
            let wrong = count(|| match design.decide(&draw(pairs), effect, Direction::HigherIsBetter) {
                SequentialDecision::Stop(stop) => is_different(stop.verdict),
                SequentialDecision::Continue => panic!("the last pair decides"),
            });
            println!("  {source:?}, at most {pairs}: {wrong}");
            assert!(wrong <= most(largest_error(source)), "{source:?} {pairs}: {wrong}");
        }
    }
}

/// Whatever else stops a comparison, the intervals of all its looks contain 0. The boundary is exact for
/// normal differences.
#[test]
fn the_intervals_of_all_looks_hold_together() {
    println!("A/A, any look of a comparison excludes 0, of {}", trials());
    for &source in some(&SAME) {
        for &(_, pairs) in some(&PLANS) {
            let design = SequentialDesign::new(pairs, CONFIDENCE).unwrap();
            let mut draw = source.open(pairs as u64 + 2);
            let wrong = count(|| {
                let differences = draw(pairs);
                let mut looks = (4..=pairs).filter_map(|n| design.interval(&differences[..n]));
                looks.any(|look| look.excludes_zero())
            });
            println!("  {source:?}, {pairs} pairs: {wrong}");
            assert!(wrong <= most(largest_error(source)), "{source:?} {pairs}: {wrong}");
            assert!(wrong > trials() / 40, "{source:?} {pairs}: {wrong}");
        }
    }
}

/// What a plain interval does that is looked at after every pair: this is what the boundary is for.
#[test]
fn a_plain_interval_looked_at_again_and_again_errs() {
    let mut draw = Source::Normal.open(5);
    let wrong = count(|| {
        let differences = draw(44);
        (4..=44).any(|n| is_different(fixed(&differences[..n], 0.0)))
    });
    println!("A/A, a plain interval after every pair of 44: {wrong} of {} different", trials());
    assert!(wrong > trials() / 5, "{wrong}");
}

/// Other arithmetic as it is: in fp32 most losses agree to the last digit and the others to the sixth, in
/// bf16 to the third. The smallest difference that matters, by default a hundredth of a nat, decides what
/// that is called. Where any difference matters, a pool whose mean is not 0 is found different from 0, and
/// rightly so: those counts are printed alone.
#[test]
fn other_arithmetic_makes_no_difference_that_matters() {
    println!(
        "A/A, other arithmetic as it is: no difference of {} where 0.01 nats matter | different where any do",
        trials()
    );
    for set in ["arithmetic", "arithmetic_bf16"] {
        for pairs in [4, 8, 44] {
            let mut draw = Source::Real(set).open(pairs as u64);
            let shown = count(|| fixed(&draw(pairs), 0.01) == Verdict::NoDifference);
            let different = count(|| is_different(fixed(&draw(pairs), 0.0)));
            println!("  {set}, {pairs} pairs: {shown} | {different}");
            assert_eq!(shown, trials());
        }
    }
}
