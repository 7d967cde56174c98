//! Whether the changed side learns what the other one learns: speed with a worse curve is no win.

use crate::recipe::{Change, Class};
use crate::results::MetricsRow;
use crate::results::comparison::Gate;

/// What may lie between two curves that differ by rounding alone, in nats per token, where no tolerance is stated.
const ROUNDING: f64 = 0.01;

/// A step's loss, with the bits that equal curves share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The step.
    pub step: u64,
    /// Training loss in nats per token.
    pub loss: f64,
    bits: (u64, u64),
}

impl Point {
    /// Of a row of `metrics.csv`: loss and norm of the gradient.
    pub fn of(row: &MetricsRow) -> Self {
        let bits = (u64::from(row.loss.to_bits()), u64::from(row.grad_norm.to_bits()));
        Self { step: row.step, loss: f64::from(row.loss), bits }
    }

    /// Of an external command, which tells the loss.
    pub fn new(step: u64, loss: f64) -> Self {
        Self { step, loss, bits: (loss.to_bits(), 0) }
    }
}

/// What a change of side lets expect of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expected {
    /// The same bits.
    Bits,
    /// At any step, losses at most this far apart.
    Within(f64),
    /// Nothing: it is for the user to say what may differ.
    Unknown,
}

impl Expected {
    /// What to expect: a stated tolerance, or what the changed keys promise. `same_program` says that both sides are runs of
    /// one binary, `external` that one of them is no run of xrun at all.
    pub fn of(tolerance: Option<f64>, changes: &[Change], same_program: bool, external: bool) -> Self {
        let class = |class| changes.iter().any(|change| change.class == class);
        match tolerance {
            Some(tolerance) => Self::Within(tolerance),
            None if external || class(Class::Training) => Self::Unknown,
            None if same_program && changes.iter().all(Change::keeps_bits) => Self::Bits,
            None => Self::Within(ROUNDING),
        }
    }

    /// The gate before anything has run.
    pub fn unjudged(self) -> Gate {
        self.gate(None, "not judged yet".to_owned())
    }

    fn gate(self, holds: Option<bool>, found: String) -> Gate {
        let tolerance = match self {
            Self::Within(tolerance) => Some(tolerance),
            Self::Bits | Self::Unknown => None,
        };
        Gate { tolerance, holds, found }
    }

    /// Judges the curves of all turns of both sides. Every curve is held against the first one of `before`.
    pub fn judge(self, before: &[Vec<Point>], after: &[Vec<Point>]) -> Gate {
        let Some(first) = before.first().filter(|curve| !curve.is_empty()) else {
            return self.gate(None, "not judged: the side before tells no loss".to_owned());
        };
        if after.iter().all(Vec::is_empty) {
            return self.gate(None, "not judged: the side after tells no loss".to_owned());
        }
        let all_same = |side: &[Vec<Point>]| side.iter().all(|curve| same_bits(first, curve));
        if all_same(before) && all_same(after) {
            return self.gate(Some(true), format!("the same bits over {} steps", first.len()));
        }
        let Some(worst) = widest_of(first, after) else {
            return self.gate(None, "not judged: the sides have no step in common".to_owned());
        };
        let same_side = widest_of(first, &before[1..]).filter(|apart| farther(apart, &worst));
        let Apart { step, difference, before: old, after: new, steps } = same_side.as_ref().unwrap_or(&worst);
        let (among, sides) = match same_side {
            Some(_) => ("the turns before alone are ", format!("{old:.5} and {new:.5}")),
            None => ("", format!("{old:.5} before, {new:.5} after")),
        };
        let plural = if *steps == 1 { "" } else { "s" };
        let found = format!(
            "{among}at most {difference:.3e} apart over {steps} step{plural}, at step {step}: {sides}"
        );
        match self {
            Self::Bits if all_same(before) => self.gate(Some(false), format!("not the same bits: {}", parting(first, after, &found))),
            Self::Bits => self.gate(
                Some(false),
                format!("not the same bits, not even among the turns before: {found}"),
            ),
            Self::Within(tolerance) => {
                let holds = *difference <= tolerance;
                let verb = if holds { "within" } else { "beyond" };
                self.gate(Some(holds), format!("{found}; {verb} {tolerance}"))
            }
            Self::Unknown => self.gate(
                None,
                format!("{found}; not judged: the change is of what is learnt, so say with --tolerance how far it may"),
            ),
        }
    }
}

fn same_bits(a: &[Point], b: &[Point]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.step == b.step && a.bits == b.bits)
}

/// Where two curves are farthest apart.
struct Apart {
    step: u64,
    difference: f64,
    before: f64,
    after: f64,
    /// How many steps both curves have.
    steps: usize,
}

/// The step, among those that both curves have, at which the losses differ most; a loss that is not finite on one side alone
/// is infinitely far.
fn widest(before: &[Point], after: &[Point]) -> Option<Apart> {
    let known: std::collections::HashMap<u64, f64> = before.iter().map(|p| (p.step, p.loss)).collect();
    let apart = |point: &Point| {
        let old = *known.get(&point.step)?;
        let difference = (point.loss - old).abs();
        let difference = if difference.is_finite() { difference } else { f64::INFINITY };
        Some(Apart { step: point.step, difference, before: old, after: point.loss, steps: 1 })
    };
    // Counts the steps on the way.
    let farthest = |a: Apart, b: Apart| {
        let steps = a.steps + 1;
        Apart { steps, ..if farther(&b, &a) { b } else { a } }
    };
    after.iter().filter_map(apart).reduce(farthest)
}

/// The widest distance of any of the curves.
fn widest_of(first: &[Point], curves: &[Vec<Point>]) -> Option<Apart> {
    let apart = curves.iter().filter_map(|curve| widest(first, curve));
    apart.reduce(|a, b| if farther(&b, &a) { b } else { a })
}

fn farther(a: &Apart, b: &Apart) -> bool {
    a.difference > b.difference
}

/// The first step at which a curve of the side after leaves the reference, in words.
fn parting(first: &[Point], after: &[Vec<Point>], found: &str) -> String {
    let parts = |curve: &Vec<Point>| {
        first.iter().zip(curve).find(|(a, b)| a.step != b.step || a.bits != b.bits).map(|(a, _)| a.step)
    };
    match after.iter().filter_map(parts).min() {
        Some(step) => format!("they part at step {step}; {found}"),
        None => format!("they have different numbers of steps; {found}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(losses: &[f64]) -> Vec<Point> {
        losses.iter().enumerate().map(|(i, loss)| Point::new(i as u64 + 1, *loss)).collect()
    }

    fn change(key: &'static str, class: Class) -> Change {
        Change { key, class, old: "a".into(), new: "b".into() }
    }

    #[test]
    fn keys_say_what_is_expected() {
        let of = |key, class, same| Expected::of(None, &[change(key, class)], same, false);
        assert_eq!(of("engine.placement", Class::Execution, true), Expected::Bits);
        assert_eq!(of("validation.interval", Class::Bookkeeping, true), Expected::Bits);
        assert_eq!(of("engine.fused", Class::Execution, true), Expected::Within(ROUNDING));
        assert_eq!(of("engine.placement", Class::Execution, false), Expected::Within(ROUNDING));
        assert_eq!(of("optimizer.lr", Class::Training, true), Expected::Unknown);
        assert_eq!(Expected::of(None, &[], true, false), Expected::Bits);
        assert_eq!(Expected::of(None, &[], false, true), Expected::Unknown);
        let changes = [change("optimizer.lr", Class::Training)];
        assert_eq!(Expected::of(Some(0.1), &changes, true, false), Expected::Within(0.1));
    }

    #[test]
    fn turns_before_that_part_fail_a_tolerance_too() {
        let (steady, astray) = (curve(&[3.0, 2.0]), curve(&[3.0, 2.6]));
        let gate = Expected::Within(0.5).judge(&[steady.clone(), astray], &[curve(&[3.0, 2.1])]);
        assert_eq!(gate.holds, Some(false));
        let said =
            "the turns before alone are at most 6.000e-1 apart over 2 steps, at step 2: 2.00000 and 2.60000";
        assert!(gate.found.starts_with(said), "{}", gate.found);
        let gate = Expected::Within(0.5).judge(&[steady.clone(), steady], &[curve(&[3.1])]);
        assert_eq!(gate.holds, Some(true));
        assert!(gate.found.contains("over 1 step,"), "what was compared is said: {}", gate.found);
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
        let gate = Expected::Bits.judge(&runs, &runs);
        assert_eq!((gate.holds, gate.found.as_str()), (Some(true), "the same bits over 2 steps"));
        assert_eq!(Expected::Unknown.judge(&runs, &runs).holds, Some(true));
    }

    #[test]
    fn a_curve_that_parts_fails_or_is_within_a_tolerance() {
        let (before, after) = ([curve(&[3.0, 2.0, 1.0])], [curve(&[3.0, 2.004, 1.0])]);
        let gate = Expected::Bits.judge(&before, &after);
        assert_eq!(gate.holds, Some(false));
        assert!(gate.found.contains("part at step 2"), "{}", gate.found);
        assert_eq!(Expected::Within(0.01).judge(&before, &after).holds, Some(true));
        let gate = Expected::Within(0.001).judge(&before, &after);
        assert_eq!(gate.holds, Some(false));
        assert!(gate.found.contains("beyond 0.001"), "{}", gate.found);
        let gate = Expected::Unknown.judge(&before, &after);
        assert_eq!(gate.holds, None);
        assert!(gate.found.contains("--tolerance"), "{}", gate.found);
    }

    #[test]
    fn losses_that_are_no_numbers_fail_and_missing_ones_are_not_judged() {
        let (before, after) = ([curve(&[3.0, 2.0])], [curve(&[3.0, f64::NAN])]);
        assert_eq!(Expected::Within(10.0).judge(&before, &after).holds, Some(false));
        assert_eq!(Expected::Within(10.0).judge(&before, &[vec![]]).holds, None);
        assert_eq!(Expected::Within(10.0).judge(&[vec![]], &before).holds, None);
        let later = [vec![Point::new(9, 1.0)]];
        assert!(Expected::Within(10.0).judge(&before, &later).found.contains("no step in common"));
    }

    #[test]
    fn turns_of_one_side_that_differ_are_no_proof_of_bits() {
        let before = [curve(&[3.0, 2.0]), curve(&[3.0, 2.1])];
        let gate = Expected::Bits.judge(&before, &[curve(&[3.0, 2.0])]);
        assert!(gate.found.contains("not even among the turns before"), "{}", gate.found);
    }
}
