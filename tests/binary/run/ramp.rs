//! A ramp of the batch in a whole run: its rows, and a run that is stopped within the ramp.

use crate::place::Place;
use std::fs;

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
batch_ramp = [[3, 2], [6, 4]]
steps = 10
[lr_scheduler]
warmup_steps = 0
[data]
train_tokens = 8_000
validation_tokens = 600
[generation]
samples = 0
[engine]
threads = 1
device = "cpu"
[metrics]
plots = false
"#;

#[test]
fn rows_count_the_tokens_of_their_steps_and_a_stopped_run_goes_on() {
    let place = Place::new();
    place.write("ramp.toml", RECIPE.as_bytes());
    let plan = place.xrun(&["plan", "ramp.toml"]).succeeds().stdout;
    for line in ["3 steps of 2 sequences in 1 micro-step\n", "3 steps of 4 sequences in 2 micro-steps\n"] {
        assert!(plan.contains(line), "{plan}");
    }
    assert!(plan.contains("10 steps, 128 tokens after the ramp, 800 tokens in all"), "{plan}");
    place.xrun(&["run", "ramp.toml"]).succeeds();
    let run = |place: &Place| {
        let mut runs = xrun::results::find::runs(&place.path().join("results")).unwrap();
        assert_eq!(runs.len(), 1);
        runs.remove(0)
    };
    let whole = run(&place);
    let metrics = fs::read_to_string(whole.join("metrics.csv")).unwrap();
    let column = |text: &str, name: &str| -> Vec<String> {
        let at = text.lines().next().unwrap().split(',').position(|column| column == name).unwrap();
        text.lines().skip(1).map(|line| line.split(',').nth(at).unwrap().to_owned()).collect()
    };
    let tokens = ["32", "64", "96", "160", "224", "288", "416", "544", "672", "800"];
    assert_eq!(column(&metrics, "tokens_seen"), tokens);
    let timing = fs::read_to_string(whole.join("timing.csv")).unwrap();
    let tokens_per_step = [32.0; 3].into_iter().chain([64.0; 3]).chain([128.0; 4]);
    let number = |text: &String| text.parse::<f64>().unwrap();
    let rates =
        column(&timing, "tok_s").iter().filter(|rate| !rate.is_empty()).map(number).collect::<Vec<_>>();
    let times = column(&timing, "step_ms");
    for ((rate, ms), tokens) in rates.iter().zip(times.iter().map(number)).zip(tokens_per_step) {
        assert!((rate * ms / 1e3 / tokens - 1.0).abs() < 1e-6, "{rate} {ms} {tokens}");
    }
    // Within a stage, at its end, and split over another number of ranks.
    for (until, ranks) in [("2", "1"), ("3", "1"), ("5", "2")] {
        let place = Place::new();
        place.write("ramp.toml", RECIPE.as_bytes());
        let (world, local) = (format!("parallelism.world_size={ranks}"), "training.local_batch_size=1");
        let divided: &[&str] = if ranks == "1" { &[] } else { &[&world, local] };
        place.xrun(&[&["run", "ramp.toml", "--until", until], divided].concat()).succeeds();
        place.xrun(&["resume"]).succeeds();
        let resumed = fs::read_to_string(run(&place).join("metrics.csv")).unwrap();
        assert_eq!(column(&resumed, "tokens_seen"), tokens);
        if ranks == "1" {
            assert_eq!(resumed, metrics, "from step {until}");
        }
    }
}

#[test]
fn batches_that_are_no_whole_micro_steps_are_refused() {
    let place = Place::new();
    place.write("ramp.toml", RECIPE.as_bytes());
    let refused = |setting: &str, says: &[&str]| {
        place.xrun(&["run", "ramp.toml", setting]).ended(2).says(says);
    };
    refused(
        "training.batch_ramp=[[3, 3]]",
        &["the batch of 3 sequences up to step 3", "2 per rank · 1 ranks = 2"],
    );
    refused("training.batch_ramp=[[3, 2], [3, 4]]", &["has step 3 after step 3"]);
    refused("training.batch_ramp=[[3, 0]]", &["less than 1"]);
    refused("training.batch_ramp=[3]", &["a number"]);
    refused("training.batch_ramp=[[3]]", &["has a list of 1", "[step, number]"]);
}
