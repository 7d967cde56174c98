//! Runs `xrun compare` as a user does: what it runs, stores and prints, and how it ends.

use crate::place::{self, Done, Place, SOON, are_gone};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use xrun::results::Status;
use xrun::results::experiment::{EXPERIMENT, Experiment, Finding};
use xrun::results::{quantiles, stored};
use xrun::statistics::{Interval, Verdict};

/// Runs take a fraction of a second: enough steps for blocks, and few enough that 50 runs are quick.
const SHORT: [&str; 10] = [
    "--set=training.steps=24",
    "--set=model.dropout=0",
    "--set=metrics.warmup=2",
    "--set=checkpoint.interval=0",
    "--set=validation.interval=0",
    "--set=generation.samples=0",
    "--set=generation.interval=0",
    "--set=training.local_batch_size=2",
    "--set=training.seq_len=16",
    "--set=data.train_tokens=5_000",
];

/// Runs `xrun compare ARGUMENTS` on short runs, two per arm.
fn compare(place: &Place, arguments: &[&str]) -> Done {
    let repeats = ["--repeats", "2"];
    place.xrun(&[&["compare"], arguments, &SHORT, &repeats].concat())
}

/// Returns the folders of comparisons, sorted by name.
fn folders(place: &Place) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(place.path().join("results/comparisons"))
        .into_iter()
        .flatten()
        .flat_map(|name| std::fs::read_dir(name.unwrap().path()).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.sort();
    folders
}

/// Returns the only comparison here.
fn comparison(place: &Place) -> (PathBuf, Experiment) {
    let mut folders = folders(place);
    assert_eq!(folders.len(), 1, "{folders:?}");
    let folder = folders.remove(0);
    let comparison = Experiment::read(&folder).unwrap();
    (folder, comparison)
}

/// Returns whether the loss gate holds.
fn gate(found: &Experiment) -> Option<bool> {
    found.curves().and_then(Finding::holds)
}

fn ratio(found: &Experiment) -> Option<Interval> {
    found.speed().and_then(Finding::ratio)
}

/// Accepts any result of short runs on a busy machine except a failed gate; only the gate and what is stored
/// are certain.
#[track_caller]
fn measured(done: Done) -> Done {
    let slower = done.code == Some(3) && done.stderr.contains("exit code 3: the candidate is slower");
    assert!(done.code == Some(0) || slower, "stdout:\n{}\nstderr:\n{}", done.stdout, done.stderr);
    done
}

#[test]
fn a_change_of_how_it_is_computed_keeps_the_bits() {
    let place = Place::new();
    let arguments =
        ["tiny.toml", "engine.placement=naive", "--hypothesis", "asking costs", "--predicts", "slower"];
    let done = measured(compare(&place, &arguments));
    let (folder, found) = comparison(&place);
    assert_eq!(found.runs.iter().map(|trial| trial.arm).collect::<Vec<_>>(), [0, 1, 1, 0]);
    assert_eq!(place.runs().len(), 4, "every trial is a stored run");
    assert!(found.runs.iter().all(|trial| trial.status.as_deref() == Some("ok") && trial.blocks.len() == 10));
    assert_eq!(gate(&found), Some(true), "{:?}", found.curves());
    assert_eq!(found.changes, ["engine.placement: \"arena\" → \"naive\""]);
    assert_eq!(found.hypothesis.as_deref(), Some("asking costs"));
    assert_eq!(found.prediction.as_ref().unwrap().text, "slower");
    assert!(found.finished && ratio(&found).is_some());
    let (baseline, candidate) = (found.baseline(), found.candidate());
    assert_eq!(baseline.binary, candidate.binary);
    assert!(baseline.device.as_ref().unwrap().starts_with("cpu "), "{baseline:?}");
    assert!(baseline.measured.contains_key("tok_s") && candidate.measured.contains_key("allocated_bytes"));
    assert!(found.provenance.held_out_hashes.is_some(), "what the losses were measured on");
    for text in
        ["verdict", "loss gate   holds: the same bits", "prediction  `slower`", "hypothesis  asking costs"]
    {
        assert!(done.stdout.contains(text), "no `{text}` in\n{}", done.stdout);
    }

    // A calculator agrees with the table, because the table shows the figures that the ratio divides.
    let [before, after] = [baseline, candidate].map(|arm| arm.measured["tok_s"]);
    let ratio = ratio(&found).unwrap().estimate;
    assert!((after / before / ratio - 1.0).abs() < 1e-12, "{after} / {before} is not {ratio}");
    let change = format!("{:+.1} %", 100.0 * (ratio - 1.0));
    let line = done.stdout.lines().find(|line| line.starts_with("tok_s")).unwrap();
    assert!(line.ends_with(&change), "{line}, {change}");
    assert!(done.stdout.contains(&format!(": {change} tok/s (95 %")), "{}", done.stdout);
    assert!(done.stdout.starts_with("mean over trials"), "{}", done.stdout);
    // A trial counts as the median of its blocks.
    let geometric = |trials: Vec<f64>| (trials.iter().map(|x| x.ln()).sum::<f64>() / 2.0).exp();
    let medians = found.runs_in(0).map(|trial| quantiles::median(trial.blocks.iter().copied()).unwrap());
    assert!((geometric(medians.collect()) / before - 1.0).abs() < 1e-12);

    // Keeping a comparison keeps its runs too.
    let id = folder.file_name().unwrap().to_str().unwrap();
    place.xrun(&["keep", id]).succeeds();
    let kept = place.path().join("results/kept");
    assert!(kept.join("comparisons/tiny").join(id).join(EXPERIMENT).is_file());
    assert!(kept.join("comparisons/tiny").join(id).join("manifest.json").is_file());
    for trial in &found.runs {
        assert!(stored::is_file(&kept.join(trial.run.as_ref().unwrap()).join("metrics.csv")));
    }
    place.xrun(&["keep", id]).succeeds().says(&["already kept"]);

    // Stored runs are compared without new runs.
    let names: Vec<&str> = found.runs.iter().map(|trial| trial.run.as_deref().unwrap()).collect();
    let (before, after) = (format!("{},{}", names[0], names[3]), format!("{},{}", names[1], names[2]));
    let done = measured(place.xrun(&["compare", "--runs", &before, &after, "--json"]));
    assert_eq!(place.runs().len(), 4);
    let again: Experiment = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(again.speed().unwrap().interval, found.speed().unwrap().interval, "the same blocks");
    assert_eq!(gate(&again), Some(true));
    assert_eq!(again.changes, found.changes);
    assert!(again.notes[0].contains("not interleaved"), "{:?}", again.notes);
}

#[test]
fn what_is_expected_is_stored_before_the_first_run() {
    let place = Place::new();
    let found = place.path().join("seen.json");
    // The baseline copies what is stored when it starts.
    let script = format!(
        "[ -e {0} ] || cp results/comparisons/*/*/{EXPERIMENT} {0}; i=0; while [ $i -lt 20 ]; do i=$((i+1)); \
         echo \"{{\\\"step\\\": $i, \\\"tok_s\\\": 1e9, \\\"loss\\\": 3}}\"; done",
        found.display()
    );
    place.write("before.sh", script.as_bytes());
    let arguments =
        ["tiny.toml", "--before-cmd", "sh before.sh", "--hypothesis", "H", "--predicts", "tok_s -99.9..-10%"];
    let done = compare(&place, &arguments).ended(3).says(&["exit code 3: the candidate is slower\n"]);
    let first: Experiment = serde_json::from_slice(&std::fs::read(&found).unwrap()).unwrap();
    assert_eq!(
        (first.hypothesis.as_deref(), first.prediction.as_ref().unwrap().text.as_str()),
        (Some("H"), "tok_s -99.9..-10%")
    );
    assert!(first.runs.iter().all(|run| run.status.is_none()) && ratio(&first).is_none() && !first.finished);
    assert_eq!(first.verdict(), Verdict::Inconclusive);

    // The command is an arm like any other: its rows are stored with the comparison, and the user has to set
    // the gate.
    let (folder, found) = comparison(&place);
    assert_eq!(found.verdict(), Verdict::Worse);
    assert_eq!(found.prediction.as_ref().unwrap().held, Some(false), "it is a billion times slower");
    assert_eq!(std::fs::read_to_string(folder.join("trial-1.jsonl")).unwrap().lines().count(), 20);
    assert_eq!(found.runs[0].run, None);
    assert!(found.runs[1].run.is_some());
    assert_eq!(found.baseline().device, found.candidate().device);
    assert_eq!(gate(&found), None);
    assert!(found.curves().unwrap().because.as_ref().unwrap().contains("--tolerance"), "{found:?}");
    assert!(done.stdout.contains("falsified"), "{}", done.stdout);
}

/// One run per arm does not show how runs differ, however far apart the arms are.
#[test]
fn one_run_of_an_arm_gives_no_verdict() {
    let place = Place::new();
    let script =
        "i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo \"{\\\"step\\\": $i, \\\"tok_s\\\": 1e9}\"; done";
    place.write("before.sh", script.as_bytes());
    let arguments =
        ["compare", "tiny.toml", "--before-cmd", "sh before.sh", "--predicts", "tok_s -99.9..-10%"];
    let done = place.xrun(&[&arguments[..], &SHORT, &["--repeats", "1"]].concat()).ended(0);
    let (_, found) = comparison(&place);
    assert_eq!((found.verdict(), found.prediction.as_ref().unwrap().held), (Verdict::Inconclusive, None));
    assert!(ratio(&found).unwrap().high < 0.01);
    assert!(done.stdout.contains("one run does not show how the runs of an arm differ; use several per arm"));
}

#[test]
fn a_recipe_beside_itself_is_said_to_be_the_same() {
    let place = Place::new();
    let arguments = ["compare", "tiny.toml", "tiny.toml"];
    let done = place.xrun(&[&arguments[..], &SHORT, &["--repeats", "1"]].concat()).ended(0);
    done.says(&["changed     nothing: both arms are the same recipe (an A/A test)\n"]);
}

#[test]
fn another_curve_fails_the_gate_or_stays_open() {
    let place = Place::new();
    let arguments = ["tiny.toml", "optimizer.lr=0.1", "--tolerance", "0.001", "--json"];
    let done = compare(&place, &arguments).ended(3).says(&["exit code 3: the loss gate fails\n"]);
    let found: Value = serde_json::from_str(&done.stdout).unwrap();
    let curves = &found["findings"][1];
    assert_eq!(curves["measure"], "loss_curves");
    assert_eq!((&curves["verdict"], &curves["min_effect"]), (&Value::from("different"), &Value::from(0.001)));
    let trials = found["runs"].as_array().unwrap();
    let runs: Vec<&str> = trials.iter().map(|trial| trial["run"].as_str().unwrap()).collect();

    // Without a tolerance, nobody has said how much another learning rate may differ.
    let done = measured(place.xrun(&["compare", "--runs", runs[0], runs[1]]));
    assert!(
        done.stdout.contains("loss gate   open") && done.stdout.contains("one run of the baseline"),
        "{}",
        done.stdout
    );
}

/// The model is the same to the bit, but its validation loss is measured on other text.
#[test]
fn validation_losses_over_different_text_are_not_compared() {
    let place = Place::new();
    let arguments = ["tiny.toml", "validation.steps=0", "--predicts", "val_loss -99..+99%"];
    let done = measured(compare(&place, &arguments));
    let (_, found) = comparison(&place);
    assert_eq!(gate(&found), Some(true), "{:?}", found.curves());
    let [before, after] = [found.baseline(), found.candidate()].map(|arm| arm.measured["val_loss"]);
    assert_ne!(before, after);
    assert_eq!(found.prediction.as_ref().unwrap().held, None);
    assert_eq!(found.incomparable, ["val_loss"]);
    let line = done.stdout.lines().find(|line| line.starts_with("val_loss")).unwrap();
    assert_eq!(line.split_whitespace().count(), 3, "it has no change: {line}");
    let note = "val_loss is not compared: the arms differ in validation.steps (2 → 0)";
    assert!(
        done.stdout.contains(note) && done.stdout.contains("val_loss -99..+99%`: open"),
        "{}",
        done.stdout
    );

    // Runs of one arm cannot mix them either, although their recipes have the same hash.
    let runs: Vec<&str> = found.runs.iter().map(|trial| trial.run.as_deref().unwrap()).collect();
    let mixed = format!("{},{}", runs[0], runs[1]);
    place
        .xrun(&["compare", "--runs", &mixed, runs[2]])
        .ended(2)
        .says(&["are in one arm but measured with validation.steps = 2 and 0"]);
}

#[test]
fn two_binaries_are_stored_and_compared() {
    let place = Place::new();
    let binary = env!("CARGO_BIN_EXE_xrun");
    measured(compare(&place, &["tiny.toml", "--before-bin", binary]));
    let (_, found) = comparison(&place);
    assert_eq!(found.baseline().binary, found.candidate().binary, "it is the same one");
    let stored: Vec<_> = std::fs::read_dir(place.path().join("results/binaries")).unwrap().collect();
    assert_eq!(stored.len(), 1);
    let name = stored[0].as_ref().unwrap().file_name();
    assert_eq!(name.to_str(), found.baseline().binary.as_deref());
    assert_eq!(gate(&found), Some(true), "{:?}", found.curves());
    let hash = found.baseline().binary.clone().unwrap();
    assert_eq!(found.baseline().label, format!("xrun ({})", &hash[..8]));
}

#[test]
fn the_change_may_stand_in_the_recipe() {
    let place = Place::new();
    let recipe = place::RECIPE.to_owned()
        + "[compare]\nchange = { \"activation_checkpoint.mode\" = \"none\" }\nhypothesis = \"less to do\"\nrepeats = 1\n";
    place.write("told.toml", recipe.as_bytes());
    measured(place.xrun(&[&["compare", "told.toml", "--name", "mine"], &SHORT[..]].concat()));
    let (folder, found) = comparison(&place);
    assert_eq!(folder.parent().unwrap().file_name().unwrap(), "mine");
    assert_eq!(found.runs.len(), 2);
    assert_eq!(found.hypothesis.as_deref(), Some("less to do"));
    assert_eq!(found.candidate().label, "mode none");
    assert_eq!(gate(&found), Some(true), "{:?}", found.curves());
}

#[test]
fn trials_that_fail_end_the_comparison() {
    let place = Place::new();
    compare(&place, &["tiny.toml", "--before-cmd", "exit 7"])
        .ended(1)
        .says(&["trial 1, baseline", "exit status: 7"]);
    compare(&place, &["tiny.toml", "--before-cmd", "echo hello"]).ended(1).says(&["printed no rows"]);
    for folder in folders(&place) {
        let found = Experiment::read(&folder).unwrap();
        assert!(!found.finished && found.verdict() == Verdict::Inconclusive);
        assert_eq!(found.runs[0].status.as_deref(), Some("failed"));
        assert!(found.runs[0].reason.is_some() && found.runs[1].status.is_none(), "{:?}", found.runs);
    }
}

/// A file that was cut off says less than its run did.
#[test]
fn a_run_that_lost_rows_is_not_compared() {
    let place = Place::new();
    for lr in ["1e-3", "1e-2"] {
        place.xrun(&["tiny.toml", &format!("optimizer.lr={lr}")]).succeeds();
    }
    let runs = place.runs();
    let text = runs[1].text("metrics.csv");
    let cut: Vec<&str> = text.lines().take(19).collect();
    place.write(runs[1].path.join("metrics.csv").to_str().unwrap(), (cut.join("\n") + "\n").as_bytes());
    place
        .xrun(&["compare", "--runs", runs[0].name(), runs[1].name()])
        .ended(1)
        .says(&["does not agree with itself", "metrics.csv ends at step 18 of 30"]);
}

/// Two processes that would run for hours; the second one's process id goes to a file.
const ENDLESS: &str = "sleep 5000 & echo $! > sleeper; wait";

/// Waits until the endless command runs, and returns the process id of its sleeper.
fn sleeper(place: &Place, running: &mut place::Running) -> u32 {
    let number = || std::fs::read_to_string(place.path().join("sleeper")).unwrap_or_default();
    assert!(running.until(|| number().ends_with('\n')));
    number().trim().parse().unwrap()
}

#[test]
fn a_command_that_takes_too_long_is_ended_with_what_it_started() {
    let place = Place::new();
    let arguments = ["compare", "tiny.toml", "--before-cmd", ENDLESS, "--timeout", "1.5"];
    let mut running = place.start(&arguments);
    let sleeper = sleeper(&place, &mut running);
    running.ends().ended(1).says(&["trial 1, baseline", "took more than 1.5 s"]);
    are_gone(&[sleeper], SOON);
    let (_, found) = comparison(&place);
    assert!(!found.finished);
    assert!(found.runs[0].reason.as_ref().unwrap().contains("took more than 1.5 s"), "{:?}", found.runs);
}

#[test]
fn a_run_that_takes_too_long_is_ended() {
    let place = Place::new();
    let long = ["tiny.toml", "engine.fused=false", "--set=training.steps=100000", "--timeout=1"];
    place
        .xrun(&[&["compare"], &long[..]].concat())
        .ended(1)
        .says(&["trial 1, baseline", "took more than 1 s"]);
}

/// A second signal ends a command that ignores the first.
#[test]
fn a_second_signal_leaves_no_trial_behind() {
    let place = Place::new();
    let deaf = format!("trap '' TERM; {ENDLESS}");
    let mut running = place.start(&["compare", "tiny.toml", "--before-cmd", &deaf]);
    let sleeper = sleeper(&place, &mut running);
    let lives = running.signal_twice("INT", "stopping the trial", "INT");
    assert!(lives, "the command was asked, and does not listen");
    running.ends().ended(130);
    are_gone(&[sleeper], SOON);
}

/// A process that a command leaves behind may keep printing; all rows from before the command's end are read.
#[test]
fn rows_are_whole_whoever_prints_beside_them() {
    let place = Place::new();
    let row = r#"{"step": '$i', "tok_s": 1000, "step_ms": 5}"#;
    let command = format!(
        "(i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo beside; sleep 0.001; done) & \
         i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo '{row}'; done"
    );
    measured(compare(&place, &["tiny.toml", "--before-cmd", &command]));
    let (folder, _) = comparison(&place);
    let rows = std::fs::read_to_string(folder.join("trial-1.jsonl")).unwrap();
    assert_eq!(rows.lines().count(), 300);
}

/// Whoever ends a comparison may know only its process id.
#[test]
fn a_signal_ends_the_running_trial() {
    let command = ["compare", "tiny.toml", "--before-cmd", ENDLESS];
    let place = Place::new();
    let mut running = place.start(&command);
    let sleeper = sleeper(&place, &mut running);
    running.signal("TERM");
    running.ends().ended(75).says(&["trial 1, baseline", "stopped by a signal"]);
    are_gone(&[sleeper], SOON);

    let place = Place::new();
    let own = ["compare", "tiny.toml", "engine.fused=false", "--set=training.steps=100000"];
    let mut running = place.start(&own);
    assert!(running.until(|| place.runs().first().is_some_and(|run| run.rows() > 0)));
    running.signal("INT");
    running.ends().ended(75).says(&["trial 1, baseline", "stopped by a signal"]);
    assert_eq!(place.run().summary().status, Status::Interrupted);
}

#[test]
fn wrong_questions_are_refused_before_anything_runs() {
    let place = Place::new();
    let refused = |arguments: &[&str], says: &str| {
        place.xrun(arguments).ended(2).says(&[says]);
    };
    refused(&["compare", "tiny.toml"], "nothing differs");
    refused(&["compare"], "--runs");
    refused(&["compare", "tiny.toml", "engine.fuse=false"], "engine.fused");
    refused(&["compare", "tiny.toml", "missing.toml"], "missing.toml");
    refused(&["compare", "--runs", "a", "b"], "no run `a`");
    refused(
        &["compare", "tiny.toml", "engine.fused=false", "--predicts", "speed +1..+2%"],
        "not a measured column",
    );
    refused(&["compare", "tiny.toml", "engine.fused=false", "--tolerance=-1"], "a number from 0 on");
    refused(&["compare", "tiny.toml", "engine.fused=false", "--timeout=0"], "seconds above 0");
    refused(&["compare", "tiny.toml", "--before-rev", "HEAD"], "git repository");
    refused(&["compare", "tiny.toml", "--before-bin", "nowhere"], "no such binary: nowhere");
    refused(
        &["compare", "tiny.toml", "engine.fused=false", "--set", "compare.predicts=quick"],
        "compare.predicts",
    );
    assert!(!place.path().join("results").exists());
}

/// A git repository whose `xrun` only calls the real one, so that it builds in a second.
#[test]
fn a_commit_is_built_and_compared() {
    let place = Place::new();
    let main = format!(
        "fn main() {{ let done = std::process::Command::new({:?}).args(std::env::args_os().skip(1)).status(); \
         std::process::exit(done.ok().and_then(|s| s.code()).unwrap_or(1)) }}",
        env!("CARGO_BIN_EXE_xrun")
    );
    place.write("src/main.rs", main.as_bytes());
    place.write(
        "Cargo.toml",
        b"[package]\nname = \"xrun\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n",
    );
    place.write("Cargo.lock", b"version = 4\n\n[[package]]\nname = \"xrun\"\nversion = \"0.0.0\"\n");
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let done =
            Command::new("git").args(identity).args(arguments).current_dir(place.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    };
    git(&["init", "--quiet"]);
    git(&["add", "src", "Cargo.toml", "Cargo.lock"]);
    git(&["commit", "--quiet", "-m", "one"]);
    let commit = git(&["rev-parse", "HEAD"]);
    // What another user of the machine could put above the folder in which the commit is built. Each of these
    // files names a program that cargo or rustup would run.
    let above = tempfile::tempdir().unwrap();
    let (evil, ran) = (above.path().join("evil"), above.path().join("ran"));
    std::fs::write(&evil, format!("#!/bin/sh\ntouch {}\nexec \"$@\"\n", ran.display())).unwrap();
    std::fs::set_permissions(&evil, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(above.path().join(".cargo")).unwrap();
    let wrapper = format!("[build]\nrustc-wrapper = {evil:?}\n");
    let toolchain = format!("[toolchain]\npath = {:?}\n", above.path());
    std::fs::write(above.path().join(".cargo/config.toml"), &wrapper).unwrap();
    std::fs::write(above.path().join("rust-toolchain.toml"), &toolchain).unwrap();
    let run = |rev: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xrun"));
        command.env("TMPDIR", above.path()).env("XRUN_CACHE", above.path().join("cache"));
        command.args(["compare", "tiny.toml", "--before-rev", rev, "--repeats", "1"]).args(SHORT);
        command.current_dir(place.path()).output().unwrap()
    };
    let done = run("HEAD");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(matches!(done.status.code(), Some(0 | 3)), "{said}");
    let (_, found) = comparison(&place);
    assert_ne!(found.baseline().binary, found.candidate().binary);
    assert_eq!(found.baseline().label, format!("HEAD ({})", &commit[..8]));
    assert_eq!(
        std::fs::read_dir(place.path().join("results/binaries")).unwrap().count(),
        2,
        "both are stored"
    );
    assert_eq!(gate(&found), Some(true), "{:?}", found.curves());
    assert_eq!(git(&["worktree", "list"]).lines().count(), 1, "nothing is left of the checkout");

    assert!(!ran.exists(), "a program of someone else was run");
    let says = format!(
        "building HEAD ({commit}) of {}, by a <a@b> on ",
        place.path().canonicalize().unwrap().display()
    );
    assert!(said.contains(&says) && said.contains(": one …"), "{said}");

    // A workspace above could replace what the commit is built from.
    std::fs::write(above.path().join("Cargo.toml"), "[workspace]\nmembers = [\"cache\"]\n").unwrap();
    let done = run("HEAD");
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("Cargo.toml lies above the folder"));

    let done = run("no-such-commit");
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("no commit `no-such-commit`"));
}
