//! Tests decisions on planted differences; the simulations test error rates.

use super::*;
use Direction::{HigherIsBetter, LowerIsBetter};

const EFFECT: f64 = 0.01;

fn stop(differences: &[f64], design: &SequentialDesign) -> SequentialStop {
    match design.decide(differences, EFFECT, LowerIsBetter) {
        SequentialDecision::Stop(stop) => stop,
        SequentialDecision::Continue => panic!("goes on after {differences:?}"),
    }
}

/// Makes differences that alternate between `mean` + `deviation` and `mean` - `deviation`.
fn around(mean: f64, deviation: f64, pairs: usize) -> Vec<f64> {
    (0..pairs).map(|k| if k % 2 == 0 { mean + deviation } else { mean - deviation }).collect()
}

#[test]
fn a_large_difference_stops_early_and_a_small_one_goes_on() {
    let design = SequentialDesign::new(20, 0.95).unwrap();
    let large = stop(&around(-0.05, 0.004, 20), &design);
    assert_eq!((large.verdict, large.reason), (Verdict::Better, StopReason::Verdict));
    assert!((5..12).contains(&large.pairs), "{}", large.pairs);
    let mirrored = design.decide(&around(0.05, 0.004, 20), EFFECT, HigherIsBetter);
    let SequentialDecision::Stop(mirrored) = mirrored else { panic!("goes on") };
    assert_eq!((mirrored.verdict, mirrored.pairs), (Verdict::Better, large.pairs));
    assert_eq!(stop(&around(0.05, 0.004, 20), &design).verdict, Verdict::Worse);
    let unclear = around(0.005, 0.012, 20);
    assert_eq!(design.decide(&unclear[..12], EFFECT, LowerIsBetter), SequentialDecision::Continue);
}

#[test]
fn the_first_look_that_stops_decides_for_good() {
    let design = SequentialDesign::new(20, 0.95).unwrap();
    let mut differences = around(-0.05, 0.004, 20);
    let first = stop(&differences, &design);
    assert_eq!(
        design.decide(&differences[..first.pairs - 1], EFFECT, LowerIsBetter),
        SequentialDecision::Continue
    );
    differences[first.pairs..].fill(9.0);
    assert_eq!(stop(&differences, &design), first, "differences after it change nothing");
    assert_eq!(design.decide(&differences[..3], EFFECT, LowerIsBetter), SequentialDecision::Continue);
}

#[test]
fn the_interval_at_a_stop_gives_the_verdict() {
    let design = SequentialDesign::new(20, 0.95).unwrap();
    for differences in [around(-0.05, 0.004, 20), around(0.0, 0.004, 20), around(0.004, 0.03, 20)] {
        let stop = stop(&differences, &design);
        assert_eq!(verdict(&stop.interval, EFFECT, LowerIsBetter), stop.verdict);
        let reach = design.boundary(stop.pairs).unwrap() * stop.deviation / (stop.pairs as f64).sqrt();
        assert!((stop.interval.high - stop.interval.estimate - reach).abs() < 1e-15);
        assert_eq!(design.interval(&differences[..stop.pairs]), Some(stop.interval));
    }
}

#[test]
fn no_difference_and_no_hope_stop_too() {
    let design = SequentialDesign::new(20, 0.95).unwrap();
    let none = stop(&around(0.0, 0.004, 20), &design);
    assert_eq!((none.verdict, none.reason), (Verdict::NoDifference, StopReason::Verdict));
    assert!(none.pairs < 20);
    // With a deviation of ten times the effect, 20 pairs tell nothing.
    let hopeless = stop(&around(0.0, 0.1, 20), &design);
    assert_eq!((hopeless.verdict, hopeless.reason), (Verdict::Inconclusive, StopReason::Futility));
    let unclear = stop(&around(0.005, 0.012, 20), &design);
    assert_eq!((unclear.verdict, unclear.reason), (Verdict::Inconclusive, StopReason::LastPair));
    let same = stop(&[0.0; 4], &design);
    assert_eq!((same.verdict, same.pairs), (Verdict::NoDifference, 4));
}

#[test]
fn differences_that_are_not_finite_decide_nothing() {
    let design = SequentialDesign::new(20, 0.95).unwrap();
    let mut differences = around(-0.05, 0.004, 20);
    differences[2] = f64::NAN;
    assert_eq!(design.decide(&differences, EFFECT, LowerIsBetter), SequentialDecision::Continue);
    assert_eq!(design.interval(&differences), None);
}

#[test]
fn designs_have_limits() {
    assert!(SequentialDesign::new(3, 0.95).is_none() && SequentialDesign::new(2001, 0.95).is_none());
    assert!(SequentialDesign::new(20, 0.7).is_none() && SequentialDesign::new(20, 1.0).is_none());
    assert!(SequentialDesign::new(20, f64::NAN).is_none());
    let design = SequentialDesign::new(4, 0.95).unwrap();
    assert!((design.boundary(4).unwrap() - 3.1824).abs() < 1e-3, "one look is Student's");
    assert_eq!((design.boundary(3), design.boundary(5), design.max_pairs()), (None, None, 4));
}
