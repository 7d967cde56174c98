//! Whole messages, one for each layout.

use super::refused;

fn message(text: &str, settings: &[&str], env: &[(&str, &str)]) -> String {
    refused(text, settings, env).message().to_owned()
}

#[test]
fn toml_syntax() {
    insta::assert_snapshot!(message(r#"[model]
dim = = 4
"#, &[], &[]), @r###"
    not TOML: extra `=`, expected nothing
     --> wrong.toml:2:7
      |
    2 | dim = = 4
      |       ^
      |
      = help: a recipe has [sections] with lines `key = value`; strings are in quotes
    "###);
}

#[test]
fn one_key() {
    insta::assert_snapshot!(message(r#"[model]
head_dim = 33
"#, &[], &[]), @r###"
    model.head_dim = 33 is odd, but the rotary embedding rotates pairs of elements
     --> wrong.toml:2:12
      |
    2 | head_dim = 33
      |            ^^
      |
      = help: take 32 or 34
    "###);
}

#[test]
fn two_keys() {
    insta::assert_snapshot!(message(r#"[model]
dim = 384
n_heads = 10
"#, &[], &[]), @r###"
    a width of 384 does not divide into 10 heads
     --> wrong.toml:3:11
      |
    2 | dim = 384
      |       --- model.dim = 384
    3 | n_heads = 10
      |           ^^ model.n_heads = 10
      |
      = help: change one of them, or set model.head_dim
    "###);
}

#[test]
fn conflict_between_several_keys() {
    insta::assert_snapshot!(message(r#"[training]
global_batch_size = 64
local_batch_size = 8
accumulation = 4

[parallelism]
world_size = 4
"#, &[], &[]), @r###"
    a global batch of 64 is not 8 per rank · 4 micro steps · 4 ranks = 128
     --> wrong.toml:2:21
      |
    2 | global_batch_size = 64
      |                     ^^ training.global_batch_size = 64
    3 | local_batch_size = 8
      |                    - training.local_batch_size = 8
    4 | accumulation = 4
      |                - training.accumulation = 4
    ...
    7 | world_size = 4
      |              - parallelism.world_size = 4
      |
      = help: global = local · accumulation · world; leave one of them unset and it is derived
    "###);
}

#[test]
fn unknown_key_with_a_suggestion() {
    insta::assert_snapshot!(message(r#"[model]
dim = 128
n_layer_s = 12
"#, &[], &[]), @r###"
    there is no key model.n_layer_s
     --> wrong.toml:3:1
      |
    3 | n_layer_s = 12
      | ^^^^^^^^^ unknown key
      |
      = help: did you mean `n_layers`?
    "###);
}

#[test]
fn value_out_of_range() {
    insta::assert_snapshot!(message(r#"[model]
dropout = 1.0
"#, &[], &[]), @r###"
    model.dropout cannot be 1.0
     --> wrong.toml:2:11
      |
    2 | dropout = 1.0
      |           ^^^ out of range
      |
      = help: model.dropout is a number, 0 ≤ value < 1
    "###);
}

#[test]
fn inherited_key() {
    insta::assert_snapshot!(message(r#"extends = "dim384"
[model]
n_kv_heads = 5
"#, &[], &[]), @r###"
    12 query heads do not share 5 key and value heads evenly
     --> wrong.toml:3:14
      |
    3 | n_kv_heads = 5
      |              ^ model.n_kv_heads = 5
      |
     ::: built-in:dim384:7:7
      |
    7 | dim = 384
      |       --- model.dim = 384
      |
      = help: n_kv_heads divides n_heads: 1, 2, 3, 4, 6, 12
    "###);
}

#[test]
fn override_on_the_command_line() {
    insta::assert_snapshot!(message("", &["--optimizer.lr=-1"], &[]), @r###"
    optimizer.lr cannot be -1
     --> command line:1:16
      |
    1 | --optimizer.lr=-1
      |                ^^ out of range
      |
      = help: optimizer.lr is a number, 0 ≤ value ≤ 10
    "###);
}

#[test]
fn environment_variable() {
    insta::assert_snapshot!(message("", &[], &[("XRUN__MODEL__HIDEN_SIZE", "128")]), @r###"
    there is no key model.hiden_size
     --> environment:1:1
      |
    1 | XRUN__MODEL__HIDEN_SIZE=128
      | ^^^^^^^^^^^^^^^^^^^^^^^ unknown key
      |
      = help: did you mean XRUN__MODEL__HIDDEN_SIZE?
    "###);
}

#[test]
fn conflict_with_a_default() {
    insta::assert_snapshot!(message("[optimizer]\nmomentum = 0.9\n", &[], &[]), @r###"
    adamw has no optimizer.momentum
     --> wrong.toml:2:1
      |
    2 | momentum = 0.9
      | ^^^^^^^^ not a hyperparameter of this optimizer
      |
      = note: optimizer.name = "adamw" by default
      = help: adamw has lr, betas, eps, weight_decay; for this one set optimizer.name = "sgd" or "muon"
    "###);
}

#[test]
fn several_errors_at_once() {
    insta::assert_snapshot!(message(r#"[model]
dim = 0
layers = 12

[training]
dtype = "double"
"#, &["data.seed=x"], &[]), @r###"
    model.dim cannot be 0
     --> wrong.toml:2:7
      |
    2 | dim = 0
      |       ^ less than 1
      |
      = help: model.dim is a whole number from 1 to 65536

    error: there is no key model.layers
     --> wrong.toml:3:1
      |
    3 | layers = 12
      | ^^^^^^ unknown key
      |
      = help: did you mean `n_layers`?

    error: training.dtype cannot be "double"
     --> wrong.toml:6:9
      |
    6 | dtype = "double"
      |         ^^^^^^^^ unknown value
      |
      = help: training.dtype is one of "bf16", "fp8", "fp32", "tf32"

    error: data.seed cannot be "x"
     --> command line:1:11
      |
    1 | data.seed=x
      |           ^ a string
      |
      = help: data.seed is a whole number from 0 to 9223372036854775807
    "###);
}
