//! Through the binary: options, exit codes, streams.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn xrun(line: &str) -> assert_cmd::assert::Assert {
    let mut command = Command::cargo_bin("xrun").expect("the binary");
    command.env_clear().args(line.split_whitespace()).assert()
}

#[test]
fn a_plan_that_fits_is_on_stdout_alone() {
    xrun("plan v8-dim1024 --on rtx5090,h200")
        .success()
        .stderr("")
        .stdout(contains("226,494,592").and(contains("On rtx5090")).and(contains("On h200")));
}

#[test]
fn a_plan_that_does_not_fit_is_reported_and_exits_4() {
    xrun("plan v8-dim1024 training.local_batch_size=512 activation_checkpoint.mode=none --on rtx4090")
        .code(4)
        .stdout(contains("does not fit").and(contains("activation_checkpoint.mode=full")))
        .stderr(contains("more than rtx4090"));
    xrun("plan quickstart engine.memory_limit_gib=0.01").code(4).stdout(contains("engine.memory_limit_gib"));
    xrun("plan v8-dim1024 --fit training.local_batch_size engine.memory_limit_gib=1").code(4);
}

#[test]
fn overrides_and_options_come_in_any_order() {
    for line in [
        "plan quickstart training.steps=7 lr_scheduler.warmup_steps=0 --json",
        "plan --json quickstart --training.steps=7 --on=h200 --lr_scheduler.warmup_steps=0",
    ] {
        let output = xrun(line).success().stderr("").get_output().stdout.clone();
        let json: serde_json::Value = serde_json::from_slice(&output).expect("JSON");
        assert_eq!(json["training"]["steps"], 7);
        assert_eq!(json["recipe"], "quickstart");
        assert!(json["training"]["floor"].as_f64().expect("known for stories") > 0.5);
    }
}

#[test]
fn a_recipe_for_a_gpu_is_planned_without_one() {
    let cuda = "engine.device=cuda training.dtype=tf32 engine.cuda_graphs=true";
    xrun(&format!("plan v8-dim1024 {cuda}")).code(2).stdout("").stderr(contains("engine.device"));
    xrun(&format!("plan v8-dim1024 {cuda} --on h200")).success().stdout(contains("of tf32"));
}

#[test]
fn wrong_requests_exit_2_and_say_what_is_right() {
    xrun("plan quickstart --on rtx509").code(2).stdout("").stderr(contains("did you mean rtx5090?"));
    xrun("plan quickstart --fit model.dim --on h200").code(2).stderr(contains("training.local_batch_size"));
    xrun("plan quickstart --fit training.local_batch_size --on h200 engine.batching=looped")
        .code(2)
        .stderr(contains("looped"));
    xrun("plan quickstart --program=bogus").code(2).stderr(contains("step_end"));
    xrun("plan quickstart model.dims=3").code(2).stderr(contains("did you mean model.dim?"));
}

#[test]
fn fit_prints_a_table_or_json() {
    xrun("plan dim384 --fit local_batch_size --on rtx4090").code(2);
    xrun("plan dim384 --fit training.local_batch_size --on rtx4090")
        .success()
        .stderr("")
        .stdout(contains("selective").count(2).and(contains("bf16").count(4)));
    // Without a device, on the machine that it runs on.
    xrun("plan dim384 --fit training.local_batch_size --on cpu")
        .code(2)
        .stderr(contains("the memory of \"cpu\" is not known; set engine.memory_limit_gib"));
    xrun("plan dim384 --fit training.local_batch_size").success().stdout(contains("this machine's memory"));
    let run = xrun("plan dim384 --fit training.local_batch_size --on rtx4090 --json").success();
    let json: serde_json::Value = serde_json::from_slice(&run.get_output().stdout).expect("JSON");
    assert_eq!(json["tables"][0]["rows"].as_array().expect("rows").len(), 8);
}

#[test]
fn explain_names_the_layer_of_every_key() {
    let mut command = Command::cargo_bin("xrun").expect("the binary");
    let run = command
        .env_clear()
        .env("XRUN__TRAINING__SEED", "5")
        .args(["plan", "v9-full-stack", "--explain", "optimizer.lr=1e-4"])
        .assert()
        .success();
    let text = String::from_utf8_lossy(&run.get_output().stdout).into_owned();
    let line = |key: &str| text.lines().find(|l| l.starts_with(key)).unwrap_or_default().to_owned();
    assert!(line("training.seed").ends_with("XRUN__TRAINING__SEED"));
    assert!(line("optimizer.lr ").ends_with("command line: optimizer.lr=1e-4"));
    assert!(line("model.dropout").contains("built-in:v9-full-stack:"));
    assert!(line("model.dim ").contains("built-in:dim768:"));
    assert!(line("engine.poison").ends_with("default"));
    assert_eq!(text.lines().count(), 1 + xrun::recipe::KEYS.iter().filter(|key| !key.is_nested()).count());
}

#[test]
fn programs_are_listed_whole_or_one() {
    xrun("plan quickstart --program")
        .success()
        .stdout(contains("program step_end").and(contains("program evaluate")));
    xrun("plan quickstart --program=step_end")
        .success()
        .stdout(contains("adamw").and(contains("program evaluate").not()));
}

#[test]
fn the_text_of_a_model_is_printed_with_what_its_lines_take() {
    let tiny = "plan quickstart model.dim=32 model.n_layers=2 model.ffn_dim=64";
    let shown =
        xrun(&format!("{tiny} --model --on h200,rtx4090")).success().stderr("").get_output().stdout.clone();
    let shown = String::from_utf8(shown).expect("UTF-8");
    let row = |start: &str| {
        let rows = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        rows.into_iter()
            .find(|row| row.starts_with(start))
            .unwrap_or_else(|| panic!("no {start} in\n{shown}"))
    };
    assert_eq!(row("LINE"), "LINE MODEL BLOCKS PARAMETERS FLOPS KEPT MOVED MS h200 MS rtx4090");
    assert_eq!(row("1 "), "1 embed:");
    // 2 blocks with matrices of 96 × 32, 16 sequences of 128 tokens.
    let qkv =
        "14 qkv = linear(normed, q_width, kv_width, kv_width, bias = model.bias) 2 6,144 75.50 M 1.50 MiB";
    assert!(row("14 ").starts_with(qkv), "{shown}");
    assert!(row("all ").split(' ').count() >= 8 && row("rest ").contains("MiB"), "{shown}");
    // Without a cache folder, the speed of this CPU is not measured.
    xrun(&format!("{tiny} engine.device=cpu --model"))
        .success()
        .stdout(contains("No time is predicted: the speed of the CPU is unknown.").and(contains("MS").not()));
    let json = xrun(&format!("{tiny} model.definition=qwen3 --model --json --on h200")).success();
    let json: serde_json::Value = serde_json::from_slice(&json.get_output().stdout).expect("JSON");
    let lines = json["lines"].as_array().expect("lines");
    let sum = lines.iter().chain([&json["rest"]]).map(|costs| costs["seconds"][0].as_f64().expect("seconds"));
    assert!((sum.sum::<f64>() / json["total"]["seconds"][0].as_f64().expect("seconds") - 1.0).abs() < 1e-9);
    assert_eq!((&json["on"][0], &json["total"]["parameters"]), (&"h200".into(), &total(tiny)));
    xrun("plan quickstart --model --program").code(2);
    xrun("plan quickstart --model --explain").code(2);
}

/// Returns the number of parameters in the report of a plan with the text of Qwen3.
fn total(plan: &str) -> serde_json::Value {
    let report = xrun(&format!("{plan} model.definition=qwen3 --json --on h200")).success();
    let report: serde_json::Value = serde_json::from_slice(&report.get_output().stdout).expect("JSON");
    report["parameters"]["total"].clone()
}

/// Heads of 64 columns at 1,024 tokens: warpgroups multiply on an H200, warps elsewhere.
#[test]
fn a_program_for_a_gpu_names_its_kernels() {
    let program = "plan dim768 model.head_dim=64 training.seq_len=1024 --program=evaluate";
    let warpgroups = contains("kernels flash_attention_wgmma\n");
    xrun(&format!("{program} --on h200")).success().stdout(warpgroups.clone());
    xrun(&format!("{program} --on a100-80"))
        .success()
        .stdout(warpgroups.not().and(contains("kernels flash_attention\n")));
    xrun(program).success().stdout(contains("kernels").not());
}
