//! Ranks that shard the optimizer's slots: the same bits on every path, and checkpoints of whole tensors.

use super::launched::{LAUNCHERS, Launcher, metrics, same_bits, signal};
use crate::place::{Place, Run, SOON};
use xrun::results::Status;

const SHARDED: &str = "parallelism.shard=optimizer";
const WHOLE: &str = "parallelism.shard=none";
const RECIPE: [&str; 6] = [
    "tiny.toml",
    "--quiet",
    "training.steps=20",
    "training.global_batch_size=8",
    "training.local_batch_size=2",
    "validation.interval=10",
];

fn trained(launcher: Launcher, world: usize, more: &[&str]) -> (Place, Run) {
    let place = Place::new();
    launcher.trains(&place, world, &[&RECIPE[..], more].concat());
    let run = place.run();
    (place, run)
}

#[test]
fn every_path_gives_the_bits_of_the_whole_optimizer() {
    for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
        let (_kept, whole) = trained(Launcher::Thread, 4, &[dtype]);
        for launcher in LAUNCHERS {
            let (_kept, sharded) = trained(launcher, 4, &[dtype, SHARDED]);
            same_bits(&whole, &sharded, &format!("{launcher:?}, {dtype}"));
            let samples = |run: &Run| run.summary().samples;
            assert!(!samples(&sharded).is_empty());
            assert_eq!(format!("{:?}", samples(&sharded)), format!("{:?}", samples(&whole)), "{launcher:?}");
        }
    }
}

/// Checkpoints have whole tensors, so a run continues however its ranks shard the optimizer.
#[test]
fn a_checkpoint_goes_on_sharded_and_whole() {
    let dtype = "training.dtype=bf16";
    let (_kept, uninterrupted) = trained(Launcher::Thread, 2, &[dtype]);
    for launcher in LAUNCHERS {
        let place = Place::new();
        let keep = ["checkpoint.keep=100", "checkpoint.interval=5", dtype];
        launcher.trains(&place, 2, &[&RECIPE[..], &keep, &[SHARDED]].concat());
        for (step, shard) in [(10, WHOLE), (5, SHARDED), (15, WHOLE)] {
            place.run().forget_after(step);
            launcher.trains(&place, 2, &["resume", place.run().name(), shard]);
            let what = format!("{launcher:?}, {shard} from step {step}");
            same_bits(&uninterrupted, &place.run(), &what);
        }
        assert!(place.run().text("log").contains("changed: parallelism.shard"));
    }
}

#[test]
fn a_sharded_checkpoint_goes_on_with_other_ranks() {
    let (_kept, four) = trained(Launcher::Thread, 4, &[SHARDED]);
    let place = Place::new();
    Launcher::Thread.trains(&place, 4, &[&RECIPE[..], &["checkpoint.keep=100", SHARDED]].concat());
    for (step, world) in [(10, 1), (15, 2)] {
        let run = place.run();
        run.forget_after(step);
        Launcher::Process.trains(&place, world, &["resume", run.name(), "training.local_batch_size=2"]);
    }
    let found = metrics(&place.run());
    for (a, b) in metrics(&four).iter().zip(&found) {
        assert_eq!((a.step, a.tokens_seen), (b.step, b.tokens_seen));
        let apart = ((a.loss - b.loss) / a.loss).abs();
        assert!(apart <= 1e-5, "step {}: {} or {}", a.step, a.loss, b.loss);
    }
    assert_eq!(found.len(), 20);
}

/// Saving after a stop is collective: every process takes part, whichever was told to stop.
#[test]
fn a_signal_saves_what_all_ranks_own() {
    let long = ["tiny.toml", "training.steps=60", "generation.interval=0"];
    let whole = Place::new();
    Launcher::Thread.trains(&whole, 2, &long);
    for launcher in LAUNCHERS {
        let place = Place::new();
        let mut launched = launcher.start(&place, 2, &[&long[..], &[SHARDED]].concat(), &[]);
        launched.trained(&place, 3);
        signal(launched.members[launched.members.len() - 1].id(), "TERM");
        let launched = launched.ends_within(SOON);
        assert!(launched.members.iter().all(|member| member.code == Some(75)), "{}", launched.said());
        assert_eq!(place.run().summary().status, Status::Interrupted);
        launcher.trains(&place, 2, &["resume", place.run().name()]);
        same_bits(&place.run(), &whole.run(), &format!("{launcher:?}"));
    }
}

/// If rank 0 cannot save, no other rank waits forever, and the run continues as with an unsharded optimizer.
#[test]
fn a_save_that_fails_leaves_no_rank_waiting() {
    let place = Place::new();
    let mut launched = Launcher::Process.start(
        &place,
        2,
        &["tiny.toml", "training.steps=80", "checkpoint.interval=40", "generation.interval=0", SHARDED],
        &[],
    );
    let run = launched.trained(&place, 3);
    // Before the first save, replace the folder of checkpoints by a file.
    std::fs::remove_dir_all(run.checkpoints()).unwrap();
    std::fs::write(run.checkpoints(), b"in the way").unwrap();
    let launched = launched.ends_within(3 * SOON);
    assert_eq!(launched.members[0].code, Some(74), "{}", launched.said());
    assert!(launched.said().contains("checkpoint of step 40 not saved"), "{}", launched.said());
    assert_eq!(place.run().summary().status, Status::Unsaved);
    assert_eq!(place.run().rows(), 80);
}
