//! Activations by their names in transformers (`activations.py`).

use crate::error::Result;
use crate::hugging_face::Config;
use crate::policy::{Activation, OrFormula};

/// An activation of xrun: a built-in one or a formula, as formulas print.
#[derive(Clone, Copy, Debug)]
enum Form {
    Word(Activation),
    Formula(&'static str),
}

/// Activations of gated layers (`act(gate) · up`) and their names. The first name of each is written on
/// export.
const GATED: [(&str, Form); 15] = [
    ("silu", Form::Word(Activation::Swiglu)),
    ("swish", Form::Word(Activation::Swiglu)),
    ("gelu", Form::Word(Activation::Geglu)),
    ("gelu_pytorch_tanh", Form::Word(Activation::GegluTanh)),
    ("gelu_new", Form::Word(Activation::GegluTanh)),
    ("relu", Form::Word(Activation::Reglu)),
    ("gelu_python", Form::Word(Activation::Geglu)),
    ("gelu_python_tanh", Form::Word(Activation::GegluTanh)),
    ("gelu_fast", Form::Word(Activation::GegluTanh)),
    ("gelu_accurate", Form::Word(Activation::GegluTanh)),
    ("relu2", Form::Formula("relu(a)^2 * b")),
    ("tanh", Form::Formula("tanh(a) * b")),
    ("quick_gelu", Form::Formula("a * sigmoid(1.702 * a) * b")),
    ("mish", Form::Formula("a * tanh(softplus(a)) * b")),
    ("linear", Form::Formula("a * b")),
];

/// Activations of layers without a gate and their names. The first name of each is written on export.
const PLAIN: [(&str, Form); 15] = [
    ("gelu", Form::Word(Activation::Gelu)),
    ("gelu_new", Form::Word(Activation::GeluTanh)),
    ("gelu_pytorch_tanh", Form::Word(Activation::GeluTanh)),
    ("relu2", Form::Word(Activation::Relu2)),
    ("silu", Form::Word(Activation::Silu)),
    ("swish", Form::Word(Activation::Silu)),
    ("gelu_python", Form::Word(Activation::Gelu)),
    ("gelu_python_tanh", Form::Word(Activation::GeluTanh)),
    ("gelu_fast", Form::Word(Activation::GeluTanh)),
    ("gelu_accurate", Form::Word(Activation::GeluTanh)),
    ("relu", Form::Formula("relu(x)")),
    ("tanh", Form::Formula("tanh(x)")),
    ("quick_gelu", Form::Formula("x * sigmoid(1.702 * x)")),
    ("mish", Form::Formula("x * tanh(softplus(x))")),
    ("linear", Form::Formula("x")),
];

impl Form {
    fn is(self, activation: &OrFormula<Activation>) -> bool {
        match (self, activation) {
            (Self::Word(word), activation) => activation.built_in() == Some(word),
            (Self::Formula(text), OrFormula::Formula(formula)) => formula.text() == text,
            _ => false,
        }
    }
}

/// Returns the activations of layers with or without a gate.
fn known(gated: bool) -> &'static [(&'static str, Form)] {
    if gated { &GATED } else { &PLAIN }
}

/// Returns true if transformers has the activation, given as a word or an equivalent formula. `gated` says
/// whether the class's layer has a gate.
pub(super) fn has(activation: &OrFormula<Activation>, gated: bool) -> bool {
    known(gated).iter().any(|(_, form)| form.is(activation))
}

/// Returns the name of an activation that transformers has.
pub(super) fn word(activation: &OrFormula<Activation>) -> &'static str {
    let mut words = GATED.iter().chain(&PLAIN);
    words.find(|(_, form)| form.is(activation)).map(|(word, _)| *word).unwrap_or_default()
}

/// Returns the activation that a key names, as a recipe writes it. `gated` says whether the class's layer has
/// a gate.
///
/// # Errors
/// With a usage error if xrun does not have the activation.
pub(super) fn read(config: &Config, key: &str, gated: bool) -> Result<String> {
    let name = config.word(key, None)?;
    let form = known(gated).iter().find(|(word, _)| *word == name).map(|(_, form)| *form);
    match form {
        Some(Form::Word(word)) => Ok(word.to_string()),
        Some(Form::Formula(text)) => Ok(text.to_owned()),
        None => {
            let known: Vec<&str> = known(gated).iter().map(|(word, _)| *word).collect();
            Err(config.refuse(key, &format!("xrun has {} in such a layer", known.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::{Formula, Scope};

    fn formula(text: &str) -> OrFormula<Activation> {
        OrFormula::Formula(Formula::parse(text, Scope::Activation).unwrap())
    }

    #[test]
    fn a_formula_has_the_word_of_an_equal_activation() {
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
            let name = word(&(*activation).into());
            let named = known(activation.is_gated()).iter().find(|(word, _)| *word == name).unwrap();
            assert!(named.1.is(&(*activation).into()), "{activation}");
        }
        for (gated, (name, form)) in
            [true, false].into_iter().flat_map(|gated| known(gated).iter().map(move |k| (gated, k)))
        {
            if let Form::Formula(text) = form {
                let formula = formula(text);
                assert_eq!((word(&formula), formula.is_gated()), (*name, gated), "{text}");
            }
        }
    }
}
