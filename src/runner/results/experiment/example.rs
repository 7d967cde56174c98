//! An experiment for the tests of every package.

use super::*;

/// Returns a finished comparison of two arms with these findings and runs.
pub fn experiment(design: Design, findings: Vec<Finding>, runs: Vec<ExperimentRun>) -> Experiment {
    let arm = |label: &str| Arm {
        label: label.to_owned(),
        command: label.to_owned(),
        recipe: Some("r.toml".to_owned()),
        seedless_hash: Some(label.to_owned()),
        device: Some("cpu avx2".to_owned()),
        ..Arm::default()
    };
    Experiment {
        name: "r".to_owned(),
        id: "1".to_owned(),
        design,
        confidence: 0.95,
        arms: vec![arm("a"), arm("b")],
        changes: vec!["optimizer.lr: 1.0 → 2.0".to_owned()],
        runs,
        findings,
        finished: true,
        ..Experiment::default()
    }
}
