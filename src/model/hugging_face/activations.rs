//! Activations in transformers' words (`activations.py`).

use crate::error::Result;
use crate::hugging_face::Config;
use crate::policy::Activation;

/// Activations of gated layers (`act(gate) · up`), and the words for them; the first of each is written.
const GATED: [(&str, Activation); 6] = [
    ("silu", Activation::Swiglu),
    ("swish", Activation::Swiglu),
    ("gelu", Activation::Geglu),
    ("gelu_pytorch_tanh", Activation::GegluTanh),
    ("gelu_new", Activation::GegluTanh),
    ("relu", Activation::Reglu),
];

/// Activations of layers without a gate, and the words for them; the first of each is written.
const PLAIN: [(&str, Activation); 6] = [
    ("gelu", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("relu2", Activation::Relu2),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];

/// Returns the word for an activation.
pub(super) fn word(activation: Activation) -> &'static str {
    let words = GATED.iter().chain(&PLAIN);
    words.filter(|(_, known)| *known == activation).map(|(word, _)| *word).next().unwrap_or_default()
}

/// Returns the activation that a key names; `gated` where the class's layer has a gate.
///
/// # Errors
/// A usage error for one that xrun does not have.
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

    #[test]
    fn every_activation_has_a_word_that_means_it() {
        for activation in Activation::ALL {
            let words = if activation.is_gated() { &GATED } else { &PLAIN };
            assert!(words.contains(&(word(*activation), *activation)), "{activation}");
        }
    }
}
