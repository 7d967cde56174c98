//! A thing compared with itself.

use super::super::{Direction, QualityVerdict, SequentialDecision, SequentialDesign};
use super::{CONFIDENCE, MOST_WRONG, PLANS, Source, TRIALS, count, fixed, is_different};

const SAME: [Source; 5] = [
    Source::Normal,
    Source::Disjoint,
    Source::Centered("arithmetic_bf16"),
    Source::Centered("qk_norm"),
    Source::Centered("lr"),
];

/// Where any difference matters, which is the strictest: a smallest one that matters only makes more of *no
/// difference*.
#[test]
fn a_thing_is_seldom_different_from_itself() {
    println!("A/A, different of 400 at a fixed number of pairs, any difference matters");
    for source in SAME {
        let counts = [8, 13, 44].map(|pairs| {
            let mut draw = source.open(pairs as u64);
            count(|| is_different(fixed(&draw(pairs), 0.0)))
        });
        println!("  {source:?}: {counts:?} at 8, 13, 44 pairs");
        assert!(counts.into_iter().all(|wrong| wrong <= MOST_WRONG), "{source:?}: {counts:?}");
        assert!(counts.into_iter().all(|wrong| wrong >= 6), "a rule that never sees anything: {counts:?}");
    }
}

/// With looks after every pair: as decided, and where any of the looks excludes 0, whatever else would have
/// stopped before.
#[test]
fn looking_after_every_pair_does_not_change_that() {
    println!("A/A, different of 400 with a look after every pair: as decided | at any look");
    for source in SAME {
        for (effect, pairs) in PLANS {
            let design = SequentialDesign::new(pairs, CONFIDENCE).unwrap();
            let mut draw = source.open(pairs as u64 + 1);
            let mut crossed = 0;
            let decided = count(|| {
                let differences = draw(pairs);
                let mut looks = (4..=pairs).filter_map(|n| design.interval(&differences[..n]));
                crossed += usize::from(looks.any(|look| look.excludes_zero()));
                match design.decide(&differences, effect, Direction::HigherIsBetter) {
                    SequentialDecision::Stop(stop) => is_different(stop.verdict),
                    SequentialDecision::Continue => panic!("the last pair decides"),
                }
            });
            println!("  {source:?}, at most {pairs}: {decided} | {crossed}");
            assert!(
                decided <= MOST_WRONG && crossed <= MOST_WRONG,
                "{source:?} {pairs}: {decided} {crossed}"
            );
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
    println!("A/A, a plain interval after every pair of 44: {wrong} of 400 different");
    assert!(wrong > 80, "{wrong}");
}

/// Other arithmetic as it is: in fp32 most losses agree to the last digit and the others to the sixth, in
/// bf16 to the third. The smallest difference that matters, by default a hundredth of a nat, decides what
/// that is called.
#[test]
fn other_arithmetic_makes_no_difference_that_matters() {
    for set in ["arithmetic", "arithmetic_bf16"] {
        for pairs in [4, 8, 44] {
            let mut draw = Source::Real(set).open(pairs as u64);
            let shown = count(|| fixed(&draw(pairs), 0.01) == QualityVerdict::NoDifference);
            println!(
                "A/A, {set} as it is, {pairs} pairs, 0.01 nats matter: {shown} of 400 no difference that matters"
            );
            assert_eq!(shown, TRIALS);
        }
    }
}
