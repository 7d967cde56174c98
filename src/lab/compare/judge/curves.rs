//! Compares loss curves: does the candidate learn what the baseline learns? A speedup that changes the curve
//! proves nothing.

use crate::format::{plural, significant};
use crate::recipe::{Change, Class};
use crate::results::MetricsRow;
use crate::results::experiment::{Finding, VerdictBasis};
use crate::results::measure::Measure;
use crate::statistics::Verdict;

/// Default tolerance for curves that differ by rounding alone, in nats per token.
const ROUNDING: f64 = 0.01;

/// The loss at a step, with the bits that identical curves share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossPoint {
    /// The step.
    pub step: u64,
    /// Training loss, in nats per token.
    pub loss: f64,
    bits: (u64, u64),
}

impl LossPoint {
    /// Takes a row of `metrics.csv`, with the bits of its loss and gradient norm.
    pub fn from_row(row: &MetricsRow) -> Self {
        let bits = (u64::from(row.loss.to_bits()), u64::from(row.grad_norm.to_bits()));
        Self { step: row.step, loss: f64::from(row.loss), bits }
    }

    /// Takes a row of an external command, which prints only the loss.
    pub fn new(step: u64, loss: f64) -> Self {
        Self { step, loss, bits: (loss.to_bits(), 0) }
    }
}

/// What is expected of the candidate's curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpectedCurve {
    /// The same bits as the baseline.
    Bits,
    /// At every step, a loss within this distance of the baseline's, in nats per token.
    Within(f64),
    /// Nothing: only the user knows what may differ.
    Unknown,
}

impl ExpectedCurve {
    /// Derives the expectation from the tolerance or, without one, from the classes of the changed keys.
    /// `same_binary`: both arms run one binary. `external`: an arm is an external command.
    pub fn new(tolerance: Option<f64>, changes: &[Change], same_binary: bool, external: bool) -> Self {
        let class = |class| changes.iter().any(|change| change.class == class);
        match tolerance {
            Some(tolerance) => Self::Within(tolerance),
            None if external || class(Class::Training) => Self::Unknown,
            None if same_binary && changes.iter().all(Change::keeps_bits) => Self::Bits,
            None => Self::Within(ROUNDING),
        }
    }

    /// Returns the finding as it is before anything has run.
    pub fn unjudged(self) -> Finding {
        self.finding(Verdict::Inconclusive, "not judged yet")
    }

    /// Makes a finding on the curves, whose `min_effect` is the tolerance.
    pub fn finding(self, verdict: Verdict, because: impl Into<String>) -> Finding {
        let tolerance = match self {
            Self::Within(tolerance) => Some(tolerance),
            Self::Bits | Self::Unknown => None,
        };
        Finding {
            basis: VerdictBasis::Curves,
            verdict,
            because: Some(because.into()),
            ..Finding::unjudged(Measure::LossCurves, tolerance, 1.0)
        }
    }

    /// Judges the curves of all trials. Every curve is compared with the baseline's first.
    pub fn judge(self, baseline: &[Vec<LossPoint>], candidate: &[Vec<LossPoint>]) -> Finding {
        let Some(first) = baseline.first().filter(|curve| !curve.is_empty()) else {
            return self.finding(Verdict::Inconclusive, "the baseline has no losses");
        };
        if candidate.iter().all(Vec::is_empty) {
            return self.finding(Verdict::Inconclusive, "the candidate has no losses");
        }
        let all_same = |arm: &[Vec<LossPoint>]| arm.iter().all(|curve| same_bits(first, curve));
        if all_same(baseline) && all_same(candidate) {
            return self.finding(Verdict::SameBits, format!("the same bits over {} steps", first.len()));
        }
        let Some(worst) = largest_gap_to_any(first, candidate) else {
            return self.finding(Verdict::Inconclusive, "the arms have no step in common");
        };
        let same_arm = largest_gap_to_any(first, &baseline[1..]).filter(|apart| is_larger_gap(apart, &worst));
        let LossGap { step, difference, baseline: old, candidate: new, steps } =
            same_arm.as_ref().unwrap_or(&worst);
        let (among, losses) = match same_arm {
            Some(_) => ("the trials of the baseline alone are ", format!("{old:.5} and {new:.5}")),
            None => ("", format!("{old:.5} of the baseline, {new:.5} of the candidate")),
        };
        let found = format!(
            "{among}at most {} apart over {steps} step{}, at step {step}: {losses}",
            significant(*difference),
            plural(*steps)
        );
        let (verdict, because) = match self {
            Self::Bits if all_same(baseline) => {
                let because = format!("not the same bits: {}", first_difference(first, candidate, &found));
                (Verdict::Different, because)
            }
            Self::Bits => {
                let because =
                    format!("not the same bits, not even among the trials of the baseline: {found}");
                (Verdict::Different, because)
            }
            Self::Within(tolerance) if *difference <= tolerance => {
                (Verdict::NoDifference, format!("{found}; within {tolerance}"))
            }
            Self::Within(tolerance) => (Verdict::Different, format!("{found}; beyond {tolerance}")),
            Self::Unknown => (
                Verdict::Inconclusive,
                format!(
                    "{found}; training keys changed, so state with --tolerance how far losses may differ"
                ),
            ),
        };
        self.finding(verdict, because)
    }
}

fn same_bits(a: &[LossPoint], b: &[LossPoint]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.step == b.step && a.bits == b.bits)
}

/// Where two curves differ most.
#[derive(Clone, Copy, Debug)]
pub struct LossGap {
    /// The step.
    pub step: u64,
    /// How far the losses are apart there, in nats per token.
    pub difference: f64,
    /// The baseline's loss.
    pub baseline: f64,
    /// The candidate's loss.
    pub candidate: f64,
    /// Number of steps that both curves have.
    pub steps: usize,
}

/// Returns the largest difference over the steps that both curves have, or `None` if they share no step. A
/// loss that is not finite in only one of them counts as infinitely far.
pub fn largest_gap(baseline: &[LossPoint], candidate: &[LossPoint]) -> Option<LossGap> {
    let known: std::collections::HashMap<u64, f64> = baseline.iter().map(|p| (p.step, p.loss)).collect();
    let apart = |point: &LossPoint| {
        let old = *known.get(&point.step)?;
        let difference = (point.loss - old).abs();
        let difference = if difference.is_finite() { difference } else { f64::INFINITY };
        Some(LossGap { step: point.step, difference, baseline: old, candidate: point.loss, steps: 1 })
    };
    // Counts the steps as it folds.
    let farthest = |a: LossGap, b: LossGap| {
        let steps = a.steps + 1;
        LossGap { steps, ..if is_larger_gap(&b, &a) { b } else { a } }
    };
    candidate.iter().filter_map(apart).reduce(farthest)
}

/// Returns the largest difference between the first curve and any of the others.
fn largest_gap_to_any(first: &[LossPoint], curves: &[Vec<LossPoint>]) -> Option<LossGap> {
    let apart = curves.iter().filter_map(|curve| largest_gap(first, curve));
    apart.reduce(|a, b| if is_larger_gap(&b, &a) { b } else { a })
}

fn is_larger_gap(a: &LossGap, b: &LossGap) -> bool {
    a.difference > b.difference
}

/// Describes the first step at which a candidate's curve differs from the reference.
fn first_difference(first: &[LossPoint], candidate: &[Vec<LossPoint>], found: &str) -> String {
    let differs = |curve: &Vec<LossPoint>| {
        first.iter().zip(curve).find(|(a, b)| a.step != b.step || a.bits != b.bits).map(|(a, _)| a.step)
    };
    match candidate.iter().filter_map(differs).min() {
        Some(step) => format!("they differ from step {step} on; {found}"),
        None => format!("they have different numbers of steps; {found}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(losses: &[f64]) -> Vec<LossPoint> {
        losses.iter().enumerate().map(|(i, loss)| LossPoint::new(i as u64 + 1, *loss)).collect()
    }

    fn found(finding: &Finding) -> &str {
        finding.because.as_deref().unwrap_or_default()
    }

    fn change(key: &'static str, class: Class) -> Change {
        Change { key, class, old: "a".into(), new: "b".into() }
    }

    #[test]
    fn keys_say_what_is_expected() {
        let of = |key, class, same| ExpectedCurve::new(None, &[change(key, class)], same, false);
        assert_eq!(of("engine.placement", Class::Execution, true), ExpectedCurve::Bits);
        assert_eq!(of("validation.interval", Class::Bookkeeping, true), ExpectedCurve::Bits);
        assert_eq!(of("engine.fused", Class::Execution, true), ExpectedCurve::Within(ROUNDING));
        assert_eq!(of("engine.placement", Class::Execution, false), ExpectedCurve::Within(ROUNDING));
        assert_eq!(of("optimizer.lr", Class::Training, true), ExpectedCurve::Unknown);
        assert_eq!(ExpectedCurve::new(None, &[], true, false), ExpectedCurve::Bits);
        assert_eq!(ExpectedCurve::new(None, &[], false, true), ExpectedCurve::Unknown);
        let changes = [change("optimizer.lr", Class::Training)];
        assert_eq!(ExpectedCurve::new(Some(0.1), &changes, true, false), ExpectedCurve::Within(0.1));
    }

    #[test]
    fn trials_of_the_baseline_that_differ_fail_a_tolerance_too() {
        let (steady, astray) = (curve(&[3.0, 2.0]), curve(&[3.0, 2.6]));
        let gate = ExpectedCurve::Within(0.5).judge(&[steady.clone(), astray], &[curve(&[3.0, 2.1])]);
        assert_eq!(gate.holds(), Some(false));
        let said = "the trials of the baseline alone are at most 0.6 apart over 2 steps, \
                    at step 2: 2.00000 and 2.60000";
        assert!(found(&gate).starts_with(said), "{}", found(&gate));
        let gate = ExpectedCurve::Within(0.5).judge(&[steady.clone(), steady], &[curve(&[3.1])]);
        assert_eq!(gate.holds(), Some(true));
        assert!(found(&gate).contains("over 1 step,"), "what was compared is said: {}", found(&gate));
    }

    /// Callers print an outcome before the reason, as in `open: …` or `could not be judged: …`.
    #[test]
    fn what_is_not_judged_says_so_once() {
        let gate = ExpectedCurve::Unknown.judge(&[curve(&[3.0])], &[curve(&[2.7348])]);
        assert!(found(&gate).starts_with("at most 0.2652 apart over 1 step, "), "{}", found(&gate));
        assert!(found(&gate).contains("; training keys changed") && !found(&gate).contains("judged"));
        let gate = ExpectedCurve::Unknown.judge(&[curve(&[])], &[curve(&[1.0])]);
        assert_eq!((gate.holds(), found(&gate)), (None, "the baseline has no losses"));
    }

    #[test]
    fn every_key_that_promises_bits_is_an_execution_key() {
        for key in crate::recipe::KEYS.iter().filter(|key| key.same_bits) {
            assert_eq!(key.class, Class::Execution, "{}", key.path);
        }
    }

    #[test]
    fn equal_curves_are_the_same_bits() {
        let runs = [curve(&[3.0, 2.0]), curve(&[3.0, 2.0])];
        let gate = ExpectedCurve::Bits.judge(&runs, &runs);
        assert_eq!((gate.holds(), found(&gate)), (Some(true), "the same bits over 2 steps"));
        assert_eq!(ExpectedCurve::Unknown.judge(&runs, &runs).holds(), Some(true));
    }

    #[test]
    fn a_curve_that_differs_fails_or_is_within_a_tolerance() {
        let (before, after) = ([curve(&[3.0, 2.0, 1.0])], [curve(&[3.0, 2.004, 1.0])]);
        let gate = ExpectedCurve::Bits.judge(&before, &after);
        assert_eq!(gate.holds(), Some(false));
        assert!(found(&gate).contains("differ from step 2"), "{}", found(&gate));
        assert_eq!(ExpectedCurve::Within(0.01).judge(&before, &after).holds(), Some(true));
        let gate = ExpectedCurve::Within(0.001).judge(&before, &after);
        assert_eq!(gate.holds(), Some(false));
        assert!(found(&gate).contains("beyond 0.001"), "{}", found(&gate));
        let gate = ExpectedCurve::Unknown.judge(&before, &after);
        assert_eq!(gate.holds(), None);
        assert!(found(&gate).contains("--tolerance"), "{}", found(&gate));
    }

    #[test]
    fn non_finite_losses_fail_and_missing_ones_are_not_judged() {
        let (before, after) = ([curve(&[3.0, 2.0])], [curve(&[3.0, f64::NAN])]);
        assert_eq!(ExpectedCurve::Within(10.0).judge(&before, &after).holds(), Some(false));
        assert_eq!(ExpectedCurve::Within(10.0).judge(&before, &[vec![]]).holds(), None);
        assert_eq!(ExpectedCurve::Within(10.0).judge(&[vec![]], &before).holds(), None);
        let later = [vec![LossPoint::new(9, 1.0)]];
        assert!(found(&ExpectedCurve::Within(10.0).judge(&before, &later)).contains("no step in common"));
    }

    #[test]
    fn trials_of_one_arm_that_differ_do_not_prove_same_bits() {
        let before = [curve(&[3.0, 2.0]), curve(&[3.0, 2.1])];
        let gate = ExpectedCurve::Bits.judge(&before, &[curve(&[3.0, 2.0])]);
        assert!(found(&gate).contains("not even among the trials of the baseline"), "{}", found(&gate));
    }
}
