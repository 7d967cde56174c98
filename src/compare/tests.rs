//! A comparison for tests.

use crate::results::comparison::{Arm, Average, CompareVerdict, Comparison, LossGate, TrainLoss};

/// Contention that is planted on one side, on both, on none.
#[test]
fn load_on_one_side_alone_is_a_reason_and_even_load_is_none() {
    use super::conclusion::one_sided_load;
    for (baseline, candidate, side) in [
        (
            &[0.02, 0.03, 0.01][..],
            &[0.82, 0.79, 0.85][..],
            Some("fell on the candidate: it took 82 % of the CPU in its trials and 2 %"),
        ),
        (&[0.40, 0.02, 0.30], &[0.01, 0.02, 0.03], Some("fell on the baseline: it took 24 %")),
        (&[0.80, 0.78], &[0.82, 0.79], None),
        (&[0.05, 0.0], &[0.0, 0.12], None),
        (&[], &[0.9], None),
    ] {
        let found = one_sided_load(baseline, candidate);
        assert_eq!(found.is_some(), side.is_some(), "{found:?}");
        assert!(found.unwrap_or_default().contains(side.unwrap_or_default()));
    }
}

pub fn comparison() -> Comparison {
    let arm = |label: &str| Arm {
        label: label.into(),
        command: label.into(),
        recipe_hash: None,
        commit: None,
        binary: None,
        device: "cpu avx2".into(),
        measured: Default::default(),
    };
    Comparison {
        name: "a".into(),
        id: "20260102T030405Z-0123abcd".into(),
        hypothesis: None,
        predicts: None,
        prediction_held: None,
        baseline: arm("a"),
        candidate: arm("engine.fused=false"),
        changes: vec![],
        finished: true,
        average: Average::Mean,
        trials_planned: None,
        train_loss: TrainLoss::Smoothed,
        trials: vec![],
        ratio: None,
        min_effect: 0.01,
        verdict: CompareVerdict::Inconclusive,
        gate: LossGate { tolerance: None, holds: None, found: "not judged".into() },
        contended: vec![],
        incomparable: vec![],
        notes: vec![],
        rule: String::new(),
    }
}
