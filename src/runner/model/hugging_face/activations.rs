//! Activations by their names in transformers (`activations.py`).

use crate::error::Result;
use crate::hugging_face::Config;
use crate::policy::{Activation, OrFormula};

/// Activations of gated layers (`act(gate) · up`) and their names. The first name of each is written on
/// export.
const GATED: [(&str, Activation); 6] = [
    ("silu", Activation::Swiglu),
    ("swish", Activation::Swiglu),
    ("gelu", Activation::Geglu),
    ("gelu_pytorch_tanh", Activation::GegluTanh),
    ("gelu_new", Activation::GegluTanh),
    ("relu", Activation::Reglu),
];

/// Activations of layers without a gate and their names. The first name of each is written on export.
const PLAIN: [(&str, Activation); 6] = [
    ("gelu", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("relu2", Activation::Relu2),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];

/// Returns true if transformers has the activation, given as a word or an equivalent formula. `gated` says
/// whether the class's layer has a gate.
pub(super) fn has(activation: &OrFormula<Activation>, gated: bool) -> bool {
    activation.built_in().is_some_and(|known| known.is_gated() == gated)
}

/// Returns the name of an activation that transformers has.
pub(super) fn word(activation: &OrFormula<Activation>) -> &'static str {
    let words = GATED.iter().chain(&PLAIN);
    let wanted = activation.built_in();
    words.filter(|(_, known)| Some(*known) == wanted).map(|(word, _)| *word).next().unwrap_or_default()
}

/// Returns the activation that a key names. `gated` says whether the class's layer has a gate.
///
/// # Errors
/// With a usage error if xrun does not have the activation.
pub(super) fn read(config: &Config, key: &str, default: &str, gated: bool) -> Result<Activation> {
    let name = config.word(key, Some(default))?;
    let words = if gated { &GATED } else { &PLAIN };
    words.iter().find(|(word, _)| *word == name).map(|(_, activation)| *activation).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        config.refuse(key, &format!("xrun has {} in such a layer", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::{Formula, Scope};

    #[test]
    fn a_formula_has_the_word_of_an_equal_activation() {
        let formula = |text| OrFormula::Formula(Formula::parse(text, Scope::Activation).unwrap());
        for activation in Activation::ALL {
            let same = formula(activation.as_formula());
            assert_eq!(same.built_in(), Some(*activation), "as_formula is canonical");
            assert_eq!(word(&same), word(&(*activation).into()));
            assert!(has(&same, activation.is_gated()) && !has(&same, !activation.is_gated()));
        }
        assert!(!has(&formula("x * sin(x)"), false));
    }

    #[test]
    fn every_activation_has_a_word_that_means_it() {
        for activation in Activation::ALL {
            let words = if activation.is_gated() { &GATED } else { &PLAIN };
            assert!(words.contains(&(word(&(*activation).into()), *activation)), "{activation}");
        }
    }
}
