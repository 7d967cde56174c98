//! Runs that cannot end well: values that are not finite, and plans that do not fit.

use crate::place::{Place, UNINTERRUPTED};
use xrun::checkpoint;
use xrun::results::{Status, Summary};

#[test]
fn a_run_that_diverges_stops_before_the_update() {
    let place = Place::new();
    // Each update multiplies the weights by 1 - 10 · 10.
    let wild = [
        "optimizer.lr=10.0",
        "optimizer.weight_decay=10.0",
        "training.max_norm=0.0",
        "checkpoint.interval=2",
        "metrics.plots=true",
    ];
    let done = place.xrun(&[&["tiny.toml"], &wild[..]].concat()).ended(1);
    let run = place.run();
    let summary = run.summary();
    assert_eq!(summary.status, Status::Diverged);
    let bad = summary.steps + 1;
    assert!(bad > 3, "some checkpoints come before: {}", done.stderr);
    let reason = summary.reason.unwrap();
    assert!(reason.starts_with(&format!("step {bad} was skipped: ")), "{reason}");
    assert!(reason.ends_with("holds NaN") || reason.ends_with("holds inf") || reason.ends_with("holds -inf"));
    done.says(&[&reason, "optimizer.lr", run.path.file_name().unwrap().to_str().unwrap()]);
    let metrics = run.text("metrics.csv");
    assert_eq!(run.rows() as u64, summary.steps);
    assert!(!metrics.contains("NaN") && !metrics.contains("inf"), "{metrics}");
    let saved = run.newest();
    assert_eq!((saved.meta().step, saved.warnings().len()), (summary.steps / 2 * 2, 0));
    assert_eq!(checkpoint::steps(&run.checkpoints()).unwrap().len(), 2);
    assert!(run.path.join("plots/loss-light.svg").exists());
    place.xrun(&["resume"]).ended(2).says(&["no unfinished run"]);
    // The failure is deterministic: the same step, the same tensor.
    place.xrun(&["resume", run.name()]).ended(1).says(&[&reason]);
    assert_eq!(run.text("metrics.csv"), metrics);
}

#[test]
fn a_run_that_ends_worse_than_guessing_says_so() {
    let place = Place::new();
    let wild =
        ["tiny.toml", "--quiet", "optimizer.lr=10.0", "optimizer.weight_decay=0.0", "training.max_norm=0.0"];
    let done = place.xrun(&wild).succeeds();
    let run = place.run();
    let summary = run.summary();
    let guess = f64::ln(summary.uniform_loss.unwrap().exp().round());
    let (training, validation) =
        (summary.train_loss.smoothed.unwrap().loss, summary.val_loss.last.unwrap().loss);
    assert!(training > guess && f64::from(validation) > guess, "{training} {validation}");
    let text = format!("worse than guessing: the training and validation losses are above {guess:.4}, ");
    assert!(done.stdout.contains(&text) && done.stdout.contains("optimizer.lr"), "{}", done.stdout);
    assert!(run.text("log").contains(&text), "{}", run.text("log"));
    // The message is absent for a run that learns, and for one that was stopped before it could.
    let learned = UNINTERRUPTED.run().summary();
    assert_eq!((learned.uniform_loss, learned.worse_than_guessing()), (summary.uniform_loss, None));
    assert_eq!(Summary { status: Status::Interrupted, ..summary }.worse_than_guessing(), None);
}

#[test]
fn what_does_not_fit_leaves_nothing_behind() {
    let place = Place::new();
    let done = place
        .xrun(&["tiny.toml", "engine.memory_limit_gib=0.001", "activation_checkpoint.mode=none"])
        .ended(4);
    done.says(&[
        "does not fit",
        "engine.memory_limit_gib is 1.02 MiB",
        "the largest tensor at the peak is head.logits",
        "training.local_batch_size",
    ]);
    assert!(!place.path().join("results").exists());
}

/// Neither batch nor recompute makes the state smaller, and a batch of one sequence is the smallest.
#[test]
fn what_does_not_fit_is_advised_only_what_helps() {
    let place = Place::new();
    let least = ["tiny.toml", "training.local_batch_size=1", "activation_checkpoint.mode=full"];
    let planned = place.xrun(&[&["plan"], &least[..], &["--json"]].concat()).succeeds().stdout;
    let memory = serde_json::from_str::<serde_json::Value>(&planned).unwrap()["memory"].clone();
    let bytes = |figure: &str| memory[figure].as_f64().unwrap();
    let refused = |recipe: &[&str], limit: f64| {
        let limit = format!("engine.memory_limit_gib={}", limit / f64::from(1 << 30));
        place.xrun(&[recipe, &[&limit]].concat()).ended(4).stderr
    };
    let (state, peak) = (bytes("state_bytes"), bytes("peak_bytes"));
    for recipe in [&least[..], &least[..1]] {
        let said = refused(recipe, state / 2.0);
        assert!(said.contains("nothing fits: the state alone takes ") && !said.contains("Smaller"), "{said}");
    }
    let said = refused(&least, f64::midpoint(state, peak));
    assert!(said.contains("Smaller: training.seq_len, or the model"), "{said}");
    let said = refused(&least[..2], f64::midpoint(state, peak));
    assert!(!said.contains("local_batch_size"), "{said}");
}

/// A plan that does not fit here may be meant for another machine; a run reports the same and ends.
#[test]
fn a_plan_says_whether_a_run_would_begin_here() {
    let place = Place::new();
    let line = |recipe: &[&str]| {
        let report = place.xrun(&[&["plan"], recipe].concat()).succeeds().stdout;
        let lines = report.lines().filter_map(|line| line.strip_prefix("On this machine  "));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        assert!(lines.len() <= 1, "{report}");
        lines.into_iter().next()
    };
    let fits = line(&["tiny.toml"]).unwrap();
    assert!(fits.starts_with("fits: the plan needs ") && fits.contains(" memory is "), "{fits}");
    assert_eq!(line(&["tiny.toml", "--on", "h200"]), None);
    assert_eq!(line(&["tiny.toml", "engine.memory_limit_gib=1"]), None, "the limit has its own lines");

    let huge = [
        "tiny.toml",
        "training.local_batch_size=1048576",
        "model.n_layers=64",
        "activation_checkpoint.mode=none",
        "engine.batching=batched",
    ];
    let refused = line(&huge).unwrap();
    let figures = refused.split(", and ").next().unwrap();
    assert!(figures.starts_with("does not fit: the plan needs "), "{refused}");
    place.xrun(&huge).ended(4).says(&[figures, "Smaller: training.local_batch_size"]);
}

/// An error at the end would waste the whole training.
#[test]
fn a_prompt_beyond_the_context_is_refused_at_once() {
    let place = Place::new();
    let long = format!("generation.prompt='{}'", "long ".repeat(40));
    place.xrun(&["tiny.toml", "generation.samples=1", &long]).ended(2).says(&[
        "the prompt takes",
        "training.seq_len = 32",
        "shorten generation.prompt",
    ]);
    assert!(place.runs().is_empty());
}

/// A profile measures more steps than a short recipe trains.
#[test]
fn a_short_recipe_is_profiled_too() {
    let place = Place::new();
    let short = ["tiny.toml", "training.steps=2", "lr_scheduler.warmup_steps=1"];
    let table = place.xrun(&[&["profile"], &short[..]].concat()).succeeds().stdout;
    assert!(table.contains("adamw"), "{table}");
    assert!(
        table.contains("GB/s") && !table.contains("budget ms"),
        "no limits are measured on a CPU: {table}"
    );
    place.xrun(&[&["ops", "bench"], &short[..], &["--steps", "3"]].concat()).succeeds();
}

#[test]
fn what_needs_a_gpu_says_so() {
    let place = Place::new();
    let on_cpu = ["tiny.toml", "engine.device=cpu"];
    let refused = |arguments: &[&str], text: &str| {
        place.xrun(arguments).ended(2).says(&[text]);
    };
    refused(&[&["ops", "tune"], &on_cpu[..]].concat(), "tuned on a GPU, but this plan is for the CPU");
    refused(&[&["ops", "bench", "--energy"], &on_cpu[..]].concat(), "measured on a GPU");
    refused(&["ops", "check", "--long"], "add --device cuda");
    refused(&["ops", "attention", "16,1024,12,12"], "such as 16,1024,12,12,64");
}
