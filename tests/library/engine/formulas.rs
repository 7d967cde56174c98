//! Formulas as activations and as decays. Gated formulas are tested with the models in `models.rs`.

use crate::engine::gradient;
use crate::engine::harness::{Setup, Trained};
use std::fs;
use std::path::Path;
use xrun::error::ErrorKind;
use xrun::machine::Machine;
use xrun::recipe;

const ACTIVATION: &str = "model.activation=x * tanh(softplus(x)) - 0.2 * max(x, erf(x))^3 / sqrt(1 + x^2)";
const DECAY: &str = "lr_scheduler.decay=(1 - t)^2";

fn train(more: &[&str]) -> Vec<Trained> {
    Setup::new(more).train(4)
}

#[test]
fn gradients_are_those_of_finite_differences() {
    gradient::check(&[ACTIVATION, "model.bias=true"]);
    gradient::check(&[ACTIVATION, "engine.fused=false", "activation_checkpoint.mode=full"]);
    gradient::check(&["model.activation=cos(a) * b + exp(-b^2)", "model.ffn_dim=64"]);
}

#[test]
fn recomputation_placement_ranks_and_unfused_programs_change_no_bit() {
    for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
        let base = [ACTIVATION, DECAY, dtype, "training.accumulation=2"];
        let run = |more: &[&str]| train(&[&base, more].concat());
        let none = run(&["activation_checkpoint.mode=none"]).remove(0);
        assert!(none.bad.is_none(), "{dtype}: {:?}", none.bad);
        for more in [
            &["activation_checkpoint.mode=emitted", "engine.poison=true"][..],
            &["activation_checkpoint.mode=full", "engine.placement=naive", "engine.poison=true"],
            &["activation_checkpoint.mode=selective", "engine.threads=3"],
        ] {
            assert_eq!(run(more).remove(0).difference(&none), None, "{dtype}, {more:?}");
        }
        let [whole, sharded] = [&[][..], &["parallelism.shard=optimizer"]]
            .map(|more| run(&[&["parallelism.world_size=2"], more].concat()));
        for rank in whole.iter().chain(&sharded) {
            assert_eq!(rank.difference(&whole[0]), None, "{dtype}");
        }
    }
}

/// A formula rounds in other places than the built-in function.
#[test]
fn the_formula_of_a_word_trains_as_the_word() {
    for (word, formula) in [
        ("model.activation=relu2", "model.activation=relu(x)^2"),
        ("model.activation=gelu", "model.activation=gelu(x)"),
        ("model.activation=swiglu", "model.activation=silu(a) * b"),
        ("model.activation=geglu_tanh", "model.activation=gelu_tanh(a) * b"),
        ("lr_scheduler.decay=linear", "lr_scheduler.decay=1 - t"),
        ("lr_scheduler.decay=cosine", "lr_scheduler.decay=(1 + cos(pi * t)) / 2"),
    ] {
        let key = formula;
        let [word, formula] = [word, formula].map(|key| train(&[key]).remove(0));
        for (a, b) in word.losses().iter().zip(formula.losses()) {
            assert!((a - b).abs() <= 2e-5 * b.abs(), "{key}: {a} and {b}");
        }
    }
}

/// The recipes of formulas that have no built-in name: they learn.
#[test]
fn shipped_formulas_train() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/questions");
    let mut trained = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_string_lossy().starts_with("formula-") {
            continue;
        }
        let recipe = recipe::load(&path, &[], std::iter::empty(), &Machine::none()).unwrap();
        let changes = recipe.values().compare.change.iter();
        let keys: Vec<String> = changes
            .filter(|(key, _)| *key != "model.ffn_dim")
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap()))
            .collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let losses = Setup::new(&[&keys[..], &["data.corpus=stories"]].concat()).train_one(20).losses();
        assert!(losses[19] < losses[0] - 1.0, "{keys:?}: {losses:?}");
        trained += 1;
    }
    assert_eq!(trained, 4);
}

#[test]
fn what_would_fill_padding_is_refused() {
    for (formula, says) in [
        ("cos(x)", "24 columns that pad 40 to 64"),
        ("a + b + 1", "is not 0 at 0"),
        ("sqrt(abs(x) + x^2 + x)", "no finite slope at 0"),
    ] {
        let key = format!("model.activation={formula}");
        let error = Setup::try_new(&[&key]).err().expect(formula);
        assert!(error.kind() == ErrorKind::Usage && error.message().contains(says), "{error}");
        assert!(Setup::try_new(&[&key, "model.ffn_dim=128"]).is_ok(), "{formula}");
    }
}
