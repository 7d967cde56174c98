//! Damage to what a run left: the previous checkpoint is used, with a warning. What cannot be used is an
//! error, not a new start.

use crate::place::{Place, Run};
use std::fs;

fn truncate(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len() / 2);
}

const FLIP: fn(&mut Vec<u8>) = |bytes| {
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
};

fn damage(run: &Run, file: &str, how: fn(&mut Vec<u8>)) {
    let mut bytes = run.file(file);
    how(&mut bytes);
    fs::write(run.path.join(file), bytes).unwrap();
}

#[test]
fn the_previous_checkpoint_is_used_loudly() {
    for (file, how) in [
        ("model.safetensors", truncate as fn(&mut Vec<u8>)),
        ("optimizer.safetensors", FLIP),
        ("manifest.json", FLIP),
        ("model.safetensors", Vec::clear),
    ] {
        let place = Place::killed_after(20);
        let run = place.run();
        damage(&run, &format!("checkpoint/step-000020/{file}"), how);
        let texts = ["warning: checkpoint", "step-000020 cannot be used"];
        // Look before anything is written, so that the second look finds the same.
        place.xrun(&["sample", run.name(), "--samples", "1", "--tokens", "2"]).succeeds().says(&texts);
        place.xrun(&["resume", "--quiet"]).succeeds().says(&texts);
        assert!(run.text("log").contains("resuming from step 15"), "{}", run.text("log"));
        run.ended_as_uninterrupted();
    }
}

#[test]
fn without_a_good_checkpoint_nothing_starts_over() {
    let place = Place::killed_after(10);
    let run = place.run();
    for step in ["step-000005", "step-000010"] {
        damage(&run, &format!("checkpoint/{step}/model.safetensors"), FLIP);
    }
    let before = run.files();
    for arguments in [&["resume"][..], &["sample", run.name()], &["export", run.name(), "--to", "out"]] {
        place.xrun(arguments).ended(1).says(&[
            "no checkpoint in",
            "can be used",
            "step-000005",
            "step-000010",
        ]);
    }
    assert!(run.files() == before);
}

#[test]
fn damaged_files_of_a_run_are_named() {
    let last_row = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 3);
    let rows = |bytes: &mut Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes[middle..middle + 8].copy_from_slice(b"\nx,y,z,\n");
    };
    let place = Place::killed_after(30);
    damage(&place.run(), "metrics.csv", last_row);
    place.xrun(&["resume"]).ended(1).says(&["metrics.csv"]);
    for (file, how, code) in [
        ("metrics.csv", rows as fn(&mut Vec<u8>), 1),
        ("metrics.csv", |bytes| bytes[0] ^= 1, 1),
        ("timing.csv", rows, 1),
        ("resolved.toml", |bytes| bytes.truncate(bytes.windows(7).position(|w| w == b"stories").unwrap()), 2),
        ("resolved.toml", |bytes| bytes[10] = 0xff, 2),
        ("summary.json", truncate, 1),
        ("summary.json", Vec::clear, 1),
    ] {
        let place = Place::killed_after(20);
        let run = place.run();
        damage(&run, file, how);
        place.xrun(&["resume", run.name()]).ended(code).says(&[file]);
    }
}

/// A message says what is missing and what still works, and that must work.
#[test]
fn a_run_that_lost_a_file_says_what_still_works() {
    let place = Place::killed_after(20);
    let run = place.run();
    let id = run.path.file_name().unwrap().to_str().unwrap().to_owned();
    let lost = |file: &str| fs::rename(run.path.join(file), run.path.join("lost")).unwrap();
    let found = |file: &str| fs::rename(run.path.join("lost"), run.path.join(file)).unwrap();
    let sample = ["sample", &id, "--samples", "1", "--tokens", "2"];

    lost("resolved.toml");
    place.xrun(&["resume", &id]).ended(2).says(&["has no resolved.toml; ", "xrun sample", "xrun export"]);
    place.xrun(&sample).succeeds().says(&[&id, "step 20 of 30"]);
    found("resolved.toml");

    lost("summary.json");
    let damaged = ["is damaged: it has no summary.json; ", "xrun sample", "xrun export"];
    for arguments in [&["resume", &id][..], &["resume", run.name()], &["keep", &id]] {
        place.xrun(arguments).ended(2).says(&damaged);
    }
    place.xrun(&["runs"]).succeeds().says(&damaged);
    place.xrun(&sample).succeeds().says(&["has no summary.json; its checkpoint is used"]);
    place.xrun(&["export", &id, "--to", "out"]).succeeds();
    found("summary.json");
    assert!(!place.xrun(&["runs"]).succeeds().stderr.contains("damaged"));
}
