//! Cells drawn from ranges, and cells with several seeds.

use super::grid::{finals, lines, place, table};

#[test]
fn samples_are_the_same_again_and_share_their_rows() {
    let ranges = "[sweep]\nlog_range = { \"optimizer.lr\" = [1e-4, 1e-2] }\n\
                  range = { \"lr_scheduler.warmup_steps\" = [0, 3] }\nsamples = 8\n";
    let place = place(ranges);
    let dry = place.xrun(&["sweep", "grid.toml", "--dry-run"]).succeeds();
    assert_eq!(dry.stdout.matches("to run").count(), 8, "{}", dry.stdout);
    place.xrun(&["sweep", "grid.toml", "training.steps=8"]).succeeds().says(&["8 of 8 cells done: 8 ok"]);
    let rates: Vec<String> = table(&place, 8).iter().map(|row| row["optimizer.lr"].clone()).collect();
    let numbers: Vec<f64> = rates.iter().map(|rate| rate.parse().unwrap()).collect();
    assert!(numbers.iter().all(|rate| (1e-4..=1e-2).contains(rate)), "{rates:?}");
    // Four in each of the two decades.
    assert_eq!(numbers.iter().filter(|&&rate| rate < 1e-3).count(), 4, "{rates:?}");
    // A larger number of samples begins with these.
    let more = ["sweep", "grid.toml", "training.steps=8", "sweep.samples=10"];
    place.xrun(&more).succeeds().says(&["10 cells, 8 done, 2 to run"]);
    // Whole numbers repeat.
    let few = ["sweep", "grid.toml", "optimizer.lr=1e-3", "training.steps=8"];
    place.xrun(&few).succeeds().says(&["8 samples are 4 different points", "4 of 4 cells done"]);
}

#[test]
fn wrong_samples_are_refused_with_their_place() {
    let place = place("[sweep]\nlog_range = { \"optimizer.lr\" = [1e-2, 1e-4] }\nsamples = 8\n");
    let refused = |arguments: &[&str], says: &[&str]| {
        place.xrun(&[&["sweep", "grid.toml"][..], arguments].concat()).ended(2).says(says);
    };
    refused(&[], &["grid.toml:", "write [0.0001, 0.01]", "^"]);
    refused(&["sweep.log_range={\"optimizer.lr\"=[0.0,1.0]}"], &["command line:1", "^"]);
    place.write("grid.toml", b"[sweep]\nsamples = 8\n");
    refused(&[], &["grid.toml:2", "8 samples but no range"]);
    refused(&["sweep.samples=0", "sweep.range={\"optimizer.lr\"=[0.1,1.0]}"], &["no sample is drawn"]);
    assert!(!place.path().join("results").exists());
}

#[test]
fn every_cell_is_run_with_every_seed() {
    let place = place("[sweep]\nseeds = 3\ngrid = { \"optimizer.lr\" = [1e-3, 3e-3] }\n");
    place.xrun(&["sweep", "grid.toml", "training.seed=5"]).succeeds().says(&["6 of 6 cells done: 6 ok"]);
    let seeds: Vec<String> = table(&place, 6).iter().map(|row| row["training.seed"].clone()).collect();
    assert_eq!(seeds, ["5", "6", "7", "5", "6", "7"]);
    let finals = finals(&lines(&place));
    let losses: std::collections::BTreeSet<String> =
        finals.values().map(|rows| rows[0].measured.get("val_loss").unwrap().to_string()).collect();
    assert_eq!(losses.len(), 6, "every seed and rate has a loss of its own");
    place.xrun(&["sweep", "grid.toml", "training.seed=5,6"]).ended(2).says(&["sweep.seeds = 3 sets it too"]);
}
