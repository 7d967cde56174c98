//! What a run began from is part of it: a run that ends before its first checkpoint begins again there with
//! the same bits, or is refused; and no run is taken for another one that began elsewhere.

use crate::place::{Place, Run, copy};
use std::fs;
use std::path::{Path, PathBuf};

/// The last step of every run here.
const LAST: u64 = 20;

/// Begins a run with the weights of the exported model.
const FROM_FOLDER: [&str; 4] =
    ["model.init_from=hf", "model.n_kv_heads=2", "model.head_dim=16", "data.tokenizer=hf/tokenizer.json"];

/// Unless it is set, a fork keeps the warm-up of its parent's length, and its recipe differs from a new
/// run's.
const WARMUP: &str = "lr_scheduler.warmup_steps=2";

/// A folder with a parent run of ten steps, its exported model, and that model as an imported run.
fn place() -> (Place, Run, Run) {
    let place = Place::new();
    place.xrun(&["tiny.toml", WARMUP, "training.steps=10", "checkpoint.keep=9"]).succeeds();
    let parent = place.run();
    place.xrun(&["export", parent.name(), "--to", "hf"]).succeeds();
    place.xrun(&["import", "hf", "--name", "imported"]).succeeds();
    let imported = only(&place.path().join("results/imported"));
    (place, parent, imported)
}

fn only(folder: &Path) -> Run {
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(found.len(), 1);
    Run { path: found.remove(0) }
}

/// Runs a command that creates one run, and returns the run.
fn made(place: &Place, arguments: &[&str]) -> Run {
    let all = || -> Vec<PathBuf> {
        let recipes = fs::read_dir(place.path().join("results")).unwrap().map(|entry| entry.unwrap().path());
        let runs = recipes.flat_map(|recipe| fs::read_dir(recipe).unwrap());
        runs.map(|entry| entry.unwrap().path()).filter(|run| run.join("summary.json").exists()).collect()
    };
    let before = all();
    place.xrun(arguments).succeeds();
    let mut new: Vec<PathBuf> = all().into_iter().filter(|run| !before.contains(run)).collect();
    assert_eq!(new.len(), 1, "{arguments:?}");
    Run { path: new.remove(0) }
}

/// Trains a run of every origin to its end, each with its name.
fn origins(place: &Place, parent: &Run, imported: &Run) -> Vec<(&'static str, Run)> {
    let steps = format!("training.steps={LAST}");
    let keys: [&str; 3] = [&steps, "optimizer.lr=2e-3", "checkpoint.keep=9"];
    let to = |arguments: &[&str]| made(place, &[arguments, &keys[..]].concat());
    let fork = to(&["resume", parent.name(), "--fork"]);
    let text = ["data.corpus=stories", "data.train_tokens=20000", "data.validation_tokens=600"];
    let trained = ["training.local_batch_size=4", "checkpoint.interval=5", "engine.threads=1"];
    let from_import = [&["resume", imported.name(), "--fork"], &text[..], &trained].concat();
    vec![
        ("initial values", to(&["tiny.toml"])),
        ("a folder", to(&[&["tiny.toml"], &FROM_FOLDER[..]].concat())),
        ("a run", to(&["tiny.toml", WARMUP, &format!("model.init_from={}", parent.name())])),
        ("the newest checkpoint", Run { path: fork.path.clone() }),
        ("an earlier checkpoint", to(&["resume", parent.name(), "--fork", "--at", "5"])),
        (
            "a fork",
            to(&["resume", fork.name(), "--fork", "--at", "15", "training.seed=8", "checkpoint.interval=1"]),
        ),
        ("an imported model", to(&from_import)),
    ]
}

/// When a process ended.
const DEATHS: [&str; 3] = ["before the first row", "before the first checkpoint", "after a checkpoint"];

/// Makes a finished run look as if its process had been killed.
fn kill(run: &Run, death: &str) {
    match death {
        "after a checkpoint" => {
            let steps = xrun::checkpoint::steps(&run.checkpoints()).unwrap();
            return run.forget_after(steps[steps.len() - 2]);
        }
        "before the first row" => {
            for file in ["metrics.csv", "timing.csv"] {
                let header = run.text(file).lines().next().unwrap().to_owned() + "\n";
                fs::write(run.path.join(file), header).unwrap();
            }
        }
        _ => {}
    }
    fs::remove_dir_all(run.checkpoints()).unwrap();
    unfinished(run);
}

fn unfinished(run: &Run) {
    let summary = run.text("summary.json").replace("\"status\": \"ok\"", "\"status\": \"running\"");
    fs::write(run.path.join("summary.json"), summary).unwrap();
}

/// Calls `test` on a copy of a run, which is removed afterwards.
fn on_copy(run: &Run, test: impl FnOnce(&Run)) {
    // In a folder of its own name, because a copied run keeps the name in its summary.
    let aside = run.path.with_file_name(format!("aside-{}", run.path.file_name().unwrap().to_string_lossy()));
    fs::rename(&run.path, &aside).unwrap();
    copy(&aside, &run.path);
    test(run);
    fs::remove_dir_all(&run.path).unwrap();
    fs::rename(&aside, &run.path).unwrap();
}

#[test]
fn a_run_of_any_origin_ends_with_the_same_bits_whenever_it_died() {
    let (place, parent, imported) = place();
    for (origin, run) in origins(&place, &parent, &imported) {
        let whole = tempfile::tempdir().unwrap();
        copy(&run.path, whole.path());
        let whole = Run { path: whole.path().to_owned() };
        for death in DEATHS {
            println!("{origin}, {death}");
            on_copy(&run, |run| {
                kill(run, death);
                let done = place.xrun(&["resume", run.name()]).succeeds();
                run.ended_as(&whole);
                let (mine, other) = (run.json("summary.json"), whole.json("summary.json"));
                for field in ["forked_from", "begun_with", "losses_before", "recipe_hash"] {
                    assert_eq!(mine[field], other[field], "{origin}, {death}");
                }
                if death == "before the first checkpoint" {
                    assert!(done.stderr.contains("dropped and trained again"), "{}", done.stderr);
                }
            });
        }
    }
}

/// Without what it began from, a run is refused and stays as it is.
#[test]
fn a_run_whose_origin_is_gone_or_changed_is_refused() {
    let (place, parent, imported) = place();
    let origins = origins(&place, &parent, &imported);
    // Other states of the same steps.
    let seed = "training.seed=99";
    let other = made(&place, &["tiny.toml", "training.steps=10", "checkpoint.keep=9", seed]);
    place.xrun(&["export", other.name(), "--to", "hf-other"]).succeeds();
    let other_import = made(&place, &["import", "hf-other", "--name", "imported"]);
    let weights = |folder: &str| place.path().join(folder).join("model.safetensors");
    let step = |run: &Run, step: u64| run.checkpoints().join(xrun::checkpoint::folder_name(step));
    for (origin, own, another) in [
        ("a folder", weights("hf"), weights("hf-other")),
        ("a run", step(&parent, 10), step(&other, 10)),
        ("the newest checkpoint", step(&parent, 10), step(&other, 10)),
        ("an earlier checkpoint", step(&parent, 5), step(&other, 5)),
        ("an imported model", step(&imported, 0), step(&other_import, 0)),
    ] {
        let run = &origins.iter().find(|(name, _)| *name == origin).unwrap().1;
        for replaced in [false, true] {
            println!("{origin}, replaced: {replaced}");
            on_copy(run, |run| {
                kill(run, "before the first checkpoint");
                let before = run.files();
                let aside = own.with_extension("aside");
                fs::rename(&own, &aside).unwrap();
                match (replaced, another.is_dir()) {
                    (false, _) => {}
                    (true, true) => copy(&another, &own),
                    (true, false) => _ = fs::copy(&another, &own).unwrap(),
                }
                place.xrun(&["resume", run.name()]).ended(2);
                assert!(run.files() == before, "a refused resume changed the run");
                if own.is_dir() {
                    fs::remove_dir_all(&own).unwrap();
                }
                fs::rename(&aside, &own).unwrap();
                place.xrun(&["resume", run.name()]).succeeds();
            });
        }
    }
    for (origin, run) in &origins {
        for (change, code) in [("removed", 2), ("one bit", 1)] {
            println!("{origin}, {change}");
            on_copy(run, |run| {
                kill(run, "before the first checkpoint");
                let path = run.path.join("origin.json");
                let mut bytes = fs::read(&path).unwrap();
                let at = String::from_utf8_lossy(&bytes).find("n_layers").unwrap();
                bytes[at] ^= 1;
                match change {
                    "removed" => fs::remove_file(&path).unwrap(),
                    _ => fs::write(&path, bytes).unwrap(),
                }
                place.xrun(&["resume", run.name()]).ended(code).says(&["origin.json"]);
            });
        }
    }
}

/// A results folder moves with all of its runs.
#[test]
fn a_fork_finds_its_parent_in_a_moved_results_folder() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "training.steps=10"]).succeeds();
    let parent = place.run();
    let fork = made(&place, &["resume", parent.name(), "--fork", "training.steps=20"]);
    let rows = fork.text("metrics.csv");
    kill(&fork, "before the first checkpoint");
    fs::rename(place.path().join("results"), place.path().join("moved")).unwrap();
    let moved = place.path().join("moved/tiny").join(fork.path.file_name().unwrap());
    place.xrun(&["--results", "moved", "resume", moved.to_str().unwrap()]).succeeds();
    assert_eq!(Run { path: moved }.text("metrics.csv"), rows);
}

/// `checkpoint.resume = "auto"` continues the run of the recipe, and not one that began elsewhere.
#[test]
fn an_automatic_resume_takes_only_a_run_that_began_alike() {
    let (place, parent, _) = place();
    let steps = format!("training.steps={LAST}");
    let steps = steps.as_str();
    let count = || fs::read_dir(place.path().join("results/tiny")).unwrap().count();
    let auto = |more: &[&str]| {
        let before = count();
        place.xrun(&[&["tiny.toml", WARMUP, steps, "checkpoint.resume=auto"], more].concat()).succeeds();
        count() - before
    };
    // An unfinished fork with the recipe and the hash of a run from step 0.
    let fork = made(&place, &["resume", parent.name(), "--fork", steps]);
    fork.forget_after(15);
    assert_eq!(auto(&[]), 1, "a fork was continued as if it were the recipe's run");
    let own = place
        .runs()
        .into_iter()
        .find(|run| run.summary().forked_from.is_none() && run.summary().steps_planned == LAST)
        .unwrap();
    assert_eq!(own.summary().recipe_hash, fork.summary().recipe_hash, "they differ only in their beginning");
    own.forget_after(15);
    assert_eq!(auto(&[]), 0, "the recipe's own run is continued");
    let begun = made(&place, &[&["tiny.toml", WARMUP, steps], &FROM_FOLDER[..]].concat());
    begun.forget_after(15);
    // Another model in the same folder.
    place.xrun(&["export", fork.name(), "--to", "other"]).succeeds();
    fs::rename(place.path().join("hf"), place.path().join("first")).unwrap();
    fs::rename(place.path().join("other"), place.path().join("hf")).unwrap();
    assert_eq!(auto(&FROM_FOLDER), 1, "the folder has other weights");
    let newest = place.runs().pop().unwrap();
    newest.forget_after(15);
    assert_eq!(auto(&FROM_FOLDER), 0);
    // A run of which nothing tells where it began.
    own.forget_after(15);
    fs::remove_file(own.path.join("origin.json")).unwrap();
    assert_eq!(auto(&[]), 1);
}
