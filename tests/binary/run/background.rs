//! Checkpoints written in the background: the bits are the same, and nothing is reported as saved before it
//! is.

use crate::place::{Done, Place, Run, UNINTERRUPTED};
use std::process::{Command, Stdio};
use std::time::Duration;
use xrun::checkpoint::{at_step, first_difference, steps};
use xrun::results::rows::{MetricsRow, Phase, TimingRow, read};

/// Runs the recipe here with a fault, to its end; the panic of a thread must not end the run.
fn with_fault(place: &Place, fault: &str, more: &[&str]) -> Done {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xrun"));
    command.arg("tiny.toml").args(more).current_dir(place.path()).env_clear().env("XRUN_FAULT", fault);
    Done::new(command.stdin(Stdio::null()).output().unwrap())
}

fn phases(run: &Run, phase: Phase) -> Vec<u64> {
    let rows: Vec<TimingRow> = read(&run.path.join("timing.csv")).unwrap();
    rows.iter().filter(|row| row.phase == phase).map(|row| row.step).collect()
}

/// Asserts that every checkpoint of one run has the same bits as the other's.
fn same_checkpoints(a: &Run, b: &Run) {
    let all = steps(&a.checkpoints()).unwrap();
    assert_eq!(all, steps(&b.checkpoints()).unwrap());
    assert_eq!(all, [5, 10, 15, 20, 25, 30]);
    for step in all {
        let of = |run: &Run| at_step(&run.checkpoints(), step).unwrap();
        assert_eq!(first_difference(&of(a), &of(b)).unwrap(), None, "step {step}");
    }
}

#[test]
fn every_checkpoint_has_the_bits_of_one_that_training_waited_for() {
    let sharded = ["parallelism.world_size=2", "parallelism.shard=optimizer"];
    let averaged = ["ema.decay=0.9", "training.dtype=bf16"];
    for keys in [&[][..], &sharded, &averaged] {
        let runs = ["always", "never"].map(|background| {
            let place = Place::new();
            let background = format!("checkpoint.background={background}");
            place.xrun(&[&["tiny.toml", "checkpoint.keep=10", &background], keys].concat()).succeeds();
            place
        });
        let [beside, waited] = [runs[0].run(), runs[1].run()];
        same_checkpoints(&beside, &waited);
        assert_eq!(beside.text("metrics.csv"), waited.text("metrics.csv"));
        assert_eq!(phases(&beside, Phase::Snapshot), [5, 10, 15, 20, 25]);
        assert_eq!(phases(&beside, Phase::Save), [30], "the last one has nothing beside it");
        assert_eq!(phases(&waited, Phase::Save), [5, 10, 15, 20, 25, 30]);
        let rows: Vec<TimingRow> = read(&waited.path.join("timing.csv")).unwrap();
        assert!(rows.iter().all(|row| row.written_step.is_none()));
        // The step after a copy was taken has the write beside it.
        let rows: Vec<TimingRow> = read(&beside.path.join("timing.csv")).unwrap();
        let written =
            |step| rows.iter().find(|row| row.step == step && row.tok_s.is_some()).unwrap().written_step;
        for saved in [5, 10, 15, 20, 25] {
            assert_eq!(written(saved + 1), Some(saved));
        }
        assert!((1..=5).all(|step| written(step).is_none()), "nothing was saved before");
    }
}

#[test]
fn a_kill_during_a_write_loses_nothing_that_was_said_to_be_saved() {
    let place = Place::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_xrun"));
    command.arg("tiny.toml").current_dir(place.path()).env_clear().env("XRUN_FAULT", "write-hang 0 15");
    let mut running =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The write of step 15 does not end, and the save of step 20 waits for it.
    while place.runs().first().is_none_or(|run| run.rows() < 20) {
        assert!(running.try_wait().unwrap().is_none(), "it ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    running.kill().unwrap();
    running.wait().unwrap();
    let run = place.run();
    assert_eq!(run.newest().meta().step, 10);
    let log = run.text("log");
    assert!(log.contains("saved after step 10: ") && !log.contains("saved after step 15"), "{log}");
    place.xrun(&["resume"]).succeeds().says(&["resuming from step 10", "steps 11 to 20"]);
    run.ended_as_uninterrupted();
}

#[test]
fn a_write_that_is_lost_is_told_and_the_run_goes_on() {
    let place = Place::new();
    let done = with_fault(&place, "write-panic 0 10", &[]).succeeds();
    let lost = "checkpoint of step 10 not saved, earlier ones are untouched: its thread panicked: injected by XRUN_FAULT";
    let done = done.says(&[&format!("warning: {lost}")]);
    let run = place.run();
    assert_eq!(run.summary().notes, [lost]);
    assert!(!run.text("log").contains("saved after step 10"), "{}", done.stderr);
    assert_eq!(first_difference(&run.newest(), &UNINTERRUPTED.run().newest()).unwrap(), None);
}

#[test]
fn a_write_that_hangs_ends_the_run_by_its_watchdog() {
    let place = Place::new();
    let two = ["parallelism.world_size=2", "parallelism.timeout_s=2"];
    let done = with_fault(&place, "write-hang 0 10", &two).ended(1);
    done.says(&["no sign of rank 0", "writes results"]);
    let run = place.run();
    assert_eq!(run.newest().meta().step, 5);
    place.xrun(&["resume", run.name(), "parallelism.timeout_s=600"]).succeeds();
    assert_eq!(place.run().newest().meta().step, 30);
}

#[test]
fn weights_alone_are_sampled_exported_and_not_resumed() {
    let place = Place::new();
    let keys = ["tiny.toml", "checkpoint.interval=10", "checkpoint.steps=[7, 20]", "checkpoint.keep=5"];
    place.xrun(&[&keys[..], &["checkpoint.weights_only=kept", "ema.decay=0.9"]].concat()).succeeds();
    let run = place.run();
    let alone = |step| at_step(&run.checkpoints(), step).unwrap().is_weights_only();
    assert_eq!(steps(&run.checkpoints()).unwrap(), [7, 10, 20, 30]);
    assert_eq!(
        [7, 10, 20, 30].map(alone),
        [true, false, false, false],
        "a resume may need those of the interval"
    );
    place.xrun(&["sample", run.name(), "--checkpoint", "7"]).succeeds();
    place.xrun(&["export", run.name(), "--checkpoint", "7", "--to", "weights"]).succeeds();
    place
        .xrun(&["export", run.name(), "--checkpoint", "7", "--to", "average", "--weights", "ema"])
        .succeeds();
    let says = "has only weights, without the optimizer's state (checkpoint.weights_only), so a fork cannot continue from it";
    place
        .xrun(&["resume", run.name(), "--fork", "--at", "7"])
        .ended(2)
        .says(&[says, "xrun RECIPE model.init_from="]);
    // Killed between the two, the run continues from the checkpoint that can be resumed.
    run.forget_after(7);
    place.xrun(&["resume"]).succeeds();
    assert_eq!(run.newest().meta().step, 30);
}

#[test]
fn a_run_of_weights_alone_is_refused_at_its_resume() {
    let place = Place::new();
    let all = ["tiny.toml", "checkpoint.weights_only=all"];
    place.xrun(&[&all[..], &["--until", "10"]].concat()).ended(2).says(&["set checkpoint.weights_only=kept"]);
    place.xrun(&all).succeeds();
    let run = place.run();
    assert!(run.newest().is_weights_only());
    run.forget_after(25);
    place
        .xrun(&["resume"])
        .ended(2)
        .says(&["step-000025 has only weights", "so a resume cannot continue from it"]);
}

#[test]
fn the_checkpoint_of_the_best_validation_loss_stays() {
    let bests = [1, 2].map(|world| {
        let place = Place::new();
        let ranks = format!("parallelism.world_size={world}");
        // A learning rate at which the loss rises again.
        let keys = [
            "checkpoint.keep_best=true",
            "checkpoint.keep=1",
            "training.global_batch_size=4",
            "optimizer.lr=1.0",
            "lr_scheduler.min_lr_ratio=1",
        ];
        place.xrun(&[&["tiny.toml", "training.local_batch_size=2", &ranks], &keys[..]].concat()).succeeds();
        let run = place.run();
        let rows: Vec<MetricsRow> = read(&run.path.join("metrics.csv")).unwrap();
        let losses = rows.iter().filter_map(|row| Some((row.step, row.val_loss?)));
        let (best, loss) = losses.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        assert!(best < 30, "the last is no test: {best}");
        assert_eq!(run.text("checkpoint/best"), format!("step-{best:06}\n"));
        assert_eq!(steps(&run.checkpoints()).unwrap(), [best, 30]);
        assert_eq!(at_step(&run.checkpoints(), best).unwrap().meta().validation_loss(), Some(loss));
        best
    });
    assert_eq!(bests[0], bests[1]);
}
