//! The results folder, and what a run prints while it goes on.

use crate::place::{Place, RECIPE, Run, STEPS, UNINTERRUPTED};
use std::collections::BTreeSet;
use xrun::machine::Machine;
use xrun::recipe;
use xrun::results::Status;
use xrun::results::rows::{MetricsRow, Phase, TimingRow, read};

fn names(run: &Run, folder: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(run.path.join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_run_leaves_what_was_promised_and_no_more() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "checkpoint.keep=10", "metrics.plots=true"]).succeeds();
    let run = place.run();
    let files = [
        ".gitignore",
        "checkpoint",
        "env.json",
        "lock",
        "log",
        "metrics.csv",
        "origin.json",
        "plots",
        "recipe.toml",
        "resolved.toml",
        "summary.json",
        "timing.csv",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names(&run, ""), set(&files));
    let plots = ["loss", "throughput", "schedule"].into_iter().flat_map(|plot| {
        ["light", "dark"]
            .into_iter()
            .flat_map(move |theme| ["svg", "png"].map(|e| format!("{plot}-{theme}.{e}")))
    });
    assert_eq!(names(&run, "plots"), plots.collect());
    let saves: Vec<String> = (1..=6).map(|n| format!("step-{:06}", 5 * n)).collect();
    let checkpoints = saves.iter().cloned().chain(["latest".to_owned()]).collect();
    assert_eq!(names(&run, "checkpoint"), checkpoints);
    let files = ["manifest.json", "model.safetensors", "optimizer.safetensors"];
    assert_eq!(names(&run, "checkpoint/step-000030"), set(&files));
    assert_eq!(run.text("checkpoint/latest"), "step-000030\n");
    let recipe = run.text("recipe.toml");
    assert!(recipe.contains("\nlr = 0.003  # tiny.toml:"), "{recipe}");
    let written = RECIPE.lines().map(|line| format!("# {line}").trim_end().to_owned() + "\n");
    assert!(recipe.ends_with(&written.collect::<String>()), "the file as written follows: {recipe}");
    assert!(run.file("lock").is_empty(), "nobody holds the folder");
    for name in names(&run, "plots").iter().filter(|name| name.ends_with("png")) {
        assert!(run.file(&format!("plots/{name}")).starts_with(b"\x89PNG\r\n"), "{name}");
    }
}

#[test]
fn the_resolved_recipe_is_the_run() {
    let place = Place::new();
    let text = "A cat and a dog sat by the door. ".repeat(100);
    place.write("texts/cats.txt", text.as_bytes());
    place.write(
        "recipes/tiny.toml",
        format!("{RECIPE}\n[data]")
            .replace("[data]\ntrain", "[data]\ncorpus = \"../texts/cats.txt\"\ntokenizer = \"byte\"\ntrain")
            .trim_end_matches("\n[data]")
            .as_bytes(),
    );
    place.xrun(&["recipes/tiny.toml", "training.steps=4"]).succeeds();
    let run = place.run();
    let recipe =
        recipe::load(&run.path.join("resolved.toml"), &[], std::iter::empty(), &Machine::none()).unwrap();
    let summary = run.summary();
    assert_eq!(recipe.hash(), summary.recipe_hash);
    assert_eq!(run.newest().meta().recipe_hash, summary.recipe_hash);
    assert!(summary.run.contains(&summary.recipe_hash[..8]));
    assert_eq!(recipe.values().training.steps, 4);
    // Training elsewhere from the resolved recipe gives the same run.
    let elsewhere = Place::new();
    elsewhere.write("tiny.toml", &run.file("resolved.toml"));
    elsewhere.xrun(&["tiny.toml"]).succeeds();
    elsewhere.run().ended_as(&run);
    assert_eq!(elsewhere.run().summary().recipe_hash, summary.recipe_hash);
}

#[test]
fn a_rerun_and_any_number_of_threads_give_the_same_bytes() {
    for change in [&[][..], &["engine.threads=3"], &["engine.placement=caching", "engine.poison=true"]] {
        let place = Place::new();
        place.xrun(&[&["tiny.toml"], change].concat()).succeeds();
        place.run().ended_as_uninterrupted();
    }
}

#[test]
fn the_summary_follows_from_the_rows() {
    let run = UNINTERRUPTED.run();
    let summary = run.summary();
    let metrics: Vec<MetricsRow> = read(&run.path.join("metrics.csv")).unwrap();
    let timing: Vec<TimingRow> = read(&run.path.join("timing.csv")).unwrap();
    assert_eq!((summary.status, summary.reason.as_deref()), (Status::Ok, None));
    assert_eq!((summary.steps, summary.steps_planned), (STEPS, STEPS));
    assert_eq!(metrics.iter().map(|row| row.step).collect::<Vec<_>>(), (1..=STEPS).collect::<Vec<_>>());
    assert!(metrics.iter().all(|row| row.tokens_seen == row.step * 4 * 32));
    let evaluated: Vec<u64> =
        metrics.iter().filter(|row| row.val_loss.is_some()).map(|row| row.step).collect();
    assert_eq!(evaluated, [6, 12, 18, 24, 30]);
    let last = metrics.last().unwrap();
    assert_eq!(summary.train_loss.last.unwrap().loss, last.loss);
    // The reported training loss covers a tenth of the steps, as the last line says.
    let tenth: Vec<f64> = metrics[27..].iter().map(|row| f64::from(row.loss)).collect();
    let mean = tenth.iter().sum::<f64>() / 3.0;
    let deviation = (tenth.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
    let smoothed = summary.train_loss.smoothed.unwrap();
    assert_eq!((smoothed.steps, smoothed.loss), (3, mean));
    assert!((smoothed.deviation.unwrap() - deviation).abs() < 1e-12 && deviation > 0.0);
    let part = summary.val_part.unwrap();
    assert_eq!((part.batches, part.of), (2, 5));
    assert!(xrun::results::progress::result(&summary).contains(" nats per token over 2 of 5 batches: "));
    let headline = format!("training loss {mean:.4} (mean of the last 3 steps), validation loss ");
    assert!(xrun::results::progress::result(&summary).contains(&headline));
    assert_eq!(summary.val_loss.last.unwrap().loss, last.val_loss.unwrap());
    let best = metrics.iter().map(|row| row.loss).fold(f32::INFINITY, f32::min);
    assert_eq!(summary.train_loss.best.unwrap().loss, best);
    assert!(best < metrics[0].loss - 0.5, "it learns");
    let floor = summary.floor.unwrap();
    assert!(floor > 0.5 && floor < 2.0 && f64::from(last.val_loss.unwrap()) > floor);
    assert_eq!(summary.val_loss_over_floor, Some(f64::from(last.val_loss.unwrap()) / floor));
    assert_eq!(summary.samples.iter().map(|sample| sample.step).collect::<Vec<_>>(), [10, 20, 30]);
    assert_eq!(summary.mfu_pct, None);
    assert!(summary.notes.is_empty());

    let steps = |phase: Phase| -> Vec<u64> {
        timing.iter().filter(|row| row.phase == phase).map(|row| row.step).collect()
    };
    assert_eq!(steps(Phase::Warmup), (1..=5).collect::<Vec<_>>());
    assert_eq!(steps(Phase::Train), (6..=STEPS).collect::<Vec<_>>());
    assert_eq!(steps(Phase::Eval), [6, 12, 18, 24, 30]);
    // All but the last are written in the background.
    assert_eq!(steps(Phase::Snapshot), [5, 10, 15, 20, 25]);
    assert_eq!(steps(Phase::Save), [30]);
    assert_eq!(steps(Phase::Sample), [10, 20, 30]);
    let mut steady: Vec<f64> = timing
        .iter()
        .filter(|row| row.phase == Phase::Train && row.step % 5 != 0 && row.step % 6 != 0)
        .filter(|row| row.written_step.is_none())
        .map(|row| row.step_ms)
        .collect();
    steady.sort_by(f64::total_cmp);
    let state = summary.steady_state.unwrap();
    // The speed of the disk determines how many steps have a write beside them.
    assert_eq!((state.steps, state.excluded_warmup), (steady.len(), 5));
    let middle = |of: &[f64]| (of[(of.len() - 1) / 2] + of[of.len() / 2]) / 2.0;
    match state.step_ms {
        Some(spread) => assert!((spread.median - middle(&steady)).abs() < 1e-9),
        None => assert!(steady.is_empty()),
    }
    assert!(state.rule.contains("without the first 5"));
    assert!(summary.wall_s.unwrap() >= timing.iter().map(|row| row.step_ms).sum::<f64>() / 1e3);
}

#[test]
fn the_environment_is_told() {
    let run = UNINTERRUPTED.run();
    let env = run.json("env.json");
    assert_eq!(env["build"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(env["cpu"]["threads"], 1);
    assert!(env["build"]["commit"].is_null() || env["build"]["commit"].as_str().unwrap().len() == 40);
    let build = &env["build"];
    let known = [&build["rustc"], &build["target"], &build["profile"], &build["crates"]["pulp"]];
    for of in known.into_iter().chain([&build["crates"]["tokenizers"], &env["cpu"]["instructions"]]) {
        assert!(of.is_string(), "{env}");
    }
    assert_eq!(env["command"][0], "xrun", "where the program lies says nothing of a run");
    assert_eq!(env["command"][2], "checkpoint.keep=10");
}

/// Resident memory above that at the start matches the plan, for a model that is large compared with
/// everything else.
#[test]
#[cfg(target_os = "linux")]
fn memory_is_as_planned() {
    let place = Place::new();
    place.write("text.txt", "The sun was high and the lake was calm.\n".repeat(400).as_bytes());
    let large = [
        "tiny.toml",
        "data.corpus=text.txt",
        "data.tokenizer=gpt2",
        "model.dim=128",
        "model.n_heads=4",
        "training.steps=2",
        "training.local_batch_size=8",
        "validation.steps=1",
        "checkpoint.interval=0",
        "generation.samples=0",
    ];
    place.xrun(&large).succeeds();
    let memory = place.run().summary().memory;
    let planned = memory.planned_bytes.unwrap();
    assert!(planned > 200 << 20);
    assert_eq!(memory.allocated_bytes, Some(planned));
    let resident = memory.peak_rss_bytes.unwrap() - memory.baseline_rss_bytes.unwrap();
    let tolerance = planned / 20 + (64 << 20);
    assert!(resident.abs_diff(planned) <= tolerance, "{resident} bytes resident, {planned} planned");
}

#[test]
fn json_lines_are_all_that_stdout_carries() {
    let place = Place::new();
    let done = place.xrun(&["tiny.toml", "--json", "training.steps=12"]).succeeds();
    let lines: Vec<serde_json::Value> =
        done.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
    assert_eq!((of("step"), of("finish")), (4, 1), "{}", done.stdout);
    assert_eq!(of("step") + of("finish") + of("note") + 2, lines.len());
    let version = env!("CARGO_PKG_VERSION");
    let first =
        serde_json::json!({"event": "stream", "stream": "xrun", "version": 1, "xrun_version": version});
    assert_eq!((&lines[0], &lines[1]["event"]), (&first, &"begin".into()));
    assert_eq!(lines.last().unwrap()["summary"], place.run().json("summary.json"));
    let stopped = place.xrun(&["tiny.toml", "--json", "optimizer.lr=-1.0"]).ended(2);
    let (begun, error) = stopped.stdout.split_once('\n').expect(&stopped.stdout);
    assert_eq!(serde_json::from_str::<serde_json::Value>(begun).expect(begun), first);
    let error: serde_json::Value = serde_json::from_str(error).expect(error);
    assert_eq!((&error["event"], &error["kind"]), (&"error".into(), &"usage".into()));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("optimizer.lr") && stopped.stderr.contains(message), "{message}");
}

#[test]
fn a_pipe_gets_plain_lines_and_quiet_means_quiet() {
    let place = Place::new();
    let done = place.xrun(&["tiny.toml", "training.steps=6"]).succeeds();
    let run = place.run().path;
    let name = run.file_name().unwrap().to_string_lossy();
    let place_of_run = format!("results in results/tiny/{name}");
    assert!(done.stdout.starts_with("ok: 6 of 6 steps"), "{}", done.stdout);
    assert_eq!(done.stdout.lines().last(), Some(place_of_run.as_str()));
    assert!(!done.stderr.contains(['\r', '\x1b']), "{:?}", done.stderr);
    let (before, _) = done.stderr.split_once("step 1/6  loss ").expect("the first step");
    let needs = before.lines().find(|line| line.contains("disk: about ")).expect(before);
    let log = place.run().text("log");
    assert!(log.contains(needs), "{log}");
    assert_eq!(done.stderr.matches("evaluating").count(), 0, "{}", done.stderr);
    done.says(&["writing to results/tiny/", "step 6/6  loss ", "  val ", "  floor "]);
    // All steps: even six of them are still worse than guessing, which a line says.
    let quiet = place.xrun(&["tiny.toml", "--quiet"]).succeeds();
    assert_eq!(quiet.stderr, "");
    assert!(quiet.stdout.starts_with("ok: 30 of 30 steps"), "{}", quiet.stdout);
    assert_eq!(quiet.stdout.lines().count(), 3);
    assert_eq!(place.runs().len(), 2);
}

#[test]
fn a_run_that_only_measures_saves_nothing() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "checkpoint.keep=0", "training.steps=12"]).succeeds();
    let run = place.run();
    assert_eq!(run.summary().status, Status::Ok);
    assert_eq!(names(&run, "checkpoint"), set(&[]));
    let timing: Vec<TimingRow> = read(&run.path.join("timing.csv")).unwrap();
    assert!(timing.iter().all(|row| row.phase != Phase::Save));
    let metrics: Vec<MetricsRow> = read(&run.path.join("metrics.csv")).unwrap();
    assert_eq!(metrics.len(), 12);
}
