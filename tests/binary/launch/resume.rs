//! A checkpoint of one number of ranks continues with another.

use super::launched::{LAUNCHERS, Launcher, metrics};
use crate::place::{Place, SOON};

/// Sixty steps with a global batch of eight.
const GLOBAL: [&str; 5] = [
    "training.steps=60",
    "training.global_batch_size=8",
    "training.local_batch_size=2",
    "generation.interval=0",
    "validation.interval=10",
];

#[test]
fn a_checkpoint_goes_on_with_other_ranks() {
    let recipe = [&["tiny.toml", "--quiet"], &GLOBAL[..]].concat();
    let whole = Place::new();
    Launcher::Thread.trains(&whole, 4, &recipe);
    let expected = metrics(&whole.run());
    for launcher in LAUNCHERS {
        for world in [1, 2] {
            let place = Place::new();
            launcher.trains(&place, 4, &[&recipe[..], &["checkpoint.keep=100"]].concat());
            let run = place.run();
            run.forget_after(30);
            launcher.trains(&place, world, &["resume", run.name(), "training.local_batch_size=2"]);
            let found = metrics(&place.run());
            assert_eq!(found.len(), expected.len());
            for (a, b) in expected.iter().zip(&found) {
                // The same tokens in the same order; another batch would give a very different loss.
                assert_eq!((a.step, a.tokens_seen), (b.step, b.tokens_seen));
                let apart = ((a.loss - b.loss) / a.loss).abs();
                assert!(
                    apart <= 1e-5,
                    "{launcher:?}, {world} ranks, step {}: {} or {}",
                    a.step,
                    a.loss,
                    b.loss
                );
            }
            let log = place.run().text("log");
            assert!(log.contains("changed: parallelism.world_size"), "{log}");
        }
    }
}

/// If a job is started once too often, every rank finds at once that nothing is left to do.
#[test]
fn a_finished_run_stays_as_it_is_on_every_path() {
    for launcher in LAUNCHERS {
        let place = Place::new();
        launcher.trains(&place, 2, &["tiny.toml", "--quiet"]);
        let run = place.run();
        let before = run.text("summary.json");
        let launched = launcher.start(&place, 2, &["resume", run.name()], &[]).ends_within(SOON);
        for member in &launched.members {
            assert_eq!(member.code, Some(0), "{launcher:?}: {}", launched.said());
        }
        assert!(launched.said().contains("is finished: all 30 steps are trained"), "{}", launched.said());
        assert_eq!(run.text("summary.json"), before);
    }
}
