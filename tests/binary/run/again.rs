//! Runs by name: a recipe run again from its run, and the list of runs.

use crate::place::{Place, Run};
use serde_json::Value;
use std::collections::BTreeSet;

/// A recipe that extends `tiny.toml` and sets a warm-up ratio, which the command line replaces.
const ABOVE: &str = "extends = \"tiny.toml\"\n# \u{1f600} a remark\n[lr_scheduler]\nwarmup_ratio = 0.5\n\
                     [training]\nsteps = 6\n[data]\ncorpus = \"texts/a.txt\"\ntokenizer = \"byte\"\n";

/// Returns the runs of `above.toml`, oldest first.
fn runs(place: &Place) -> Vec<Run> {
    let folder = place.path().join("results/above");
    let mut runs: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    runs.sort();
    runs.into_iter().map(|path| Run { path }).collect()
}

#[test]
fn a_run_can_be_run_again_from_its_folder() {
    let place = Place::new();
    place.write("texts/a.txt", "one two three four five six seven\n".repeat(300).as_bytes());
    place.write("above.toml", ABOVE.as_bytes());
    let settings = ["lr_scheduler.warmup_steps=2", "generation.samples=0", "--seed", "5"];
    place.xrun(&[&["above.toml"], &settings[..]].concat()).succeeds();
    let first = runs(&place).remove(0).path;
    let text = std::fs::read_to_string(first.join("recipe.toml")).unwrap();
    assert!(text.contains("\nwarmup_steps = 2  # command line\n"), "{text}");
    assert!(!text.contains("\nwarmup_ratio"), "what the command line replaced is a contradiction: {text}");
    assert!(text.contains("\nseed = 5  # command line\n"), "{text}");
    assert!(text.contains("\nsteps = 6  # above.toml:"), "{text}");
    assert!(text.contains("\n# # \u{1f600} a remark\n"), "{text}");
    let id = first.file_name().unwrap().to_str().unwrap();
    let hash = &id[17..25];
    let again = [
        "results/above/".to_owned() + id,
        format!("results/above/{id}/recipe.toml"),
        format!("results/above/{id}/resolved.toml"),
        id.to_owned(),
    ];
    for name in &again {
        place.xrun(&[name, "-q"]).succeeds();
    }
    let all = runs(&place);
    assert_eq!(all.len(), 1 + again.len(), "all in the folder of the recipe");
    let metrics = std::fs::read(first.join("metrics.csv")).unwrap();
    for run in &all {
        assert_eq!(run.summary().recipe, "above");
        assert!(run.path.to_str().unwrap().contains(hash), "the same hash: {}", run.path.display());
        assert!(std::fs::read(run.path.join("metrics.csv")).unwrap() == metrics, "the same bits");
    }
    // Five runs have this hash. A derived value follows a change of what it is derived from.
    place.xrun(&[hash]).ended(2).says(&[&format!("`{hash}` begins the name or the hash of 5 runs")]);
    let plan = place.xrun(&["plan", &again[0], "training.steps=40", "--seed", "7", "--json"]).succeeds();
    assert_eq!(serde_json::from_str::<Value>(&plan.stdout).unwrap()["recipe"], "above");
    place.xrun(&["plan", "latest"]).succeeds();
    place.xrun(&["results/above"]).ended(2).says(&["it is a folder, neither a recipe nor a run"]);
    let runs = ["compare", "--runs", id, id, "--seed", "3"];
    place.xrun(&runs).ended(2).says(&["--seed is for new runs"]);
    place.xrun(&["plan", "--seed", "x", "latest"]).ended(2).says(&["training.seed cannot be \"x\""]);
}

/// A run that drew initial values by index has no `seeds.scheme` in its files, like every run from before
/// that key. It is resumed from its beginning and run again from its folder, with the same bits and hash.
#[test]
fn a_run_with_index_seeds_keeps_its_bits() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "-q", "seeds.scheme=index", "generation.samples=0"]).succeeds();
    let old = place.run();
    let copy = old.text("recipe.toml").replace("\n[seeds]\nscheme = \"index\"  # command line\n", "");
    std::fs::write(old.path.join("recipe.toml"), &copy).unwrap();
    for file in ["recipe.toml", "resolved.toml", "checkpoint/latest", "summary.json"] {
        assert!(!old.text(file).contains("scheme"), "{file}");
    }
    let (metrics, hash) = (old.text("metrics.csv"), old.summary().recipe_hash);
    let again = [old.path.clone(), old.path.join("recipe.toml"), old.path.join("resolved.toml")];
    for name in &again {
        place.xrun(&[name.to_str().unwrap(), "-q"]).succeeds();
    }
    place.xrun(&["tiny.toml", "-q", "generation.samples=0"]).succeeds();
    let runs = place.runs();
    assert_eq!(runs.len(), 2 + again.len());
    let (alike, other): (Vec<_>, Vec<_>) = runs.iter().partition(|run| run.summary().recipe_hash == hash);
    assert!(alike.iter().all(|run| run.text("metrics.csv") == metrics), "the same bits");
    assert!(other.iter().all(|run| run.text("metrics.csv") != metrics), "names draw other values");
    assert_eq!((alike.len(), other.len()), (1 + again.len(), 1));
    // Killed before its first checkpoint.
    std::fs::remove_dir_all(old.checkpoints()).unwrap();
    let killed = old.text("summary.json").replace("\"status\": \"ok\"", "\"status\": \"running\"");
    std::fs::write(old.path.join("summary.json"), killed).unwrap();
    place.xrun(&["resume", old.name()]).succeeds().says(&["the run starts at step 0"]);
    assert_eq!((old.text("metrics.csv"), old.summary().recipe_hash), (metrics, hash));
}

/// Besides figures, a list tells what a run inherits from another, which losses do not compare, and which
/// runs learned nothing or had no steady speed.
#[test]
fn the_list_of_runs_hides_nothing_that_its_figures_depend_on() {
    let place = Place::new();
    place
        .xrun(&["tiny.toml", "-q", "generation.samples=0", "optimizer.lr=1e-2", "training.steps=4"])
        .succeeds();
    let first = place.run();
    place.xrun(&["latest", "-q", "training.steps=6"]).succeeds();
    let second = place.runs().into_iter().find(|run| run.path != first.path).unwrap();
    let list = |arguments: &[&str]| place.xrun(&[&["runs"], arguments].concat()).succeeds();
    let listed = list(&[]).stdout;
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[1].ends_with(" optimizer.lr=0.01 generation.samples=0 training.steps=6"), "{listed}");
    assert!(lines[2].ends_with(" generation.samples=0 optimizer.lr=1e-2 training.steps=4"), "{listed}");
    // Losses on one corpus compare.
    let best = list(&["--best", "5"]);
    let mixes = |stderr: &str| stderr.contains("cannot be compared");
    assert!(!best.stdout.contains(" TEXT ") && !mixes(&best.stderr), "{}{}", best.stdout, best.stderr);
    place.xrun(&["tiny.toml", "-q", "generation.samples=0", "training.steps=4", "data.seed=7"]).succeeds();
    for order in [&["--best", "5"][..], &["--sort", "loss"], &["--sort", "val-loss"]] {
        let best = list(order).says(&["losses were measured on 2 different texts and cannot be compared"]);
        assert!(best.stdout.lines().next().unwrap().contains(" TEXT "), "{}", best.stdout);
        let text = first.summary().corpus_hash.unwrap()[..8].to_owned() + " 2/5";
        assert_eq!(best.stdout.matches(&text).count(), 2, "{}", best.stdout);
    }
    assert!(!mixes(&list(&["--sort", "steps"]).stderr));
    // Marks follow from a run's summary.
    let mark = |run: &Run, change: &dyn Fn(&mut Value)| {
        let mut summary = run.json("summary.json");
        change(&mut summary);
        std::fs::write(run.path.join("summary.json"), summary.to_string()).unwrap();
    };
    place.runs().iter().for_each(|run| mark(run, &|summary| summary["uniform_loss"] = 100.into()));
    mark(&first, &|summary| summary["uniform_loss"] = 0.5.into());
    mark(&second, &|summary| summary["steady_state"]["settled"] = false.into());
    let listed = list(&[]).stdout;
    let marked = |run: &Run, mark: &str| {
        let hash = run.path.file_name().unwrap().to_str().unwrap().split('-').nth(1).unwrap().to_owned();
        let line = listed.lines().find(|line| line.starts_with(&hash)).unwrap();
        assert!(line.contains(mark), "{listed}");
    };
    assert!(listed.lines().next().unwrap().contains(" REMARKS "), "{listed}");
    marked(&first, " worse than guessing ");
    marked(&second, " speed never settled ");
    assert_eq!(listed.matches("worse than guessing").count(), 1, "{listed}");
}

/// A run repeats the remarks of `xrun plan` on its model before its first step.
#[test]
fn a_run_says_what_the_plan_remarks_on_its_model() {
    let place = Place::new();
    let wide = ["tiny.toml", "model.head_dim=32", "training.steps=2"];
    let remark = "2 heads of 32 elements attend to 64 elements, but the stream has 32";
    let done = place.xrun(&wide).succeeds().says(&[remark]);
    assert!(done.stderr.find(remark) < done.stderr.find("step 1/2"), "{}", done.stderr);
    assert!(place.run().text("log").contains(remark));
}

#[test]
fn runs_are_listed_sorted_and_filtered() {
    let place = Place::new();
    place.xrun(&["runs"]).succeeds().says(&["no runs in results"]);
    for settings in [["--seed=1", "training.steps=4"], ["--seed=2", "training.steps=6"]] {
        let base = ["tiny.toml", "-q", "generation.samples=0", "generation.prompt=The "];
        place.xrun(&[&base, &settings[..]].concat()).succeeds();
    }
    place.write("other.toml", b"extends = \"tiny.toml\"\n[generation]\nsamples = 0\n");
    let mut dead = place.start(&["other.toml", "--training.steps", "100000"]);
    let folder = place.path().join("results/other");
    assert!(dead.until(|| folder.is_dir()
        && std::fs::read_dir(&folder).unwrap().any(|run| run.unwrap().path().join("summary.json").exists())));
    let lines = |arguments: &[&str]| -> Vec<String> {
        let done = place.xrun(&[&["runs"], arguments].concat()).succeeds();
        done.stdout.lines().map(str::to_owned).collect()
    };
    assert!(lines(&["other"])[1].contains(" running "), "{:?}", lines(&["other"]));
    dead.signal("KILL");
    assert!(!dead.until(|| false));
    let all = lines(&[]);
    assert_eq!(all.len(), 4, "{all:?}");
    assert!(all[0].starts_with("RUN ") && all[0].ends_with("CHANGED"), "{all:?}");
    assert!(all[1].contains(" other ") && all[1].contains(" killed "), "the newest first: {all:?}");
    assert!(all[1].ends_with(" training.steps=100000"), "{all:?}");
    assert!(all[3].contains(" ok ") && all[3].ends_with(" training.seed=1 training.steps=4"), "{all:?}");
    assert!(all[3].contains(" generation.prompt='The ' training.seed=1"), "as a shell takes it: {all:?}");
    // Every name in the list finds its run.
    for line in &all[1..] {
        let name = line.split(' ').next().unwrap();
        place.xrun(&["plan", name]).succeeds();
    }
    assert_eq!(lines(&["tiny"]).len(), 3);
    place.xrun(&["runs", "tinny"]).ended(2).says(&["no run of recipe `tinny`", "did you mean tiny?"]);
    place.xrun(&["runs", "zebra"]).ended(2).says(&["there are runs of other, tiny"]);
    // Warm-up steps alone give no speed.
    place.xrun(&["runs"]).succeeds().says(&["—: not measured; speed is taken from steps after the first"]);
    assert_eq!(lines(&["--status", "killed,failed"]).len(), 2);
    let rows = |arguments: &[&str]| -> Vec<Value> {
        lines(arguments).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let json = rows(&["tiny", "--json", "--sort", "steps"]);
    let steps: Vec<u64> = json.iter().map(|row| row["steps"].as_u64().unwrap()).collect();
    assert_eq!(steps, [6, 4]);
    let losses = rows(&["--json", "--sort=loss"]);
    let losses: Vec<f64> =
        losses.iter().filter_map(|row| row["train_loss"]["smoothed"]["loss"].as_f64()).collect();
    assert!(losses.is_sorted() && losses.len() > 1, "{losses:?}");
    let best = rows(&["--best", "1", "--json"]);
    let val = |row: &Value| row["val_loss"]["final"]["loss"].as_f64();
    let lowest = rows(&["--json"]).iter().filter_map(val).fold(f64::INFINITY, f64::min);
    assert_eq!(best.iter().filter_map(val).collect::<Vec<_>>(), [lowest]);
    let names: BTreeSet<String> = rows(&["--json"]).iter().map(|row| row["path"].to_string()).collect();
    assert_eq!(names.len(), 3);
    place.xrun(&["status"]).ended(2).says(&["`xrun runs` lists the runs here"]);
    place.xrun(&["train", "quickstart"]).ended(2).says(&["`xrun RECIPE` trains a recipe"]);
}
