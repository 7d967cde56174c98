//! Wrong formulas, and formulas that are the same however they are written.

use super::{check_files, check_settings, found, refused};
use std::path::Path;
use xrun::machine::Machine;
use xrun::recipe;

#[test]
fn wrong_formulas() {
    let activation = "model.activation";
    check_files(&[
        ("[model]\nactivation = \"x * tanh(softplus(x)\"\n", activation, "2:23", "a ) is missing"),
        (
            "[sweep.grid]\n\"model.activation\" = [\"swiglu\", 'silu(a) * x']\n",
            "sweep.grid",
            "2:44",
            "x beside a and b",
        ),
        ("[model]\nactivation = \"x^1e3\"\n", activation, "2:17", "at most 64"),
        ("[model]\nactivation = \"relu\"\n", activation, "2:15", "a function"),
        ("[model]\nactivation = \"x + \\\"1\\\"\"\n", activation, "2:14", "not part of a formula"),
        ("[model]\nactivation = 1\n", activation, "2:14", "a number"),
        ("[model]\nactivation = \"\"\n", activation, "2:15", "empty"),
        ("[model]\nactivation = \"2 * pi\"\n", activation, "2:15", "has no variable"),
        ("[lr_scheduler]\ndecay = \"2 - t\"\n", "lr_scheduler.decay", "2:9", "1.999 at t = 0.001"),
    ]);
    check_settings(&[(&["lr_scheduler.decay=1 - x"], "lr_scheduler.decay", 24, "unknown name")]);
}

/// If several formulas are wrong, the error reports all of them, and fast.
#[test]
fn hostile_formulas() {
    let long = format!("[model]\nactivation = \"x{}\"\n", "+x".repeat(500_000));
    let deep = format!("[lr_scheduler]\ndecay = \"{}t{}\"\n", "(".repeat(100), ")".repeat(100));
    let error = refused(&(long + &deep), &[], &[]);
    let found = found(&error);
    let keys: Vec<&str> = found.iter().map(|(keys, _)| keys.as_str()).collect();
    assert_eq!(keys, ["model.activation", "lr_scheduler.decay"]);
    assert!(error.message().contains("at most 256 characters"), "{}", error.message().len());
    assert!(error.message().contains("at most 16 parentheses"), "{}", error.message().len());
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
