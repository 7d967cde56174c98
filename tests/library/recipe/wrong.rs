//! Wrong recipes, and exactly what is said about each.

use std::path::Path;
use xrun::error::ErrorKind;
use xrun::machine::Machine;
use xrun::ops::dropout::Site;
use xrun::recipe;

/// The message for a recipe that has to be refused.
fn wrong(text: &str, overrides: &[&str], env: &[(&str, &str)]) -> String {
    let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let error = recipe::load_str(Path::new("wrong.toml"), text, &overrides, env, &Machine::none())
        .expect_err("a wrong recipe");
    assert_eq!(error.kind(), ErrorKind::Usage);
    error.message().to_owned()
}

#[test]
fn syntax() {
    insta::assert_snapshot!(wrong(r#"[model]
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
fn unclosed_text() {
    insta::assert_snapshot!(wrong(r#"[data]
corpus = "stories
"#, &[], &[]), @r###"
    not TOML: invalid basic string, expected `"`
     --> wrong.toml:2:18
      |
    2 | corpus = "stories
      |                  ^
      |
      = help: a recipe has [sections] with lines `key = value`; strings are in quotes
    "###);
}

#[test]
fn duplicate_key() {
    insta::assert_snapshot!(wrong(r#"[model]
dim = 128
dim = 256
"#, &[], &[]), @r###"
    not TOML: duplicate key
     --> wrong.toml:3:1
      |
    3 | dim = 256
      | ^^^
      |
      = help: a key is set once: keep one of them
    "###);
}

#[test]
fn unknown_section() {
    insta::assert_snapshot!(wrong(r#"[modell]
dim = 128
"#, &[], &[]), @r###"
    there is no section [modell]
     --> wrong.toml:1:2
      |
    1 | [modell]
      |  ^^^^^^ unknown section
      |
      = help: did you mean [model]?
    "###);
}

#[test]
fn unknown_key() {
    insta::assert_snapshot!(wrong(r#"[model]
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
fn key_of_another_section() {
    insta::assert_snapshot!(wrong(r#"[training]
lr = 3e-4
"#, &[], &[]), @r###"
    there is no key training.lr
     --> wrong.toml:2:1
      |
    2 | lr = 3e-4
      | ^^ unknown key
      |
      = help: did you mean `lr` in [optimizer]?
    "###);
}

#[test]
fn key_outside_a_section() {
    insta::assert_snapshot!(wrong(r#"steps = 100
"#, &[], &[]), @r###"
    `steps` is outside a section
     --> wrong.toml:1:1
      |
    1 | steps = 100
      | ^^^^^ no section
      |
      = help: did you mean training.steps?
    "###);
}

#[test]
fn text_for_a_number() {
    insta::assert_snapshot!(wrong(r#"[model]
dim = "384"
"#, &[], &[]), @r###"
    model.dim cannot be "384"
     --> wrong.toml:2:7
      |
    2 | dim = "384"
      |       ^^^^^ a string
      |
      = help: model.dim is a whole number from 1 to 65536; write 384 without the quotes
    "###);
}

#[test]
fn number_for_a_text() {
    insta::assert_snapshot!(wrong(r#"[data]
corpus = 3
"#, &[], &[]), @r###"
    data.corpus cannot be 3
     --> wrong.toml:2:10
      |
    2 | corpus = 3
      |          ^ a number
      |
      = help: data.corpus is "stories", "random" or a path, in quotes
    "###);
}

#[test]
fn float_for_a_whole_number() {
    insta::assert_snapshot!(wrong(r#"[training]
steps = 1e4
"#, &[], &[]), @r###"
    training.steps cannot be 1e4
     --> wrong.toml:2:9
      |
    2 | steps = 1e4
      |         ^^^ not a whole number
      |
      = help: training.steps is a whole number from 1 to 100000000; write 10000
    "###);
}

#[test]
fn not_a_number() {
    insta::assert_snapshot!(wrong(r#"[optimizer]
lr = nan
"#, &[], &[]), @r###"
    optimizer.lr cannot be nan
     --> wrong.toml:2:6
      |
    2 | lr = nan
      |      ^^^ not a finite number
      |
      = help: optimizer.lr is a number, 0 ≤ value ≤ 10
    "###);
}

#[test]
fn negative() {
    insta::assert_snapshot!(wrong(r#"[model]
n_layers = -12
"#, &[], &[]), @r###"
    model.n_layers cannot be -12
     --> wrong.toml:2:12
      |
    2 | n_layers = -12
      |            ^^^ negative
      |
      = help: model.n_layers is a whole number from 1 to 1024
    "###);
}

#[test]
fn absurdly_large() {
    insta::assert_snapshot!(wrong(r#"[training]
seq_len = 99999999999999999999
"#, &[], &[]), @r###"
    training.seq_len cannot be 99999999999999999999
     --> wrong.toml:2:11
      |
    2 | seq_len = 99999999999999999999
      |           ^^^^^^^^^^^^^^^^^^^^ more than 1048576
      |
      = help: training.seq_len is a whole number from 1 to 1048576
    "###);
}

#[test]
fn beyond_an_open_bound() {
    insta::assert_snapshot!(wrong(r#"[model]
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
fn misspelled_word() {
    insta::assert_snapshot!(wrong(r#"[lr_scheduler]
decay = "cosin"
"#, &[], &[]), @r###"
    lr_scheduler.decay cannot be "cosin"
     --> wrong.toml:2:9
      |
    2 | decay = "cosin"
      |         ^^^^^^^ unknown value
      |
      = help: lr_scheduler.decay is one of "cosine", "linear", "wsd", "one_minus_sqrt", "exponential", or a formula of t, the share done; did you mean "cosine"?
    "###);
}

#[test]
fn two_spellings() {
    insta::assert_snapshot!(wrong(r#"[model]
dim = 384
hidden_size = 512
"#, &[], &[]), @r###"
    model.dim is set twice
     --> wrong.toml:3:1
      |
    2 | dim = 384
      | --- first
    3 | hidden_size = 512
      | ^^^^^^^^^^^ again
      |
      = help: keep one of them
    "###);
}

#[test]
fn odd_head_dim() {
    insta::assert_snapshot!(wrong(r#"[model]
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
fn a_share_of_a_head_that_is_no_pair() {
    insta::assert_snapshot!(wrong(r#"[model]
head_dim = 64
rope_fraction = 0.3
"#, &[], &[]), @r###"
    0.3 of a head of 64 are 19 elements, but the rotary embedding rotates pairs
     --> wrong.toml:3:17
      |
    2 | head_dim = 64
      |            -- model.head_dim = 64
    3 | rope_fraction = 0.3
      |                 ^^^ model.rope_fraction = 0.3
      |
      = help: take a fraction of 0.28125 (18 elements) or 0.3125 (20 elements)
    "###);
    let none = wrong("", &["model.head_dim=32", "model.rope_fraction=0.05"], &[]);
    assert!(none.contains("take a fraction of 0.0625 (2 elements)"), "{none}");
}

#[test]
fn a_scaling_without_its_numbers() {
    insta::assert_snapshot!(wrong(r#"[model]
rope_scaling = "yarn"
rope_original_context = 2048
"#, &[], &[]), @r###"
    model.rope_scaling = "yarn" needs model.rope_factor
     --> wrong.toml:2:16
      |
    2 | rope_scaling = "yarn"
      |                ^^^^^^ model.rope_scaling = "yarn"
      |
      = note: model.rope_factor is unset
      = help: set model.rope_factor to how many times longer the context is, such as 4.0
    "###);
    let both = wrong("", &["model.rope_scaling=llama3"], &[]);
    assert!(
        both.contains("needs model.rope_factor") && both.contains("needs model.rope_original_context"),
        "{both}"
    );
}

#[test]
fn numbers_that_no_scaling_reads() {
    insta::assert_snapshot!(wrong(r#"[model]
rope_factor = 4.0
"#, &[], &[]), @r###"
    no frequency depends on model.rope_factor with model.rope_scaling = "none"
     --> wrong.toml:2:15
      |
    2 | rope_factor = 4.0
      |               ^^^ model.rope_factor = 4.0
      |
      = note: model.rope_scaling = "none" by default
      = help: set model.rope_scaling = "linear" or "yarn" or "llama3", or leave model.rope_factor unset
    "###);
    let linear = ["model.rope_scaling=linear", "model.rope_factor=2.0"];
    for key in [
        "model.rope_original_context=64",
        "model.rope_beta_fast=16.0",
        "model.rope_beta_slow=2.0",
        "model.rope_attention_factor=1.0",
        "model.rope_low_freq_factor=2.0",
        "model.rope_high_freq_factor=8.0",
    ] {
        let found = wrong("", &[linear[0], linear[1], key], &[]);
        assert!(found.contains("no frequency depends on"), "{key}: {found}");
    }
}

#[test]
fn ramps_of_frequencies_without_a_slope() {
    let of = |word: &str, keys: [&str; 2]| {
        let scaling = format!("model.rope_scaling={word}");
        let numbers = ["model.rope_factor=2.0", "model.rope_original_context=64"];
        wrong("", &[&[scaling.as_str()], &numbers[..], &keys[..]].concat(), &[])
    };
    let yarn = of("yarn", ["model.rope_beta_fast=2.0", "model.rope_beta_slow=2.0"]);
    assert!(yarn.contains("take model.rope_beta_slow below model.rope_beta_fast"), "{yarn}");
    let llama3 = of("llama3", ["model.rope_low_freq_factor=4.0", "model.rope_high_freq_factor=2.0"]);
    assert!(llama3.contains("take model.rope_low_freq_factor below model.rope_high_freq_factor"), "{llama3}");
    let flat = of("yarn", ["model.rope_theta=1.0", "model.rope_beta_slow=1.0"]);
    assert!(flat.contains("take a larger base"), "{flat}");
}

#[test]
fn a_rotation_that_the_model_does_not_have() {
    insta::assert_snapshot!(wrong(r#"[model]
position = "none"
rope_theta = 1e6
"#, &[], &[]), @r###"
    with model.position = "none" no head is rotated
     --> wrong.toml:3:14
      |
    2 | position = "none"
      |            ------ model.position = "none"
    3 | rope_theta = 1e6
      |              ^^^ model.rope_theta = 1000000.0
      |
      = help: set model.position = "rope", or leave model.rope_theta unset
    "###);
    let after = wrong("", &["model.position=learned", "model.qk_norm_place=after_rope"], &[]);
    assert!(after.contains("leave model.qk_norm_place unset"), "{after}");
}

#[test]
fn a_place_and_a_weight_of_no_norm() {
    for key in ["model.qk_norm_place=after_rope", "model.qk_norm_weight=false"] {
        let found = wrong("", &["model.qk_norm=false", key], &[]);
        assert!(found.contains("set model.qk_norm = true, or leave"), "{key}: {found}");
    }
}

#[test]
fn heads_that_do_not_divide_the_width() {
    insta::assert_snapshot!(wrong(r#"[model]
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
fn kv_heads_that_do_not_divide_the_heads() {
    insta::assert_snapshot!(wrong(r#"[model]
dim = 384
num_attention_heads = 12
num_key_value_heads = 5
"#, &[], &[]), @r###"
    12 query heads do not share 5 key and value heads evenly
     --> wrong.toml:4:23
      |
    3 | num_attention_heads = 12
      |                       -- model.n_heads = 12
    4 | num_key_value_heads = 5
      |                       ^ model.n_kv_heads = 5
      |
      = help: n_kv_heads divides n_heads: 1, 2, 3, 4, 6, 12
    "###);
}

#[test]
fn a_bias_of_a_norm_that_has_none() {
    let rms = wrong("", &["model.norm_bias=true"], &[]);
    assert!(rms.contains("RMSNorm has no bias, and norm_bias is true"), "{rms}");
    let keys = ["model.norm=layer_norm", "model.norm_weight=false", "model.norm_bias=true"];
    let bare = wrong("", &keys, &[]);
    assert!(
        bare.contains("a norm has a bias only together with a weight, and norm_weight is false"),
        "{bare}"
    );
}

#[test]
fn copies_between_more_ranks_than_kernels_take() {
    let keys = |world| ["parallelism.shard=optimizer", "parallelism.transport=copies", world];
    let nine = wrong("", &keys("parallelism.world_size=9"), &[]);
    assert!(nine.contains("copies are between the GPUs of at most 8 ranks"), "{nine}");
    assert!(
        nine.contains("parallelism.world_size = 9") && nine.contains("leave parallelism.transport out"),
        "{nine}"
    );
    let machine = Machine::named("h200").unwrap();
    let overrides = keys("parallelism.world_size=8").map(str::to_owned);
    let eight = recipe::load_str(Path::new("r.toml"), "", &overrides, std::iter::empty(), &machine);
    assert!(eight.is_ok());
}

#[test]
fn batches_that_contradict_each_other() {
    insta::assert_snapshot!(wrong(r#"[training]
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
fn warm_up_longer_than_the_run() {
    insta::assert_snapshot!(wrong(r#"[lr_scheduler]
warmup_steps = 100
"#, &["training.steps=20"], &[]), @r###"
    a warm-up of 100 steps does not end within 20 steps
     --> wrong.toml:2:16
      |
    2 | warmup_steps = 100
      |                ^^^ lr_scheduler.warmup_steps = 100
      |
     ::: command line:1:16
      |
    1 | training.steps=20
      |                -- training.steps = 20
      |
      = help: set lr_scheduler.warmup_ratio = 0.1 in place of warmup_steps: such a warm-up follows the steps
    "###);
}

#[test]
fn too_many_tokens_in_a_step() {
    insta::assert_snapshot!(wrong(r#"[training]
local_batch_size = 4096
seq_len = 1048576
"#, &[], &[]), @r###"
    4096 sequences of 1048576 tokens in one micro step are more than 2147483647 tokens
     --> wrong.toml:2:20
      |
    2 | local_batch_size = 4096
      |                    ^^^^ training.local_batch_size = 4096
    3 | seq_len = 1048576
      |           ------- training.seq_len = 1048576
      |
      = help: take a smaller local batch and raise training.accumulation
    "###);
}

#[test]
fn graphs_without_an_arena() {
    insta::assert_snapshot!(wrong(r#"[engine]
cuda_graphs = true
placement = "naive"
"#, &[], &[]), @r###"
    a CUDA graph replays fixed addresses, which only the arena gives
     --> wrong.toml:2:15
      |
    2 | cuda_graphs = true
      |               ^^^^ engine.cuda_graphs = true
    3 | placement = "naive"
      |             ------- engine.placement = "naive"
      |
      = help: set engine.placement = "arena", or leave engine.cuda_graphs out
    "###);
}

#[test]
fn unknown_key_in_the_environment() {
    insta::assert_snapshot!(wrong("", &[], &[("XRUN__MODEL__HIDEN_SIZE", "128")]), @r###"
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
fn wrong_value_in_the_environment() {
    insta::assert_snapshot!(wrong("", &[], &[("XRUN__TRAINING__DTYPE", "fp16")]), @r###"
    training.dtype cannot be "fp16"
     --> environment:1:23
      |
    1 | XRUN__TRAINING__DTYPE=fp16
      |                       ^^^^ unknown value
      |
      = help: training.dtype is one of "bf16", "fp32", "tf32"; did you mean "bf16"?
    "###);
}

#[test]
fn wrong_value_on_the_command_line() {
    insta::assert_snapshot!(wrong("", &["--optimizer.lr=-1"], &[]), @r###"
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
fn override_without_a_value() {
    insta::assert_snapshot!(wrong("", &["training.steps"], &[]), @r###"
    `training.steps` sets nothing
     --> command line:1:1
      |
    1 | training.steps
      | ^^^^^^^^^^^^^^ has no `=`
      |
      = help: write section.key=value, such as training.steps=20
    "###);
}

#[test]
fn grid_of_an_unknown_key() {
    insta::assert_snapshot!(wrong(r#"[sweep.grid]
"model.dmi" = [64, 128]
"#, &[], &[]), @r###"
    sweep.grid has an unknown key `model.dmi`
     --> wrong.toml:2:1
      |
    2 | "model.dmi" = [64, 128]
      | ^^^^^^^^^^^ unknown key
      |
      = help: did you mean "model.dim"?
    "###);
}

#[test]
fn wrong_value_in_a_grid() {
    insta::assert_snapshot!(wrong(r#"[sweep.grid]
"model.dim" = [64, "big"]
"#, &[], &[]), @r###"
    model.dim cannot be "big"
     --> wrong.toml:2:20
      |
    2 | "model.dim" = [64, "big"]
      |                    ^^^^^ a string
      |
      = help: model.dim is a whole number from 1 to 65536
    "###);
}

#[test]
fn several_at_once() {
    insta::assert_snapshot!(wrong(r#"[model]
dim = 0
layers = 12

[training]
dtype = "fp8"
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

    error: training.dtype cannot be "fp8"
     --> wrong.toml:6:9
      |
    6 | dtype = "fp8"
      |         ^^^^^ unknown value
      |
      = help: training.dtype is one of "bf16", "fp32", "tf32"

    error: data.seed cannot be "x"
     --> command line:1:11
      |
    1 | data.seed=x
      |           ^ a string
      |
      = help: data.seed is a whole number from 0 to 9223372036854775807
    "###);
}

#[test]
fn unknown_base() {
    insta::assert_snapshot!(wrong(r#"extends = "dim348"
"#, &[], &[]), @r###"
    there is no built-in recipe "dim348"
     --> wrong.toml:1:11
      |
    1 | extends = "dim348"
      |           ^^^^^^^^ unknown recipe
      |
      = help: did you mean "dim384"? built in are quickstart, dim384, dim768, v8-dim1024, base-160m, qwen3-0.6b-shape, long-context, gpt2-124m, smollm2-135m, qwen3-0.6b, nanochat-d12, width-transfer, v9-full-stack; the name of a file ends in .toml
    "###);
}

#[test]
fn a_key_of_another_optimizer() {
    insta::assert_snapshot!(wrong(r#"[optimizer]
name = "sgd"
betas = [0.9, 0.95]
"#, &[], &[]), @r###"
    sgd has no optimizer.betas
     --> wrong.toml:3:1
      |
    2 | name = "sgd"
      |        ----- chosen here
    3 | betas = [0.9, 0.95]
      | ^^^^^ not a hyperparameter of this optimizer
      |
      = help: sgd has lr, momentum, weight_decay; for this one set optimizer.name = "adamw" or "lion"
    "###);
}

#[test]
fn a_key_that_the_default_optimizer_does_not_have() {
    insta::assert_snapshot!(wrong("[optimizer]\nmomentum = 0.9\n", &[], &[]), @r###"
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
fn misspelled_optimizers() {
    insta::assert_snapshot!(wrong("", &["optimizer.momentm=0.9"], &[]), @r###"
    there is no key optimizer.momentm
     --> command line:1:1
      |
    1 | optimizer.momentm=0.9
      | ^^^^^^^^^^^^^^^^^ unknown key
      |
      = help: did you mean optimizer.momentum?
    "###);
    insta::assert_snapshot!(wrong("", &["optimizer.name=sdg"], &[]), @r###"
    optimizer.name cannot be "sdg"
     --> command line:1:16
      |
    1 | optimizer.name=sdg
      |                ^^^ unknown value
      |
      = help: optimizer.name is one of "adamw", "lion", "sgd", "muon"; did you mean "sgd"?
    "###);
}

#[test]
fn muon_updates_matrices_of_blocks_alone() {
    insta::assert_snapshot!(wrong("", &["optimizer.groups.embedding.name=muon"], &[]), @r#"
    muon updates only the matrices of blocks, and embedding has none
     --> command line:1:33
      |
    1 | optimizer.groups.embedding.name=muon
      |                                 ^^^^
      |
      = help: set optimizer.groups.embedding.name = "adamw" and optimizer.groups.matrix.name = "muon"
    "#);
    insta::assert_snapshot!(wrong("", &["optimizer.name=muon", "optimizer.groups.head.nesterov=true"], &[]), @r#"
    there is no key optimizer.groups.head.nesterov
     --> command line:1:1
      |
    1 | optimizer.groups.head.nesterov=true
      | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      |
      = help: this group has name, lr, decay, betas, eps, weight_decay, momentum
    "#);
    let overrides = ["optimizer.name=muon", "optimizer.adjust=spectral", "optimizer.ns_steps=2.5"];
    insta::assert_snapshot!(wrong("", &overrides, &[]), @r#"
    optimizer.adjust cannot be "spectral"
     --> command line:1:18
      |
    1 | optimizer.adjust=spectral
      |                  ^^^^^^^^ unknown value
      |
      = help: optimizer.adjust is one of "original", "match_rms_adamw"

    error: optimizer.ns_steps cannot be 2.5
     --> command line:1:20
      |
    1 | optimizer.ns_steps=2.5
      |                    ^^^ not a whole number
      |
      = help: optimizer.ns_steps is a whole number from 1 to 99
    "#);
}

#[test]
fn wrong_groups_of_parameters() {
    insta::assert_snapshot!(wrong("[optimizer.groups.embeding]\nlr = 0.1\n", &[], &[]), @r###"
    there is no group optimizer.groups.embeding
     --> wrong.toml:1:19
      |
    1 | [optimizer.groups.embeding]
      |                   ^^^^^^^^
      |
      = help: did you mean optimizer.groups.embedding?
    "###);
    insta::assert_snapshot!(wrong(r#"[optimizer.groups.matrix]
name = "lion"
eps = 1e-6
"#, &[], &[]), @r###"
    lion has no optimizer.groups.matrix.eps
     --> wrong.toml:3:1
      |
    2 | name = "lion"
      |        ------ chosen here
    3 | eps = 1e-6
      | ^^^ not a hyperparameter of this optimizer
      |
      = help: lion has lr, betas, weight_decay; for this one set optimizer.groups.matrix.name = "adamw"
    "###);
    insta::assert_snapshot!(wrong("", &["optimizer.groups.head.lr=0.1", "model.tie_embeddings=true"], &[]), @r###"
    optimizer.groups.head has no parameters: this model has no head but its embedding
     --> command line:1:26
      |
    1 | optimizer.groups.head.lr=0.1
      |                          ^^^ optimizer.groups.head.lr = 0.1
      |
     ::: command line:1:22
      |
    1 | model.tie_embeddings=true
      |                      ---- model.tie_embeddings = true
      |
      = help: leave the group out, or set model.tie_embeddings = false
    "###);
    for (text, title, help) in [
        (
            "[optimizer.groups.head]\nlrr = 0.1\n",
            "there is no key optimizer.groups.head.lrr",
            "did you mean optimizer.groups.head.lr?",
        ),
        (
            "[optimizer.groups.head]\ncolour = 0.1\n",
            "there is no key optimizer.groups.head.colour",
            "this group has name, lr, decay, betas",
        ),
        (
            "[optimizer.groups.norms]\nlr = 0.1\n",
            "there is no group optimizer.groups.norms",
            "the groups are embedding, positions, head, matrix, vector",
        ),
        (
            "[optimizer]\ngroups = 3\n",
            "optimizer.groups is a table of groups, not a value",
            "write [optimizer.groups.embedding]",
        ),
        (
            "[optimizer.groups]\nhead = 3\n",
            "optimizer.groups.head is a table, not a value",
            "write [optimizer.groups.head]",
        ),
        (
            "[optimizer.groups.head]\nlr = -1.0\n",
            "optimizer.groups.head.lr cannot be -1.0",
            "a number, 0 ≤ value ≤ 10",
        ),
        (
            "[optimizer.groups.head]\nname = \"adam\"\n",
            "optimizer.groups.head.name cannot be \"adam\"",
            "did you mean \"adamw\"?",
        ),
        (
            "[optimizer.groups.positions]\nlr = 0.1\n",
            "optimizer.groups.positions has no parameters",
            "set model.position = \"learned\"",
        ),
        (
            "[optimizer]\nname = \"sgd\"\ndecay = \"independent\"\n",
            "sgd adds its weight decay to the gradient",
            "leave optimizer.decay out",
        ),
        (
            "[optimizer.groups.head]\nname = \"sgd\"\ndecay = \"independent\"\n",
            "sgd adds its weight decay to the gradient",
            "leave optimizer.groups.head.decay out",
        ),
    ] {
        let said = wrong(text, &[], &[]);
        assert!(said.starts_with(title) && said.contains(help), "{said}");
    }
}

/// An element is dropped by 16 random bits: what they cannot say is refused, with the nearest rates that they
/// can.
#[test]
fn rates_of_dropout_that_would_become_others() {
    insta::assert_snapshot!(wrong("", &["model.dropout=0.99999"], &[]), @r###"
    a rate of dropout is rounded to a multiple of 1/65536, and 0.99999 would become 0.9999847412109375
     --> command line:1:15
      |
    1 | model.dropout=0.99999
      |               ^^^^^^^
      |
      = help: the nearest: 0.9999847412109375
    "###);
    insta::assert_snapshot!(wrong("", &["model.dropout=1e-6"], &[]), @r###"
    a rate of dropout is rounded to a multiple of 1/65536, and 1e-6 would become 0.0
     --> command line:1:15
      |
    1 | model.dropout=1e-6
      |               ^^^^
      |
      = help: the nearest: 0.0 and 1.52587890625e-5
    "###);
    let rate = |p: f64| {
        let set = [format!("model.dropout={p:?}")];
        let recipe = recipe::load(Path::new("quickstart"), &set, std::iter::empty(), &Machine::none());
        recipe.map(|recipe| Site { p: recipe.values().model.dropout, seed: 0, site: 0 }.threshold())
    };
    let least = 1.0 / 65536.0;
    let taken = [0.0, least, 0.001, 0.1, 0.5, 0.999, 1.0 - least];
    assert_eq!(taken.map(|p| rate(p).unwrap()), [0, 1, 66, 6554, 32768, 65470, 65535]);
    for refused in
        [least / 2.0, 1.5 * least, f64::MIN_POSITIVE, 1.0 - least / 2.0, 0.99999, 1.0f64.next_down()]
    {
        assert!(rate(refused).is_err(), "{refused:?}");
    }
}

#[test]
fn names_of_held_out_sets() {
    let text = "[validation.sets]\nnews = \"news.txt\"\n\"old news\" = \"old.txt\"\n";
    insta::assert_snapshot!(wrong(text, &[], &[]), @r###"
    validation.sets cannot have the name "old news"
     --> wrong.toml:3:1
      |
    3 | "old news" = "old.txt"
      | ^^^^^^^^^^ has ' '
      |
      = help: a name has letters, digits, `-` and `_`
    "###);
    for (sets, title, label) in [
        ("{ news = 0.1 }", "validation.sets.news cannot be 0.1", "^^^ a number"),
        ("{ news = \"\" }", "validation.sets.news cannot be \"\"", "^^ empty"),
        ("{ news = { a = \"b\" } }", "validation.sets.news cannot be a table", " a table"),
        ("{ \"\" = \"a\" }", "validation.sets cannot have the name \"\"", "^^ empty"),
        ("\"news.txt\"", "validation.sets cannot be \"news.txt\"", " a string"),
    ] {
        let said = wrong(&format!("[validation]\nsets = {sets}\n"), &[], &[]);
        assert!(said.starts_with(title) && said.contains(label) && said.contains("wrong.toml:2:"), "{said}");
    }
}

#[test]
fn wrong_formulas() {
    insta::assert_snapshot!(wrong(r#"[model]
activation = "x * tanh(softplus(x)"
"#, &[], &[]), @r###"
    model.activation cannot be "x * tanh(softplus(x)"
     --> wrong.toml:2:23
      |
    2 | activation = "x * tanh(softplus(x)"
      |                       ^ never closed
      |
      = help: a ) is missing
    "###);
    insta::assert_snapshot!(wrong("", &["lr_scheduler.decay=1 - x"], &[]), @r###"
    lr_scheduler.decay cannot be "1 - x"
     --> command line:1:24
      |
    1 | lr_scheduler.decay=1 - x
      |                        ^ unknown name
      |
      = help: the names of a formula are t, pi, e, exp, log, sqrt, abs, sign, min, max, sin, cos, tanh, sigmoid, erf, softplus, relu, silu, gelu, gelu_tanh
    "###);
    insta::assert_snapshot!(wrong(r#"[sweep.grid]
"model.activation" = ["swiglu", 'silu(a) * x']
"#, &[], &[]), @r###"
    model.activation cannot be "silu(a) * x"
     --> wrong.toml:2:44
      |
    2 | "model.activation" = ["swiglu", 'silu(a) * x']
      |                                            ^ x beside a and b
      |
      = help: a formula is of x, or of a (the gate) and b
    "###);
    insta::assert_snapshot!(wrong("[model]\nactivation = \"x^1e3\"\n", &[], &[]), @r###"
    model.activation cannot be "x^1e3"
     --> wrong.toml:2:17
      |
    2 | activation = "x^1e3"
      |                 ^^^ an exponent of 1000
      |
      = help: a constant exponent is at most 64 in size
    "###);
    insta::assert_snapshot!(wrong("[lr_scheduler]\ndecay = \"2 - t\"\n", &[], &[]), @r###"
    the decay 2 - t is 1.999 at t = 0.001
     --> wrong.toml:2:9
      |
    2 | decay = "2 - t"
      |         ^^^^^^^
      |
      = help: keep its value between 0, where the rate is min_lr_ratio of the peak, and 1, where it is the peak
    "###);
    for (value, says) in [
        ("\"relu\"", "a function"),
        ("\"x + \\\"1\\\"\"", "not part of a formula"),
        ("1", "a number"),
        ("\"\"", "empty"),
        ("\"2 * pi\"", "has no variable"),
    ] {
        let said = wrong(&format!("[model]\nactivation = {value}\n"), &[], &[]);
        assert!(said.contains(says) && said.contains("wrong.toml:2:"), "{said}");
    }
}

/// Where several things are wrong with formulas, all of them are said at once, and soon.
#[test]
fn hostile_formulas() {
    let long = format!("[model]\nactivation = \"x{}\"\n", "+x".repeat(500_000));
    let deep = format!("[lr_scheduler]\ndecay = \"{}t{}\"\n", "(".repeat(100), ")".repeat(100));
    let said = wrong(&(long + &deep), &[], &[]);
    assert!(said.contains("a formula has at most 256 characters"), "{}", said.len());
    assert!(said.contains("at most 16 parentheses, calls, signs and powers may be nested"));
}

#[test]
fn spellings_of_a_formula_are_one_recipe() {
    let hash = |text: &str| {
        let set = [format!("model.activation={text}")];
        let recipe =
            recipe::load(Path::new("quickstart"), &set, std::iter::empty(), &Machine::none()).expect(text);
        let stored = recipe.to_toml();
        let again =
            recipe::load_str(Path::new("again.toml"), &stored, &[], std::iter::empty(), &Machine::none());
        assert_eq!(again.expect("what is stored loads").hash(), recipe.hash(), "{text}");
        (recipe.hash(), recipe.values().model.activation.to_string())
    };
    let (one, text) = hash("relu( x )^(2)");
    assert_eq!((&one, text.as_str()), (&hash("\"relu(x)^2\"").0, "relu(x)^2"));
    assert_ne!(one, hash("relu2").0, "the built-in of the same function rounds otherwise");
    assert_ne!(hash("a * b").0, hash("b * a").0);
}

#[test]
fn an_average_that_is_not_kept_is_not_evaluated() {
    let text = "[ema]\nevaluate = true\n";
    insta::assert_snapshot!(wrong(text, &[], &[]), @r###"
    there is no moving average of the weights to evaluate
     --> wrong.toml:2:12
      |
    2 | evaluate = true
      |            ^^^^ ema.evaluate = true
      |
      = note: ema.decay is unset
      = help: set ema.decay, such as to 0.999, or leave ema.evaluate out
    "###);
    for decay in ["0.0", "1.0", "-0.5", "\"long\""] {
        let said = wrong(&format!("[ema]\ndecay = {decay}\n"), &[], &[]);
        assert!(said.contains("ema.decay") && said.contains("wrong.toml:2:9"), "{said}");
    }
}
