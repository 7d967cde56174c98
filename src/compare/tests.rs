//! A comparison for tests.

use crate::results::comparison::{Arm, Average, CompareVerdict, Comparison, LossGate, TrainLoss};

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
