//! The maximal update parametrization: at the base width it equals the standard one, and beyond it
//! activations and their updates keep their size.

use crate::engine::harness::{Setup, get};
use std::collections::BTreeMap;
use xrun::coordinates::{self, Request};
use xrun::machine::Machine;
use xrun::model::activations;
use xrun::optim::OPTIMIZERS;
use xrun::recipe;

/// Settings for muP on top of the tiny recipe, whose width is 32.
fn mup(base_dim: usize) -> Vec<String> {
    vec!["model.parametrization=mup".to_owned(), format!("model.base_dim={base_dim}")]
}

fn setup(settings: &[&[&str]], base_dim: usize) -> Setup {
    let mup = mup(base_dim);
    let settings: Vec<&str> = settings.concat().into_iter().chain(mup.iter().map(String::as_str)).collect();
    Setup::new(&settings)
}

#[test]
fn at_the_base_width_it_is_the_standard_parametrization() {
    for entry in OPTIMIZERS {
        let optimizer = format!("optimizer.name={}", entry.name);
        for others in [
            &["model.qk_norm=false"][..],
            &["model.qk_norm=false", "model.init_std=0.02", "model.position=learned"],
        ] {
            let settings = [&[optimizer.as_str()], others].concat();
            let (standard, same) = (Setup::new(&settings), setup(&[&settings], 32));
            assert_eq!(standard.listing(), same.listing(), "{settings:?}");
            assert_eq!(standard.train_one(3).difference(&same.train_one(3)), None, "{settings:?}");
        }
    }
}

/// Returns the deviation of every drawn parameter.
fn deviations(setup: &Setup) -> BTreeMap<String, f64> {
    let engine = setup.engine();
    let params = setup.programs.state.params.iter().filter(|param| param.role.is_matrix());
    let deviation = |name: &str| {
        let values = get(&engine, &format!("params.{name}"));
        (values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64).sqrt()
    };
    params.map(|param| (param.name.clone(), deviation(&param.name))).collect()
}

/// At the base width, a quarter of this one, matrices between widths have twice the deviation, and everything
/// else has the same.
#[test]
fn initial_values_follow_the_base_width() {
    let narrow = (3.0f64 * 8.0).sqrt();
    for (init_std, embedding, matrix) in [(None, 1.0 / narrow, 0.5 / narrow), (Some(0.02), 0.02, 0.01)] {
        let std = init_std.map(|std| format!("model.init_std={std}"));
        let others = ["model.position=learned", "model.head_dim=8", "model.residual_init=unscaled"];
        let settings: Vec<&str> = others.into_iter().chain(std.as_deref()).collect();
        for (name, found) in deviations(&setup(&[&settings], 8)) {
            let expected = match name.as_str() {
                "embedding" | "head" | "positions" => embedding,
                name if name.ends_with(".down") && init_std.is_none() => matrix * (32.0f64 / 40.0).sqrt(),
                _ => matrix,
            };
            assert!((found / expected - 1.0).abs() < 0.1, "{name} {init_std:?}: {found} for {expected}");
        }
    }
    assert_eq!(setup(&[&["model.logit_scale=3.0"]], 8).plan.model.logit_scale, 0.75);
    let zero = deviations(&setup(&[&["model.head_init=zero"]], 8));
    assert_eq!(
        zero.iter().filter(|(_, found)| **found == 0.0).map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["head"]
    );
}

/// Whatever parts a model has, an evaluation writes the tensors whose size is measured.
#[test]
fn activations_are_found_in_every_model() {
    for settings in [
        &[][..],
        &["engine.fused=false"],
        &["model.norm_placement=post", "model.bias=true", "model.position=learned"],
        &["model.norm_placement=sandwich", "model.embedding_scale=2.0", "training.dtype=bf16"],
        &["model.parallel_blocks=true", "model.embedding_norm=true", "model.logit_scale=0.5"],
        &["model.tie_embeddings=true", "model.norm=layer_norm", "model.activation=gelu"],
    ] {
        let setup = Setup::new(settings);
        let activations = activations(&setup.plan.graph);
        let names: Vec<&str> = activations.iter().map(|(_, name)| name.as_str()).collect();
        let mut found = vec![0; names.len()];
        let see = |at: usize, values: Vec<f64>| found[at] = values.len();
        setup.engine().inspect_each(&setup.programs.evaluate, &names, 3, see).unwrap();
        let (dim, vocab) = (setup.plan.model.dim, setup.plan.model.vocab_size);
        let expected: Vec<usize> =
            names.iter().map(|name| if name.starts_with("head.") { 3 * vocab } else { 3 * dim }).collect();
        assert_eq!(found, expected, "{settings:?}");
    }
}

/// A few steps of a small model at three widths.
const SMALL: &str = r#"
[model]
dim = 64
n_layers = 1
head_dim = 16
base_dim = 64
head_init = "zero"

[training]
seq_len = 32
local_batch_size = 8
steps = 100

[optimizer]
lr = 2e-3

[data]
corpus = "stories"
tokenizer = "stories"
train_tokens = 50_000
validation_tokens = 2_000

[activation_checkpoint]
mode = "none"

[engine]
device = "cpu"
"#;

/// Returns the largest slope of any size or change after any step, and a description of it.
fn steepest(settings: &[&str]) -> (f64, String) {
    let overrides: Vec<String> = settings.iter().map(ToString::to_string).collect();
    let machine = Machine::here();
    let recipe =
        recipe::load_str("small.toml".as_ref(), SMALL, &overrides, std::iter::empty(), &machine).unwrap();
    let results = tempfile::tempdir().unwrap();
    let request = Request { widths: vec![64, 128, 256], steps: 4, seeds: 1, compare: false };
    let ended = coordinates::run(&recipe, &request, results.path(), &machine, |_, _, _| {}).unwrap();
    let slopes = ended.found.slopes.iter().filter(|slope| slope.step > 0);
    let all = slopes.flat_map(|slope| {
        let name = |of| format!("{} {of} after step {}", slope.quantity, slope.step);
        [(slope.rms, name("size")), (slope.change_rms, name("change"))]
    });
    let known = all.filter_map(|(slope, name)| Some((slope?, name)));
    known.max_by(|(one, _), (other, _)| one.abs().total_cmp(&other.abs())).unwrap()
}

/// Optimizers at rates at which they learn, and the steepest slope that counts as flat at these small widths.
/// Below the head, SGD's first updates are sums over few directions; that settles in wider models.
const FLAT: [(&[&str], f64); 5] = [
    (&["optimizer.lr=2e-3"], 0.15),
    (&["optimizer.name=lion", "optimizer.lr=4e-4"], 0.15),
    (&["optimizer.name=muon", "optimizer.lr=2e-3"], 0.15),
    (&["optimizer.name=muon", "optimizer.adjust=original", "optimizer.lr=4e-3"], 0.15),
    (&["optimizer.name=sgd", "optimizer.lr=0.1", "model.qk_norm_weight=false"], 0.35),
];

#[test]
fn coordinates_are_flat_under_mup_and_not_under_the_standard_parametrization() {
    for (settings, flat) in FLAT {
        let (slope, what) = steepest(&[settings, &["model.parametrization=mup"]].concat());
        assert!(slope.abs() < flat, "{settings:?}: {what} has {slope}");
    }
    let (slope, what) = steepest(FLAT[0].0);
    assert!(slope.abs() > 0.5, "{what} has {slope}");
}
