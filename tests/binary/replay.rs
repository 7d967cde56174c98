//! Runs `xrun replay` as a user does: the same bits, the first difference, what it says about builds and
//! devices, and what it rejects.

use crate::place::{Done, Place, Run, edit, read_text};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use xrun::results::experiment::Experiment;
use xrun::results::folder::read_summary;

/// Makes a place with a finished run. With this warm-up no speed is checked against the clock when the run is
/// kept, since the machine may be busy.
fn trained() -> (Place, Run) {
    let place = Place::new();
    place.xrun(&["tiny.toml", "metrics.warmup=30"]).succeeds();
    let run = place.run();
    (place, run)
}

/// Runs `xrun replay ARGUMENTS`, with the new runs in a folder here.
fn replay(place: &Place, arguments: &[&str]) -> Done {
    place.xrun(&[&["replay"], arguments, &["--into", "again"]].concat())
}

/// Replaces the gradient norm in the row of step 7.
fn plant(metrics: &Path) {
    let text = read_text(metrics);
    let column = text.lines().next().unwrap().split(',').position(|name| name == "grad_norm").unwrap();
    let row = text.lines().find(|line| line.starts_with("7,")).unwrap().to_owned();
    let mut values: Vec<&str> = row.split(',').collect();
    values[column] = "9.5";
    edit(metrics, &row, &values.join(","));
}

/// Returns true if the binary was built from sources with uncommitted changes.
fn is_dirty() -> bool {
    option_env!("XRUN_BUILD_DIRTY") == Some("true")
}

/// Returns what a replay by this very binary says about a difference. The build under test may have
/// uncommitted changes, and then nobody knows whether they are the recorded ones.
fn differs() -> &'static str {
    if is_dirty() { ": differs, under another build\n" } else { ": differs\n" }
}

#[track_caller]
fn prints(done: Done, texts: &[&str]) -> Done {
    for text in texts {
        assert!(done.stdout.contains(text), "no `{text}` in:\n{}\n{}", done.stdout, done.stderr);
    }
    done
}

#[test]
fn a_run_again_is_the_same_bits_wherever_it_is_stored() {
    let (place, run) = trained();
    let done = place.xrun(&["replay", "latest"]).succeeds().says(&["30 steps, recorded in "]);
    prints(done, &[": the same bits\n", "30 rows of metrics.csv, and the checkpoint of step 30"]);
    assert_eq!(place.runs().len(), 1, "the new run is in a folder of its own");

    place.xrun(&["keep", "latest"]).succeeds();
    let id = run.path.file_name().unwrap().to_str().unwrap().to_owned();
    fs::remove_dir_all(&run.path).unwrap();
    let done = replay(&place, &[&id]).succeeds();
    prints(done, &[": the same bits\n", "30 rows of metrics.csv; no checkpoint is stored"]);
    let again: Vec<_> = fs::read_dir(place.path().join("again/tiny")).unwrap().collect();
    assert_eq!(again.len(), 1, "a run that was asked for stays");
    let done = replay(&place, &[&format!("results/kept/tiny/{id}"), "--json"]).succeeds();
    let found: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((&found["outcome"], &found["difference"]), (&json!("same_bits"), &Value::Null));
}

#[test]
fn a_planted_change_is_named() {
    let (place, run) = trained();
    place.xrun(&["keep", "latest"]).succeeds();

    // A difference in a row of the run, and of its kept copy.
    let row = "metrics.csv, step 7, grad_norm: stored 9.5, new ";
    let metrics = run.path.join("metrics.csv");
    let original = fs::read(&metrics).unwrap();
    plant(&metrics);
    let done = place.xrun(&["replay", "latest"]).ended(3).says(&["1 of 1 replay differs"]);
    let kept = done.stderr.lines().find_map(|line| line.strip_prefix("the new runs are in ")).unwrap();
    assert!(Path::new(kept).join("tiny").is_dir(), "what differs can be looked at");
    fs::remove_dir_all(kept).unwrap();
    prints(done, &[differs(), row]);
    fs::write(&metrics, original).unwrap();
    let object = fs::read_dir(place.path().join("results/kept/objects")).unwrap().map(|e| e.unwrap().path());
    plant(&object.into_iter().find(|path| path.to_string_lossy().contains("metrics-")).unwrap());
    let kept = format!("results/kept/tiny/{}", run.path.file_name().unwrap().to_str().unwrap());
    let done = replay(&place, &[&kept]).ended(3);
    prints(done, &[differs(), row, "was changed since it was kept"]);

    // A difference in a figure that no row has.
    let text = read_summary(&run.path).unwrap().samples[0].text.clone();
    let mut summary: Value = run.json("summary.json");
    summary["samples"][0]["text"] = json!("It was a bright cold day.");
    fs::write(run.path.join("summary.json"), summary.to_string()).unwrap();
    let done = prints(replay(&place, &["latest"]).ended(3), &["samples[0].text: stored \"It was a bright"]);
    assert!(!text.is_empty() && done.stdout.contains(differs()));

    // A difference in the weights: an intact checkpoint with the weights of another seed.
    summary["samples"][0]["text"] = json!(text);
    fs::write(run.path.join("summary.json"), summary.to_string()).unwrap();
    let other = Place::new();
    other.xrun(&["tiny.toml", "training.seed=4"]).succeeds();
    fs::remove_dir_all(run.checkpoints()).unwrap();
    fs::rename(other.run().checkpoints(), run.checkpoints()).unwrap();
    let done = replay(&place, &["latest"]).ended(3);
    prints(done, &[differs(), "checkpoint of step 30: ", " differs first at element 0: "]);
}

#[test]
fn another_build_or_device_is_said_before_and_judged_after() {
    let (place, run) = trained();
    let environment = run.path.join("env.json");
    let recorded: Value = run.json("env.json");
    let with = |change: &dyn Fn(&mut Value)| {
        let mut changed = recorded.clone();
        change(&mut changed);
        fs::write(&environment, changed.to_string()).unwrap();
        replay(&place, &["latest"])
    };
    let other_commit = |environment: &mut Value| environment["build"]["commit"] = json!("0123456789abcdef");
    let said = "commit: recorded 01234567, here ";
    let done = with(&other_commit).succeeds().says(&["this build differs from the recorded one", said]);
    prints(done, &[": the same bits\n", said]);
    plant(&run.path.join("metrics.csv"));
    let done = with(&other_commit).ended(3);
    prints(
        done,
        &[
            ": differs, under another build\n",
            "step 7, grad_norm",
            said,
            "use --build to run the recorded commit",
        ],
    );
    let done = with(&|environment| {
        environment["gpu"] = json!({
            "ordinal": 0, "name": "Zebra 9000", "uuid": null, "architecture": "sm_90a", "memory_bytes": 1,
            "processors": 1, "driver": null, "cuda": null, "nvrtc": null, "cublaslt": null, "topology": null,
        });
    });
    let done = done.succeeds().says(&["recorded on Zebra 9000, which this machine does not have; bits are \
                                       not judged"]);
    prints(
        done,
        &[": not judged\n", "training losses are at most 0 nats/token apart", "device: recorded Zebra 9000"],
    );
    // Only commit hashes are passed to git.
    fs::write(&environment, recorded.to_string()).unwrap();
    edit(&environment, "\"dirty\"", "\"dirty_then\"");
    let mut changed = recorded.clone();
    changed["build"]["commit"] = json!("--help");
    fs::write(&environment, changed.to_string()).unwrap();
    prints(replay(&place, &["latest", "--build"]).ended(1), &[": failed\n", "no commit is recorded"]);
}

#[test]
fn runs_that_ended_otherwise_are_compared_as_far_as_they_go() {
    // Killed after a checkpoint.
    let killed = Place::killed_after(20);
    edit(&killed.run().path.join("summary.json"), "\"running\"", "\"interrupted\"");
    let done = replay(&killed, &["latest"]).succeeds();
    prints(done, &[": the same bits\n", "and the checkpoint of step 20", "ended as interrupted after "]);

    let place = Place::new();
    let wild = ["tiny.toml", "optimizer.lr=10.0", "optimizer.weight_decay=10.0", "training.max_norm=0.0"];
    place.xrun(&wild).ended(1);
    assert_eq!(place.run().summary().status.as_str(), "diverged");
    prints(replay(&place, &["latest"]).succeeds(), &[": the same bits\n"]);
}

#[test]
fn rows_that_are_not_those_of_the_summary_are_nothing_to_compare_with() {
    let (place, run) = trained();
    let metrics = run.path.join("metrics.csv");
    let rows = fs::read_to_string(&metrics).unwrap();
    let refused = |found: &str| {
        let done = replay(&place, &["latest"]).ended(1).says(&["1 of 1 replay failed"]);
        let found = format!("metrics.csv {found}, but summary.json says 30 steps");
        prints(done, &[": failed\n", &found]);
        assert!(!place.path().join("again/tiny").exists(), "nothing is trained for it");
    };
    fs::remove_file(&metrics).unwrap();
    refused("is missing");
    fs::write(&metrics, rows.lines().next().unwrap().to_owned() + "\n").unwrap();
    refused("has no rows");
    let start = rows.find("\n30,").unwrap();
    fs::write(&metrics, &rows[..=start]).unwrap();
    refused("has 29 rows, the last of step 29");
}

#[test]
fn what_cannot_be_run_again_says_why() {
    let place = Place::new();
    replay(&place, &["latest"]).ended(2).says(&["no run `latest`"]);
    place.write("page.md", b"# Empty\n");
    replay(&place, &["page.md"]).ended(2).says(&["page.md has no block"]);
    let text = "Once there was a small cat that sat on a mat. ".repeat(400);
    let corpus = place.write("corpus.txt", text.as_bytes());
    place.xrun(&["tiny.toml", "data.corpus=corpus.txt", "data.tokenizer=byte"]).succeeds();
    prints(replay(&place, &["latest"]).succeeds(), &["the same bits"]);
    fs::remove_file(corpus).unwrap();
    let done = replay(&place, &["latest"]).ended(1).says(&["1 of 1 replay failed"]);
    prints(done, &[": failed\n", "data.corpus is ", "corpus.txt, which does not exist here"]);

    let forked = Place::killed_after(20);
    let id = forked.run().name().to_owned();
    forked.xrun(&["resume", &id, "optimizer.lr=1e-3", "--fork"]).succeeds();
    let fork = forked.runs().into_iter().map(|run| run.name().to_owned()).find(|name| *name != id).unwrap();
    let done = replay(&forked, &[&fork]).ended(1);
    prints(done, &["it is a fork of ", " at step 20, and its recipe alone"]);
    let done = replay(&forked, &[&id, "--timeout", "0.001"]).ended(1);
    prints(done, &[": failed\n"]);
}

/// Settings of both arms that make trials short.
const SHORT: [&str; 4] = [
    "--set=training.steps=24",
    "--set=metrics.warmup=2",
    "--set=checkpoint.interval=0",
    "--set=generation.interval=0",
];

#[test]
fn a_comparison_again_has_the_same_losses_and_a_ratio_held_against_the_interval() {
    let place = Place::new();
    let arguments = ["compare", "tiny.toml", "engine.placement=naive", "--repeats", "2"];
    place.xrun(&[&arguments[..], &SHORT].concat());
    let folder =
        fs::read_dir(place.path().join("results/comparisons/tiny")).unwrap().next().unwrap().unwrap();
    let stored = Experiment::read(&folder.path()).unwrap();
    // Whether the ratio is reproduced depends on how busy the machine is.
    let done = replay(&place, &["comparisons/tiny"]).says(&[": 4 trials, recorded in ", "trial 4 of 4"]);
    let is_reproduced = done.stdout.contains(": reproduced\n");
    assert_eq!(done.code, Some(if is_reproduced { 0 } else { 3 }), "{}", done.stdout);
    let done =
        prints(done, &["losses: the same bits in 4 of 4 trials", "ratio of tokens per second: recorded "]);
    let again = fs::read_dir(place.path().join("again/comparisons/tiny")).unwrap().next().unwrap().unwrap();
    let again = Experiment::read(&again.path()).unwrap();
    assert_eq!((&again.changes, &again.baseline().label), (&stored.changes, &stored.baseline().label));
    let [interval, ratio] = [&stored, &again].map(|one| one.speed().unwrap().interval.unwrap());
    let is_within = (interval.low..=interval.high).contains(&ratio.estimate);
    assert!(
        done.stdout.contains(if is_within { ": within the" } else { ": outside the" }),
        "{}",
        done.stdout
    );
    assert_eq!(is_reproduced, is_within && again.verdict() == stored.verdict(), "{}", done.stdout);

    // One trial of the candidate has other losses.
    let run = stored.runs_in(1).next().unwrap().run.clone().unwrap();
    plant(&place.path().join("results").join(run).join("metrics.csv"));
    let done = replay(&place, &["comparisons/tiny", "--json"]);
    let found: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(found["difference"]["row"]["column"], "grad_norm");
    let says = found["findings"].to_string();
    assert!(says.contains("losses: the same bits in 3 of 4 trials"), "{says}");
    if !is_dirty() {
        assert_eq!((done.code, &found["outcome"]), (Some(3), &json!("differs")));
    }
}

#[test]
fn a_recorded_command_is_run_only_where_that_is_asked_for() {
    let place = Place::new();
    let command = "touch ran; i=0; while [ $i -lt 20 ]; do i=$((i+1)); \
                   echo \"{\\\"step\\\": $i, \\\"tok_s\\\": 1e9, \\\"loss\\\": 3}\"; done";
    let arguments = ["compare", "tiny.toml", "--before-cmd", command, "--repeats", "2"];
    place.xrun(&[&arguments[..], &SHORT].concat()).ended(3);
    fs::remove_file(place.path().join("ran")).unwrap();
    let done = replay(&place, &["comparisons/tiny"]).ended(1);
    prints(done, &[": failed\n", "an arm is the command `touch ran; ", "run with --commands alone"]);
    assert!(!place.path().join("ran").exists());
    let done = replay(&place, &["comparisons/tiny", "--commands"]);
    prints(done, &["losses: the same bits in 2 of 2 trials"]);
    assert!(place.path().join("ran").exists());
}

#[test]
fn everything_that_a_page_shows_is_run_again() {
    let place = Place::new();
    let text = "Once there was a small cat that sat on a mat. ".repeat(400);
    let corpus = place.write("corpus.txt", text.as_bytes());
    place.xrun(&["tiny.toml", "training.steps=6", "metrics.warmup=6"]).succeeds();
    place.xrun(&["keep", "latest"]).succeeds();
    place
        .xrun(&[
            "tiny.toml",
            "training.steps=6",
            "metrics.warmup=6",
            "data.corpus=corpus.txt",
            "data.tokenizer=byte",
        ])
        .succeeds();
    place.xrun(&["keep", "latest"]).succeeds();
    let block = |attributes: &str| format!("<!-- xrun:report {attributes} -->\n<!-- xrun:end -->\n");
    let select = |run: &Run| format!("tiny/{}", run.path.file_name().unwrap().to_str().unwrap());
    let runs: Vec<String> = place.runs().iter().map(select).collect();
    let page = format!(
        "# Page\n\n{}\n{}\n{}",
        block(&format!("kind=\"runs\" select=\"{}\"", runs[0])),
        block(&format!("kind=\"plot\" select=\"{}\"", runs[0])),
        block(&format!("kind=\"plot\" select=\"{}\"", runs[1])),
    );
    place.write("docs/page.md", page.as_bytes());
    let done = replay(&place, &["docs/page.md"]).succeeds().says(&["2 runs to train again, which took "]);
    let lines: Vec<&str> = done.stdout.lines().filter(|line| line.ends_with(": the same bits")).collect();
    let expected: Vec<String> = runs.iter().map(|run| format!("{run}: the same bits")).collect();
    assert_eq!(lines, expected, "each once, in the order of the page");

    // A missing corpus fails only its own run, and so does a block for which nothing is kept.
    fs::remove_file(corpus).unwrap();
    place.write("docs/page.md", (page + &block("kind=\"runs\" select=\"zebra\"")).as_bytes());
    let done = replay(&place, &["docs/page.md"]).ended(1);
    let done = done.says(&["1 of 2 replays failed", "no run `zebra` is kept"]);
    let failed = runs.iter().filter(|run| done.stdout.contains(&format!("{run}: failed"))).count();
    let same = runs.iter().filter(|run| done.stdout.contains(&format!("{run}: the same bits"))).count();
    assert_eq!((failed, same), (1, 1), "{}", done.stdout);
}
