//! `[evaluation]`: a run is scored on tasks, with the scores that `xrun eval` gives its checkpoints.

use crate::place::{Place, Run, UNINTERRUPTED};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use xrun::results::experiment::Experiment;
use xrun::results::rows::{MetricsRow, read};

use super::eval;

const TASKS: [&str; 4] =
    ["tiny.toml", "evaluation.tasks=[\"colors.toml\"]", "evaluation.data=data", "evaluation.interval=10"];

/// The uninterrupted run with tasks.
static SCORED: LazyLock<Place> = LazyLock::new(|| {
    let place = Place::in_build();
    eval::add_task(&place);
    place.xrun(&[&TASKS[..], &["checkpoint.keep=10"]].concat()).succeeds();
    place
});

fn place() -> Place {
    let place = Place::new();
    eval::add_task(&place);
    place
}

fn rows(run: &Run) -> Vec<MetricsRow> {
    read(&run.path.join("metrics.csv")).unwrap()
}

/// Returns the files of the scores in a run, by their paths in it.
fn scores(run: &Run) -> BTreeMap<PathBuf, Vec<u8>> {
    let inside = |path: &Path| path.strip_prefix(&run.path).unwrap().to_owned();
    let files = run.files().into_iter().map(|(path, bytes)| (inside(&path), bytes));
    files.filter(|(path, _)| path.starts_with("evaluation")).collect()
}

/// Asserts that the scores of a step are those that `xrun eval` gives its checkpoint.
#[track_caller]
fn scores_as_eval(place: &Place, run: &Run, task: &str, step: u64, weights: &str) {
    let (number, out, file) = (step.to_string(), format!("eval-{step}-{weights}"), format!("{task}.toml"));
    let own = ["eval", run.name(), "--checkpoint", &number, "--weights", weights, "--out", &out];
    place.xrun(&[&own[..], &["--tasks", &file, "--data", "data"]].concat()).succeeds();
    let folder = format!("evaluation/step-{step:06}{}", if weights == "ema" { "-ema" } else { "" });
    let rows = format!("{task}-0-shot.jsonl");
    let expected = fs::read_to_string(place.path().join(out).join(&rows)).unwrap();
    assert_eq!(run.text(&format!("{folder}/{rows}")), expected, "{task}, step {step}, {weights}");
}

#[test]
fn training_is_the_same_and_scores_are_those_of_the_checkpoints() {
    let (place, plain) = (&*SCORED, UNINTERRUPTED.run());
    let run = place.run();
    let without = |row: &MetricsRow| MetricsRow { further: BTreeMap::new(), ..row.clone() };
    assert_eq!(rows(&run).iter().map(without).collect::<Vec<_>>(), rows(&plain));
    assert_eq!(run.newest().state_hash(), plain.newest().state_hash());
    assert_eq!(run.summary().recipe_hash, plain.summary().recipe_hash);
    for step in [10, 30] {
        scores_as_eval(place, &run, "colors", step, "training");
    }

    let scored: Vec<MetricsRow> = rows(&run).into_iter().filter(|row| !row.further.is_empty()).collect();
    assert_eq!(scored.iter().map(|row| row.step).collect::<Vec<_>>(), [10, 20, 30]);
    let last = scored.last().unwrap();
    let summary = run.summary();
    let task = &summary.tasks["colors"];
    for figure in ["acc", "bits_per_byte"] {
        let value = last.further[&format!("colors/{figure}")];
        assert_eq!(task.figures[figure].last.unwrap().value, value);
        let evaluation: serde_json::Value =
            serde_json::from_str(&run.text("evaluation/step-000030/evaluation.json")).unwrap();
        let figures = evaluation["tasks"][0]["figures"].as_array().unwrap();
        let found = figures.iter().find(|found| found["metric"] == figure).unwrap();
        assert_eq!(found["value"].as_f64().unwrap() as f32, value, "{figure}");
        assert!(evaluation["model"]["hash"].is_null() && evaluation["model"]["step"] == 30);
    }
    assert_eq!((task.items, task.metric.as_str()), (eval::ITEMS.len(), "acc"));
    let listed = place.xrun(&["runs", "colors/acc>=0", "--columns", "colors/acc"]).succeeds().stdout;
    assert!(listed.contains(&format!("{:.4}", last.further["colors/acc"])), "{listed}");
    assert_eq!(place.xrun(&["runs"]).succeeds().stderr.matches("warning").count(), 0);
}

#[test]
fn ranks_share_the_items_and_every_set_of_weights_is_scored() {
    let place = place();
    eval::add_questions(&place, "-");
    let settings =
        ["parallelism.world_size=2", "parallelism.launcher=process", "parallelism.shard=optimizer"];
    let average = ["training.dtype=bf16", "ema.decay=0.9", "ema.evaluate=true", "generation.samples=0"];
    let both = ["tiny.toml", "evaluation.tasks=[\"colors.toml\", \"questions.toml\"]", TASKS[2], TASKS[3]];
    place.xrun(&[&both[..], &settings, &average].concat()).succeeds();
    let run = place.run();
    for task in ["colors", "questions"] {
        scores_as_eval(&place, &run, task, 30, "training");
        scores_as_eval(&place, &run, task, 30, "ema");
    }
    let last = rows(&run).last().unwrap().further.clone();
    for column in ["colors/ema_acc", "questions/exact_match", "questions/ema_exact_match"] {
        assert!(last.contains_key(column), "{column}: {last:?}");
    }
}

/// As after a kill during the evaluation after step 10, when the newest checkpoint is that of step 5: a
/// folder is half written, and one is of a step that comes later.
#[test]
fn a_resume_scores_again_what_was_not_saved() {
    let place = place();
    let finished = SCORED.run();
    let path = place.path().join("results/tiny").join(finished.path.file_name().unwrap());
    crate::place::copy(&finished.path, &path);
    let run = Run { path };
    run.forget_after(5);
    let half = run.path.join("evaluation/step-000010");
    fs::remove_file(half.join("evaluation.json")).unwrap();
    fs::write(half.join("colors-0-shot.jsonl"), "{\"item\":").unwrap();
    fs::rename(run.path.join("evaluation/step-000030"), run.path.join("evaluation/step-000025")).unwrap();
    place.xrun(&["resume"]).succeeds();
    run.ended_as(&finished);
    assert_eq!(scores(&run), scores(&finished));
    assert_eq!(run.summary().tasks, finished.summary().tasks);

    // The same items may lie elsewhere, but others are another measure.
    run.forget_after(25);
    place.write("data/colors/test.jsonl", eval::ITEMS[..3].join("\n").as_bytes());
    place.xrun(&["resume", "evaluation.data=data"]).ended(2).says(&["the files of task colors have hash"]);
}

#[test]
fn what_is_wrong_with_tasks_is_said_before_the_first_step() {
    let place = place();
    let data = "evaluation.data=data";
    let one = |tasks: &str| format!("evaluation.tasks={tasks}");
    let wrong = [eval::ITEMS[0], r#"{"story": "No words", "right": 0}"#].join("\n");
    place.write("wrong/colors/test.jsonl", wrong.as_bytes());
    for (settings, said) in [
        (vec![one("[\"hellaswog\"]"), data.to_owned()], "did you mean hellaswag?"),
        (vec![one("[\"colors.toml\"]")], "set evaluation.data"),
        (vec![one("[\"colors.toml\"]"), "evaluation.data=none".to_owned()], "none is not a folder"),
        (vec![one("[\"colors.toml\"]"), "evaluation.data=wrong".to_owned()], "wrong/colors/test.jsonl:2"),
        (vec![one("colors.toml"), data.to_owned()], "write [\"colors.toml\"]"),
        (vec![one("[\"colors.toml\"]"), data.to_owned(), "evaluation.shots=5".to_owned()], "4 rows"),
    ] {
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        place.xrun(&[&["tiny.toml"], &settings[..]].concat()).ended(2).says(&[said]);
    }
    let tight = ["engine.memory_limit_gib=0.0014", "activation_checkpoint.mode=none"];
    place.xrun(&[&["tiny.toml"], &tight[..]].concat()).succeeds();
    place.xrun(&[&TASKS[..], &tight].concat()).says(&["does not fit"]);
    assert_eq!(place.runs().len(), 1);

    let plan = place.xrun(&[&["plan"], &TASKS[..]].concat()).succeeds().stdout;
    for part in ["task colors: 4 items, 9 requests", "tasks.batch", "score 21x48"] {
        assert!(plan.contains(part), "{part}: {plan}");
    }
}

#[test]
fn a_task_decides_between_runs_and_configurations() {
    let place = place();
    let short = ["--set=training.steps=10", "--set=generation.samples=0", "--json"];
    let set = TASKS[1..].iter().map(|setting| format!("--set={setting}")).collect::<Vec<_>>();
    let set: Vec<&str> = set.iter().map(String::as_str).collect();
    let asked = ["compare", "tiny.toml", "optimizer.lr=0.01", "--on", "colors/acc", "--seeds", "2"];
    let done = place.xrun(&[&asked[..], &short, &set].concat()).succeeds();
    let found: Experiment = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(found.runs.len(), 4);
    assert!(found.runs.iter().all(|run| run.values["colors/acc"].value().is_some()));
    let refused = place.xrun(&[&asked[..4], &["piqa"], &asked[5..], &short, &set].concat()).ended(2);
    refused.says(&["piqa/acc", "is not scored on a task piqa"]);

    let rungs = ["optimizer.lr=1e-3,1e-2,1e-1,1", "sweep.on=colors/bits_per_byte", "sweep.rungs=[10]"];
    let swept = [&["sweep"], &TASKS[..], &rungs, &["training.steps=20", "sweep.eta=2"]].concat();
    let done = place.xrun(&swept).succeeds();
    done.says(&["of the finalists by colors/bits_per_byte"]);
    let bits = |run: &Run, step: u64| {
        let rows = rows(run);
        rows.iter().find(|row| row.step == step).map(|row| row.further["colors/bits_per_byte"])
    };
    let runs: Vec<Run> = place.runs().into_iter().filter(|run| run.summary().steps_planned == 20).collect();
    let (ended, dropped): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(|run| bits(run, 20).is_some());
    assert_eq!((ended.len(), dropped.len()), (2, 2));
    let worst = ended.iter().filter_map(|run| bits(run, 10)).fold(f32::MIN, f32::max);
    let best = dropped.iter().filter_map(|run| bits(run, 10)).fold(f32::MAX, f32::min);
    assert!(worst <= best, "{worst} and {best}");
}
