//! Values that are valid on their own but not together.

use super::{check, check_files, check_settings, found, refused};
use std::path::Path;
use xrun::machine::Machine;
use xrun::ops::dropout::Site;
use xrun::recipe;

#[test]
fn shares_of_a_head_that_are_no_pairs() {
    let keys = "model.rope_fraction model.head_dim";
    check_files(&[(
        "[model]\nhead_dim = 64\nrope_fraction = 0.3\n",
        keys,
        "3:17",
        "0.28125 (18 elements) or 0.3125 (20 elements)",
    )]);
    check_settings(&[(&["model.head_dim=32", "model.rope_fraction=0.05"], keys, 21, "0.0625 (2 elements)")]);
}

#[test]
fn a_scaling_without_its_numbers() {
    check_files(&[(
        "[model]\nrope_scaling = \"yarn\"\nrope_original_context = 2048\n",
        "model.rope_scaling model.rope_factor",
        "2:16",
        "set model.rope_factor to",
    )]);
    let both = refused("", &["model.rope_scaling=llama3"], &[]);
    assert_eq!(
        found(&both),
        [
            ("model.rope_scaling model.rope_factor".to_owned(), "command line:1:20"),
            ("model.rope_scaling model.rope_original_context".to_owned(), "command line:1:20"),
        ]
    );
}

#[test]
fn numbers_that_no_scaling_reads() {
    check_files(&[(
        "[model]\nrope_factor = 4.0\n",
        "model.rope_factor model.rope_scaling",
        "2:15",
        "\"linear\" or \"yarn\" or \"llama3\"",
    )]);
    for (key, value, readers) in [
        ("model.rope_original_context", "64", "\"yarn\" or \"llama3\""),
        ("model.rope_beta_fast", "16.0", "\"yarn\""),
        ("model.rope_beta_slow", "2.0", "\"yarn\""),
        ("model.rope_attention_factor", "1.0", "\"yarn\""),
        ("model.rope_low_freq_factor", "2.0", "\"llama3\""),
        ("model.rope_high_freq_factor", "8.0", "\"llama3\""),
    ] {
        let setting = format!("{key}={value}");
        let linear = ["model.rope_scaling=linear", "model.rope_factor=2.0", &setting];
        check_settings(&[(&linear, &format!("{key} model.rope_scaling"), key.len() + 2, readers)]);
    }
}

#[test]
fn ramps_of_frequencies_without_a_slope() {
    let numbers = ["model.rope_factor=2.0", "model.rope_original_context=64"];
    for (more, keys, column, says) in [
        (
            ["model.rope_scaling=yarn", "model.rope_beta_fast=2.0", "model.rope_beta_slow=2.0"],
            "model.rope_beta_slow model.rope_beta_fast",
            22,
            "take model.rope_beta_slow below",
        ),
        (
            [
                "model.rope_scaling=llama3",
                "model.rope_low_freq_factor=4.0",
                "model.rope_high_freq_factor=2.0",
            ],
            "model.rope_low_freq_factor model.rope_high_freq_factor",
            28,
            "take model.rope_low_freq_factor below",
        ),
        (
            ["model.rope_scaling=yarn", "model.rope_theta=1.0", "model.rope_beta_slow=1.0"],
            "model.rope_theta model.rope_scaling",
            18,
            "a larger base",
        ),
    ] {
        check_settings(&[(&[&numbers[..], &more].concat(), keys, column, says)]);
    }
}

#[test]
fn a_rotation_that_the_model_does_not_have() {
    check_files(&[(
        "[model]\nposition = \"none\"\nrope_theta = 1e6\n",
        "model.rope_theta model.position",
        "3:14",
        "set model.position = \"rope\"",
    )]);
    check_settings(&[(
        &["model.position=learned", "model.qk_norm_place=after_rope"],
        "model.qk_norm_place model.position",
        21,
        "leave model.qk_norm_place unset",
    )]);
}

#[test]
fn settings_of_norms_that_do_not_exist() {
    let says = "set model.qk_norm = true";
    check_settings(&[
        (
            &["model.qk_norm=false", "model.qk_norm_place=after_rope"],
            "model.qk_norm_place model.qk_norm",
            21,
            says,
        ),
        (
            &["model.qk_norm=false", "model.qk_norm_weight=false"],
            "model.qk_norm_weight model.qk_norm",
            22,
            says,
        ),
        (&["model.norm_bias=true"], "model.norm_bias model.norm", 17, "norm = \"layer_norm\""),
        (
            &["model.norm=layer_norm", "model.norm_weight=false", "model.norm_bias=true"],
            "model.norm_bias model.norm_weight",
            17,
            "leave norm_weight or norm_bias unset",
        ),
    ]);
}

#[test]
fn kv_heads_that_do_not_divide_the_heads() {
    check_files(&[(
        "[model]\ndim = 384\nnum_attention_heads = 12\nnum_key_value_heads = 5\n",
        "model.n_kv_heads model.n_heads",
        "4:23",
        "1, 2, 3, 4, 6, 12",
    )]);
}

#[test]
fn copies_between_more_ranks_than_kernels_take() {
    let keys = |world| ["parallelism.shard=optimizer", "parallelism.transport=copies", world];
    check_settings(&[(
        &keys("parallelism.world_size=9"),
        "parallelism.transport parallelism.world_size",
        23,
        "at most 8 ranks",
    )]);
    let machine = Machine::named("h200").unwrap();
    let overrides = keys("parallelism.world_size=8").map(str::to_owned);
    let eight = recipe::load_str(Path::new("r.toml"), "", &overrides, std::iter::empty(), &machine);
    assert!(eight.is_ok());
}

#[test]
fn warm_up_longer_than_the_run() {
    let error = refused("[lr_scheduler]\nwarmup_steps = 100\n", &["training.steps=20"], &[]);
    let keys = "lr_scheduler.warmup_steps training.steps";
    check(&error, keys, "wrong.toml:2:16", "lr_scheduler.warmup_ratio = 0.1");
}

#[test]
fn too_many_tokens_in_a_step() {
    check_files(&[(
        "[training]\nlocal_batch_size = 4096\nseq_len = 1048576\n",
        "training.local_batch_size training.seq_len",
        "2:20",
        "raise training.accumulation",
    )]);
}

#[test]
fn graphs_without_an_arena() {
    check_files(&[(
        "[engine]\ncuda_graphs = true\nplacement = \"naive\"\n",
        "engine.cuda_graphs engine.placement",
        "2:15",
        "set engine.placement = \"arena\"",
    )]);
}

#[test]
fn an_average_that_is_not_kept_is_not_evaluated() {
    check_files(&[("[ema]\nevaluate = true\n", "ema.evaluate ema.decay", "2:12", "set ema.decay")]);
}

/// 16 random bits decide whether an element is dropped. Rates that they cannot express are refused, and the
/// error names the nearest ones that they can.
#[test]
fn rates_of_dropout_that_would_become_others() {
    check_settings(&[
        (&["model.dropout=0.99999"], "model.dropout", 15, "the nearest: 0.9999847412109375"),
        (&["model.dropout=1e-6"], "model.dropout", 15, "the nearest: 0.0 and 1.52587890625e-5"),
    ]);
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
        let error = rate(refused).expect_err("another rate");
        assert_eq!(found(&error), [("model.dropout".to_owned(), "command line:1:15")], "{error}");
    }
}
