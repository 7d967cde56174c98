use super::*;
use crate::recipe::KEYS;

/// A run: its recipe, its name, and settings as `key=TOML`.
type Run = (&'static str, &'static str, &'static [&'static str]);

fn settings(list: &[&str]) -> Vec<(String, Option<String>)> {
    let pair = |one: &&str| {
        let (key, value) = one.split_once('=').unwrap();
        (key.to_owned(), (value != UNSET).then(|| value.to_owned()))
    };
    list.iter().map(pair).collect()
}

fn labels_of(runs: &[Run]) -> Vec<Label> {
    let stored: Vec<Vec<(String, Option<String>)>> = runs.iter().map(|run| settings(run.2)).collect();
    let shown = runs.iter().zip(&stored);
    let shown: Vec<Labeled<'_>> =
        shown.map(|((recipe, run, _), settings)| Labeled { recipe, run, settings }).collect();
    labels(&shown)
}

fn texts(runs: &[Run]) -> Vec<String> {
    labels_of(runs).into_iter().map(|label| label.text).collect()
}

#[test]
fn a_word_that_tells_arms_apart_is_the_whole_label() {
    let adamw: &[&str] = &[
        "optimizer.name=\"adamw\"",
        "optimizer.lr=0.003",
        "optimizer.weight_decay=0.1",
        "optimizer.momentum=unset",
        "lr_scheduler.warmup_steps=100",
    ];
    let muon: &[&str] = &[
        "optimizer.name=\"muon\"",
        "optimizer.lr=0.02",
        "optimizer.weight_decay=0.0",
        "optimizer.momentum=0.95",
        "lr_scheduler.warmup_steps=10",
    ];
    assert_eq!(texts(&[("tiny", "a", adamw), ("tiny", "b", muon)]), ["adamw", "muon"]);
}

#[test]
fn numbers_are_named_and_only_those_that_are_needed() {
    let runs: &[Run] = &[
        ("r", "a", &["model.dim=32", "optimizer.lr=0.001", "lr_scheduler.warmup_steps=1"]),
        ("r", "b", &["model.dim=32", "optimizer.lr=0.003", "lr_scheduler.warmup_steps=3"]),
        ("r", "c", &["model.dim=64", "optimizer.lr=0.001", "lr_scheduler.warmup_steps=1"]),
    ];
    assert_eq!(texts(runs), ["dim 32, lr 0.001", "dim 32, lr 0.003", "dim 64, lr 0.001"]);
}

#[test]
fn names_come_first_and_a_label_replaces_the_name_of_the_recipe() {
    let runs: &[Run] = &[
        ("a", "1", &["job.label=\"AdamW,\\n tuned\"", "optimizer.lr=0.001"]),
        ("b", "2", &["job.label=\"\"", "optimizer.lr=0.003"]),
        ("c", "3", &["optimizer.lr=0.004"]),
    ];
    assert_eq!(texts(runs), ["AdamW, tuned", "b", "c"]);
    // One label of all cells tells nothing apart.
    let cells: &[Run] = &[
        ("a", "1", &["job.label=\"x\"", "optimizer.lr=0.001"]),
        ("a", "2", &["job.label=\"x\"", "optimizer.lr=0.003"]),
    ];
    assert_eq!(texts(cells), ["lr 0.001", "lr 0.003"]);
}

#[test]
fn repetitions_share_a_group_and_differ_in_seed_or_run() {
    let seed: fn(&'static str, &'static [&'static str]) -> Run = |run, settings| ("r", run, settings);
    let runs = [
        seed("x1", &["optimizer.name=\"adamw\"", "training.seed=1"]),
        seed("x2", &["optimizer.name=\"adamw\"", "training.seed=2"]),
        seed("x3", &["optimizer.name=\"adamw\"", "training.seed=2"]),
        seed("x4", &["optimizer.name=\"muon\"", "training.seed=1"]),
    ];
    let found = labels_of(&runs);
    let texts: Vec<&str> = found.iter().map(|label| label.text.as_str()).collect();
    assert_eq!(texts, ["adamw, seed 1", "adamw, seed 2, x2", "adamw, seed 2, x3", "muon"]);
    let groups: Vec<&str> = found.iter().map(|label| label.group.as_str()).collect();
    assert_eq!(groups, ["adamw", "adamw", "adamw", "muon"]);
    let equal: &[Run] = &[("r", "x1", &["training.seed=1"]), ("r", "x2", &["training.seed=1"])];
    assert_eq!(
        texts_and_groups(equal),
        [("r, x1".to_owned(), "r".to_owned()), ("r, x2".to_owned(), "r".to_owned())]
    );
    assert_eq!(texts_and_groups(&[("r", "x1", &[])]), [("r".to_owned(), "r".to_owned())]);
}

fn texts_and_groups(runs: &[Run]) -> Vec<(String, String)> {
    labels_of(runs).into_iter().map(|label| (label.text, label.group)).collect()
}

#[test]
fn keys_of_one_name_are_written_out_and_long_values_stay_apart() {
    let runs: &[Run] = &[
        ("r", "a", &["model.dim=32", "other.dim=1"]),
        ("r", "b", &["model.dim=32", "other.dim=2"]),
        ("r", "c", &["model.dim=64", "other.dim=1"]),
    ];
    assert_eq!(texts(runs)[0], "model.dim 32, other.dim 1");
    let weights: &[Run] =
        &[("r", "a", &["data.sources.web.weight=0.2"]), ("r", "b", &["data.sources.web.weight=0.5"])];
    assert_eq!(texts(weights), ["web.weight 0.2", "web.weight 0.5"]);
    let long: &[Run] = &[
        ("r", "a", &["data.corpus=\"/a/path/that/is/longer/than/a/label/one.txt\""]),
        ("r", "b", &["data.corpus=\"/a/path/that/is/longer/than/a/label/two.txt\""]),
    ];
    let found = texts(long);
    assert!(found[0].ends_with("one.txt") && found[1].ends_with("two.txt"), "{found:?}");
}

/// Any key of any recipe, changed alone, gives two labels that differ and are short.
#[test]
fn every_key_labels_a_difference() {
    for key in KEYS.iter() {
        let pair = |value: &str| vec![(key.path.to_owned(), Some(value.to_owned()))];
        let (one, two) = (pair("1"), pair("2"));
        let shown = [("a", &one), ("b", &two)];
        let shown = shown.map(|(run, settings)| Labeled { recipe: "r", run, settings });
        let [first, second] = [0, 1].map(|at| labels(&shown)[at].clone());
        assert_ne!(first.text, second.text, "{}", key.path);
        assert!(first.text.chars().count() <= key.path.len() + 2, "{}: {}", key.path, first.text);
        let describes = key.class == Class::Bookkeeping && key.path != LABEL;
        let is_repetition = key.path == SEED || describes;
        assert_eq!(first.group == second.group, is_repetition, "{}", key.path);
    }
}
