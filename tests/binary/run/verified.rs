//! What a run reads again is what it wrote: a changed file is an error, never another result.

use crate::place::{Place, Run};
use std::fs;
use xrun::checkpoint::{Meta, Snapshot, Store, TensorView};

/// Saves the newest checkpoint again, with other metadata or with another value in every parameter.
fn save_again(run: &Run, meta: impl Fn(&mut Meta), value: Option<f32>) {
    let loaded = run.newest();
    let tensors: Vec<_> = loaded
        .names()
        .into_iter()
        .map(|name| {
            let shape = loaded.shape(name).unwrap().to_vec();
            let mut bytes = loaded.read(name, &shape).unwrap();
            if let Some(value) = value.filter(|_| !name.starts_with("adam.")) {
                bytes[4..8].copy_from_slice(&value.to_le_bytes());
            }
            (name.to_owned(), shape, bytes)
        })
        .collect();
    let views =
        tensors.iter().map(|(name, shape, bytes)| TensorView::new(name.as_str(), shape.clone(), bytes));
    let (optimizer, parameters): (Vec<_>, Vec<_>) = views.partition(|t| t.name.starts_with("adam."));
    let mut changed = loaded.meta().clone();
    meta(&mut changed);
    Store::open(&run.checkpoints(), 9)
        .unwrap()
        .save(&changed, &Snapshot::new(parameters, optimizer))
        .unwrap();
}

/// An edit of a file.
type Change = Box<dyn Fn(&str) -> String>;

#[test]
fn changed_rows_are_not_taken_over() {
    let line = |number: usize, change: fn(&str) -> Vec<String>| {
        move |text: &str| -> String {
            let lines = text.lines().enumerate().flat_map(|(at, line)| match at == number {
                true => change(line),
                false => vec![line.to_owned()],
            });
            lines.map(|line| line + "\n").collect()
        }
    };
    let changes: [(&str, Change); 6] = [
        ("metrics.csv", Box::new(line(12, |line| vec![line.replace('.', ".0")]))),
        ("metrics.csv", Box::new(line(2, |_| vec![]))),
        ("metrics.csv", Box::new(line(2, |line| vec![line.to_owned(), line.to_owned()]))),
        ("timing.csv", Box::new(line(12, |line| vec![line.replace('.', "1.")]))),
        ("timing.csv", Box::new(line(2, |_| vec![]))),
        ("timing.csv", Box::new(|_| String::new())),
    ];
    for (file, change) in changes {
        let place = Place::killed_after(20);
        let run = place.run();
        let changed = change(&run.text(file));
        assert_ne!(changed, run.text(file));
        fs::write(run.path.join(file), changed).unwrap();
        let before = run.files();
        place.xrun(&["resume"]).ended(1).says(&[
            &format!("{file} was changed since the checkpoint of step 20"),
            "xrun resume RUN --fork",
        ]);
        let after = run.files();
        assert!(before.get(&run.path.join(file)) == after.get(&run.path.join(file)));
        assert!(before.get(&run.path.join("metrics.csv")) == after.get(&run.path.join("metrics.csv")));
    }
    // A second row for the checkpoint's step, which the checkpoint does not know.
    let place = Place::killed_after(20);
    let run = place.run();
    let doubled =
        line(20, |line| vec![line.to_owned(), line.replace("20,", "20,9")])(&run.text("metrics.csv"));
    fs::write(run.path.join("metrics.csv"), doubled).unwrap();
    place.xrun(&["resume"]).succeeds();
    run.ended_as_uninterrupted();
}

#[test]
fn a_checkpoint_of_an_earlier_version_resumes_and_says_what_it_does_not_know() {
    let place = Place::killed_after(20);
    let run = place.run();
    save_again(&run, |meta| meta.rows.clear(), None);
    place.xrun(&["resume"]).succeeds().says(&[
        "the checkpoint of step 20 was written by an earlier version, without hashes of metrics.csv and timing.csv",
    ]);
    run.ended_as_uninterrupted();
}

#[test]
fn the_hash_of_the_recipe_is_that_of_the_checkpoint() {
    let place = Place::killed_after(20);
    let run = place.run();
    let hash = run.summary().recipe_hash;
    let forged = run.text("summary.json").replace(&hash, &"0".repeat(hash.len()));
    fs::write(run.path.join("summary.json"), forged).unwrap();
    place.xrun(&["resume"]).succeeds();
    assert_eq!(run.summary().recipe_hash, hash);
    run.ended_as_uninterrupted();
}

#[test]
fn a_changed_tokenizer_is_not_sampled_or_exported() {
    let place = Place::killed_after(20);
    let run = place.run();
    let whole = run.file("tokenizer.json");
    for at in (0..8).map(|part| part * whole.len() / 8) {
        for bytes in [
            whole.iter().enumerate().map(|(i, byte)| if i == at { byte ^ 1 } else { *byte }).collect(),
            whole[..at].to_vec(),
        ] {
            fs::write(run.path.join("tokenizer.json"), bytes).unwrap();
            for arguments in [&["sample", run.name()][..], &["export", run.name(), "--to", "hf"]] {
                place.xrun(arguments).ended(1).says(&["tokenizer.json was changed since the run"]);
            }
        }
    }
    assert!(!place.path().join("hf").exists());
    // A resume writes it again, from the corpus.
    place.xrun(&["resume"]).succeeds();
    assert_eq!(run.file("tokenizer.json"), whole);
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    for (value, text) in [(f32::NAN, "is NaN"), (f32::NEG_INFINITY, "is -inf")] {
        let place = Place::killed_after(20);
        let run = place.run();
        save_again(&run, |_| (), Some(value));
        for arguments in [&["sample", run.name()][..], &["export", run.name(), "--to", "hf"]] {
            place.xrun(arguments).ended(1).says(&["element 1 of", text, "--checkpoint STEP"]);
        }
        assert!(!place.path().join("hf").exists());
        place.xrun(&["sample", run.name(), "--checkpoint", "15"]).succeeds();
    }
}

/// A run that cannot be read is no reason not to resume another.
#[test]
fn a_damaged_summary_of_another_run_is_told_and_skipped() {
    for more in [&["resume"][..], &["tiny.toml", "checkpoint.resume=auto", "checkpoint.keep=10"]] {
        let place = Place::killed_after(20);
        let run = place.run();
        for name in ["results/tiny/20991231T235959Z-00000000", "results/other/20991231T235959Z-00000000"] {
            place.write(&format!("{name}/summary.json"), b"{\"status\": \"runn");
        }
        place.xrun(more).succeeds().says(&[
            "results/other/20991231T235959Z-00000000/summary.json",
            "not a summary",
            "resuming from step 20",
        ]);
        assert_eq!(run.summary().status, xrun::results::Status::Ok);
    }
}
