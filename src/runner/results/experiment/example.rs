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
        hypothesis: None,
        prediction: None,
        intent: Intent::Exploratory,
        confirms: None,
        design,
        confidence: 0.95,
        rule: String::new(),
        arms: vec![arm("a"), arm("b")],
        average: Average::Mean,
        train_loss: TrainLoss::Smoothed,
        changes: vec!["optimizer.lr: 1.0 → 2.0".to_owned()],
        shared_randomness: None,
        history: Vec::new(),
        provenance: Provenance::default(),
        plan: None,
        pilot: Vec::new(),
        runs,
        findings,
        joint: None,
        diverged: None,
        contended: Vec::new(),
        incomparable: Vec::new(),
        notes: Vec::new(),
        finished: true,
    }
}
