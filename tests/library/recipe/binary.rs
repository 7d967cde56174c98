//! The subcommands that are about recipes: schema, ls, init.

use assert_cmd::Command;
use predicates::prelude::*;
use std::fs;

fn xrun() -> Command {
    let mut command = Command::cargo_bin("xrun").expect("the binary");
    command.env_clear();
    command
}

#[test]
fn schema_prints_json_and_nothing_else() {
    let output = xrun().arg("schema").assert().success().stderr("").get_output().stdout.clone();
    let schema: serde_json::Value = serde_json::from_slice(&output).expect("JSON");
    assert_eq!(schema, xrun::recipe::json_schema());
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
}

#[test]
fn ls_lists_built_in_recipes_and_those_here() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("recipes")).expect("creates");
    fs::write(
        folder.path().join("recipes/mine.toml"),
        "extends = \"dim384\"\n[job]\ndescription = \"my own\"\n",
    )
    .expect("writes");
    fs::write(folder.path().join("recipes/broken.toml"), "[modell]\n").expect("writes");
    fs::write(folder.path().join("near.toml"), "[training]\nsteps = 5\n").expect("writes");
    fs::write(folder.path().join("wrong.toml"), "extends = \"dim383\"\n").expect("writes");
    // The settings of another program are no recipe.
    fs::write(folder.path().join("Cargo.toml"), "[package]\nname = \"extends\"\n").expect("writes");
    let assert = xrun().arg("ls").current_dir(folder.path()).assert().success().stderr("");
    insta::assert_snapshot!(String::from_utf8_lossy(&assert.get_output().stdout), @r#"
    RECIPE               FROM      DESCRIPTION
    quickstart           built-in  small model on generated stories, for a CPU
    dim384               built-in  width 384, 12 layers, GPT-2 tokens, bf16
    dim768               built-in  width 768, 18 layers, GPT-2 tokens, bf16
    v8-dim1024           built-in  width 1024, 18 layers, feed-forward 2730, GPT-2 tokens, bf16
    base-160m            built-in  width 768, 12 layers, heads of 64, 1,024 tokens, bf16
    qwen3-0.6b-shape     built-in  the dimensions of Qwen3-0.6B, GPT-2 tokens, 2,048 tokens, bf16
    long-context         built-in  base-160m with rows of 4,096 tokens
    gpt2-124m            built-in  GPT-2 124M: learned positions, LayerNorm, biases, GELU, bf16
    smollm2-135m         built-in  SmolLM2-135M: 30 narrow layers, grouped queries, tied embeddings, bf16
    qwen3-0.6b           built-in  Qwen3-0.6B: grouped queries, heads of 128, vocabulary of 151,936, bf16
    nanochat-d12         built-in  nanochat d12: norms without weights, relu2, capped logits, bf16
    width-transfer       built-in  width 128 under muP, for coordinates and sweeps of rates over widths
    v9-full-stack        built-in  dim768 with grouped queries, dropout, accumulation and full recompute
    near.toml            file
    wrong.toml           file      (wrong: there is no built-in recipe "dim383")
    recipes/broken.toml  file      (wrong: there is no section [modell])
    recipes/mine.toml    file      my own
    "#);
}

#[test]
fn init_writes_a_recipe_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let init = |args: &[&str]| xrun().arg("init").args(args).current_dir(folder.path()).assert();
    init(&["my.toml", "--from", "dim384"])
        .success()
        .stdout("")
        .stderr(predicate::str::contains("xrun my.toml"));
    let text = fs::read_to_string(folder.path().join("my.toml")).expect("written");
    assert!(text.contains("[model]\ndim = 384\n"), "{text}");
    init(&["small.toml"]).success();
    let small = fs::read_to_string(folder.path().join("small.toml")).expect("written");
    assert!(small.contains("#     xrun small.toml\n") && !small.contains("xrun quickstart"), "{small}");
    init(&["my.toml"]).code(2).stderr(predicate::str::contains("already exists"));
    init(&["other.toml", "--from", "dim348"])
        .code(2)
        .stderr(predicate::str::contains("did you mean dim384?"));
    init(&["other.yaml"]).code(2).stderr(predicate::str::contains("other.toml"));
    init(&["missing/other.toml"]).code(2).stderr(predicate::str::contains("no such folder"));
    assert_eq!(fs::read_to_string(folder.path().join("my.toml")).expect("kept"), text);
}
