//! Texts that are not TOML, names that do not exist, and values that do not suit their key.

use super::{check, check_files, check_settings, found, refused};

#[test]
fn text_that_is_not_toml() {
    check_files(&[
        ("[data]\ncorpus = \"stories\n", "", "2:18", "strings are in quotes"),
        ("[model]\ndim = 128\ndim = 256\n", "", "3:1", "duplicate key"),
    ]);
}

#[test]
fn unknown_names() {
    check_files(&[
        ("[modell]\ndim = 128\n", "modell", "1:2", "did you mean [model]?"),
        ("[training]\nlr = 3e-4\n", "training.lr", "2:1", "`lr` in [optimizer]?"),
        ("steps = 100\n", "steps", "1:1", "training.steps?"),
        ("extends = \"dim348\"\n", "extends", "1:11", "did you mean \"dim384\"?"),
        ("[sweep.grid]\n\"model.dmi\" = [64, 128]\n", "sweep.grid", "2:1", "\"model.dim\"?"),
    ]);
    check_settings(&[(&["optimizer.momentm=0.9"], "optimizer.momentm", 1, "optimizer.momentum?")]);
}

#[test]
fn values_of_the_wrong_type() {
    check_files(&[
        ("[model]\ndim = \"384\"\n", "model.dim", "2:7", "without the quotes"),
        ("[data]\ncorpus = 3\n", "data.corpus", "2:10", "a number"),
        ("[training]\nsteps = 1e4\n", "training.steps", "2:9", "write 10000"),
        ("[optimizer]\nlr = nan\n", "optimizer.lr", "2:6", "not a finite number"),
        ("[sweep.grid]\n\"model.dim\" = [64, \"big\"]\n", "sweep.grid", "2:20", "a string"),
    ]);
}

#[test]
fn values_out_of_range() {
    check_files(&[
        ("[model]\nn_layers = -12\n", "model.n_layers", "2:12", "negative"),
        ("[training]\nseq_len = 99999999999999999999\n", "training.seq_len", "2:11", "more than 1048576"),
        ("[lr_scheduler]\ndecay = \"cosin\"\n", "lr_scheduler.decay", "2:9", "did you mean \"cosine\"?"),
        ("[ema]\ndecay = 0.0\n", "ema.decay", "2:9", "out of range"),
        ("[ema]\ndecay = 1.0\n", "ema.decay", "2:9", "out of range"),
        ("[ema]\ndecay = -0.5\n", "ema.decay", "2:9", "out of range"),
        ("[ema]\ndecay = \"long\"\n", "ema.decay", "2:9", "a string"),
    ]);
    check_settings(&[(&["optimizer.name=sdg"], "optimizer.name", 16, "did you mean \"sgd\"?")]);
    let env = refused("", &[], &[("XRUN__TRAINING__DTYPE", "fp16")]);
    check(&env, "training.dtype", "environment:1:23", "did you mean \"bf16\"?");
}

#[test]
fn keys_set_twice() {
    check_files(&[("[model]\ndim = 384\nhidden_size = 512\n", "model.dim", "3:1", "keep one of them")]);
}

#[test]
fn override_without_a_value() {
    check_settings(&[(&["training.steps"], "training.steps", 1, "has no `=`")]);
}

#[test]
fn keys_and_groups_that_an_optimizer_does_not_have() {
    check_files(&[
        (
            "[optimizer.groups.embeding]\nlr = 0.1\n",
            "optimizer.groups.embeding",
            "1:19",
            "did you mean optimizer.groups.embedding?",
        ),
        (
            "[optimizer.groups.head]\nlrr = 0.1\n",
            "optimizer.groups.head.lrr",
            "2:1",
            "did you mean optimizer.groups.head.lr?",
        ),
        (
            "[optimizer.groups.head]\ncolour = 0.1\n",
            "optimizer.groups.head.colour",
            "2:1",
            "this group has name, lr,",
        ),
        (
            "[optimizer.groups.norms]\nlr = 0.1\n",
            "optimizer.groups.norms",
            "1:19",
            "the groups are embedding, positions,",
        ),
        ("[optimizer]\ngroups = 3\n", "optimizer.groups", "2:1", "write [optimizer.groups.embedding]"),
        ("[optimizer.groups]\nhead = 3\n", "optimizer.groups.head", "2:1", "write [optimizer.groups.head]"),
        ("[optimizer.groups.head]\nlr = -1.0\n", "optimizer.groups.head.lr", "2:6", "out of range"),
        (
            "[optimizer.groups.head]\nname = \"adam\"\n",
            "optimizer.groups.head.name",
            "2:8",
            "did you mean \"adamw\"?",
        ),
    ]);
    check_settings(&[(
        &["optimizer.name=muon", "optimizer.groups.head.nesterov=true"],
        "optimizer.groups.head.nesterov",
        1,
        "this group has name, lr,",
    )]);
    let muon =
        refused("", &["optimizer.name=muon", "optimizer.adjust=spectral", "optimizer.ns_steps=2.5"], &[]);
    assert_eq!(
        found(&muon),
        [
            ("optimizer.adjust".to_owned(), "command line:1:18"),
            ("optimizer.ns_steps".to_owned(), "command line:1:20"),
        ]
    );
    assert!(muon.message().contains("\"match_rms_adamw\""), "{muon}");
}

#[test]
fn names_and_paths_of_held_out_sets() {
    let sets = "validation.sets";
    check_files(&[
        ("[validation.sets]\nnews = \"news.txt\"\n\"old news\" = \"old.txt\"\n", sets, "3:1", "has ' '"),
        ("[validation]\nsets = { news = 0.1 }\n", sets, "2:17", "a number"),
        ("[validation]\nsets = { news = \"\" }\n", sets, "2:17", "empty"),
        ("[validation]\nsets = { news = { a = \"b\" } }\n", sets, "2:17", "a table"),
        ("[validation]\nsets = { \"\" = \"a\" }\n", sets, "2:10", "empty"),
        ("[validation]\nsets = \"news.txt\"\n", sets, "2:8", "a string"),
        ("[validation]\nsets = { news = [\"a\", \"a\"] }\n", sets, "2:17", "twice"),
    ]);
}
