//! Lengths as budgets of tokens, model FLOPs or time: the steps that they give, in plans, runs, resumes,
//! sweeps and comparisons, and what is refused.

use crate::place::Place;
use xrun::recipe::StoredKeys;

/// A step has 32 tokens during the ramp, then 128.
const RECIPE: &str = r#"
[model]
dim = 16
n_layers = 1
n_heads = 2
ffn_dim = 32
[training]
seq_len = 16
local_batch_size = 2
global_batch_size = 8
batch_ramp = [[3, 2]]
steps = 1000
[lr_scheduler]
warmup_ratio = 0.5
[data]
train_tokens = 8_000
validation_tokens = 600
[validation]
interval = 2
steps = 1
[checkpoint]
interval = 1
[generation]
samples = 0
[engine]
threads = 1
device = "cpu"
[metrics]
plots = false
"#;

fn place() -> Place {
    let place = Place::new();
    place.write("tiny.toml", RECIPE.as_bytes());
    place
}

fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(&format!("{key} = ")))?;
    line.split_once(" = ").map(|(_, value)| value)
}

/// The model FLOPs of a token of the recipe, from a plan.
fn flops_per_token(place: &Place) -> f64 {
    let plan = place.xrun(&["plan", "tiny.toml", "--json"]).succeeds().stdout;
    let plan: serde_json::Value = serde_json::from_str(&plan).expect("JSON");
    plan["flops"]["per_token"].as_f64().expect("FLOPs")
}

#[test]
fn a_budget_of_tokens_or_flops_is_the_run_of_as_many_steps() {
    let by_steps = place();
    // 3 · 32 + 5 · 128 = 736 tokens.
    by_steps.xrun(&["tiny.toml", "training.steps=8"]).succeeds();
    let expected = by_steps.run();
    let flops = format!("training.until={}flops", flops_per_token(&by_steps) * 700.0);
    for budget in ["training.until=700tokens", &flops] {
        let place = place();
        let plan = place.xrun(&["plan", "tiny.toml", budget]).succeeds().stdout;
        assert!(plan.contains("Training  8 steps") && plan.contains(": 8 steps\n"), "{budget}: {plan}");
        place
            .xrun(&["tiny.toml", budget, "--until", "5"])
            .succeeds()
            .says(&["training.until = ", ": 8 steps"]);
        place.xrun(&["resume"]).succeeds();
        let run = place.run();
        assert_eq!(run.text("metrics.csv"), expected.text("metrics.csv"), "{budget}");
        let resolved = run.text("resolved.toml");
        assert_eq!(field(&resolved, "steps"), Some("8"), "{resolved}");
        assert!(field(&resolved, "until").is_some(), "{resolved}");
        assert_eq!(run.summary().steps_planned, 8);
        // Both files of the run are recipes of the same run, wherever they lie.
        for file in ["resolved.toml", "recipe.toml"] {
            place.write("copy.toml", run.text(file).as_bytes());
            let plan = place.xrun(&["plan", "copy.toml"]).succeeds().stdout;
            assert!(plan.contains("Training  8 steps"), "{budget} {file}: {plan}");
        }
        let hashes = StoredKeys::parse(&resolved).expect("a resolved recipe").hashes();
        assert!(hashes.contains(&run.summary().recipe_hash), "{hashes:?}");
        // A fork has another length.
        place.xrun(&["resume", run.name(), "--fork", "training.steps=9"]).succeeds();
    }
}

#[test]
fn ranks_as_processes_find_the_same_steps() {
    let place = place();
    let flops = format!("training.until={}flops", flops_per_token(&place) * 700.0);
    let two = ["training.local_batch_size=1", "parallelism.world_size=2", "parallelism.launcher=process"];
    let processes = [&["tiny.toml", flops.as_str()][..], &two].concat();
    place.xrun(&processes).succeeds();
    assert_eq!(place.run().summary().steps, 8);
    let wrong = [&processes[..], &["training.steps=9"]].concat();
    place.xrun(&wrong).ended(2).says(&["the length is set twice"]);
}

#[test]
fn a_time_is_measured_once_and_recorded() {
    let place = place();
    let arguments = ["tiny.toml", "training.until=1s", "checkpoint.interval=0"];
    place.xrun(&[&arguments[..], &["--until", "2"]].concat()).succeeds().says(&["timed before the run"]);
    let run = place.run();
    let steps = field(&run.text("resolved.toml"), "steps").expect("steps").replace('_', "");
    let planned = run.summary().steps_planned;
    assert_eq!(steps, planned.to_string());
    let resumed = place.xrun(&["resume"]).succeeds();
    assert!(!resumed.stderr.contains("timed before the run"), "{}", resumed.stderr);
    let run = place.run();
    assert_eq!((run.summary().steps, run.rows() as u64), (planned, planned));
    // The same curve as a run of as many steps.
    let by_steps = self::place();
    by_steps.xrun(&["tiny.toml", &format!("training.steps={steps}"), "checkpoint.interval=0"]).succeeds();
    assert_eq!(run.text("metrics.csv"), by_steps.run().text("metrics.csv"));
    // The resolved recipe is not timed again. Elsewhere, nothing says that the steps were measured.
    let resolved = format!("{}/resolved.toml", run.name());
    let plan = place.xrun(&["plan", &resolved]).succeeds().stdout;
    assert!(plan.replace(',', "").contains(&format!("training.until = 1s: {steps} steps")), "{plan}");
    place.write("copy.toml", run.text("resolved.toml").as_bytes());
    place.xrun(&["plan", "copy.toml"]).ended(2).says(&["the length is set twice"]);
    place.xrun(&["replay", run.name()]).succeeds();
}

#[test]
fn a_sweep_over_sizes_has_equal_compute() {
    let place = place();
    let flops = format!("training.until={}flops", flops_per_token(&place) * 700.0);
    place.xrun(&["sweep", "tiny.toml", &flops, "model.n_layers=1,3"]).succeeds();
    let mut compute = Vec::new();
    for run in place.runs() {
        let summary = run.json("summary.json");
        let tokens = (summary["steps"].as_f64().expect("steps") - 3.0) * 128.0 + 96.0;
        compute.push((summary["steps"].as_u64().expect("steps"), tokens));
    }
    compute.sort_by_key(|(steps, _)| *steps);
    assert_eq!(compute.len(), 2);
    assert!(compute[0].0 < compute[1].0, "{compute:?}");
    // The same sweep again has nothing to do.
    place.xrun(&["sweep", "tiny.toml", &flops, "model.n_layers=1,3"]).succeeds();
    assert_eq!(place.runs().len(), 2);
}

#[test]
fn budgets_that_cannot_be_trained_are_refused_by_name() {
    let place = place();
    let refused = |arguments: &[&str], says: &[&str]| place.xrun(arguments).ended(2).says(says);
    for budget in ["300M", "20minutes", "3epochs", "100steps", "-1tokens", "300mtokens", "1.5tokens", ""] {
        let setting = format!("training.until={budget}");
        refused(&["tiny.toml", &setting], &["training.until cannot be", "300Mtokens", "1e17flops"]);
    }
    refused(&["tiny.toml", "training.until=31tokens"], &["31tokens is less than one step", "32 tokens"]);
    refused(&["tiny.toml", "training.until=10flops"], &["10flops is less than one step", "32 tokens"]);
    refused(&["tiny.toml", "training.until=9e15tokens"], &["more than 100,000,000 steps"]);
    refused(&["tiny.toml", "training.until=1e30flops"], &["more than 100,000,000 steps"]);
    refused(&["tiny.toml", "training.until=1e-9s"], &["less than one step"]);
    for budget in ["700tokens", "1e9flops", "1s"] {
        let setting = format!("training.until={budget}");
        let says = ["the length is set twice", "training.steps is 9"];
        refused(&["tiny.toml", &setting, "training.steps=9"], &says);
    }
    refused(
        &["tiny.toml", "training.until=700tokens", "lr_scheduler.warmup_steps=9"],
        &["does not end within 8"],
    );
    refused(&["plan", "tiny.toml", "training.until=1s"], &["`xrun run` times them"]);
    refused(
        &["tiny.toml", "training.until=1s", "parallelism.world_size=2", "training.local_batch_size=1"],
        &["one rank"],
    );
    refused(&["tiny.toml", "training.until=1s", "checkpoint.resume=auto"], &["xrun resume RUN"]);
    refused(
        &["compare", "tiny.toml", "training.max_norm=0.5", "--set=training.until=1s"],
        &["`xrun run` times them"],
    );
    assert!(place.runs().is_empty());
}
