//! A comparison to begin tests with.

use crate::results::comparison::{Comparison, Gate, Side, Verdict};

pub fn comparison() -> Comparison {
    let side = |label: &str| Side {
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
        before: side("a"),
        after: side("engine.fused=false"),
        changes: vec![],
        finished: true,
        turns: vec![],
        ratio: None,
        min_effect: 0.01,
        verdict: Verdict::Inconclusive,
        gate: Gate { tolerance: None, holds: None, found: "not judged".into() },
        contended: vec![],
        notes: vec![],
        rule: String::new(),
    }
}
