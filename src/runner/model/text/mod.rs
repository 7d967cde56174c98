//! Model texts for a recipe: its keys as a text reads them, the roles and initial values of parameters, and
//! what each line costs.

mod cost;
mod keys;
mod parameters;
#[cfg(test)]
mod tests;

pub use cost::{LineCost, ParameterRow, TextCost, cost};
pub use keys::keys;

/// Name and text of each built-in model.
pub static BUILT_IN: [(&str, &str); 5] = [
    ("decoder", include_str!("../../../../data/models/decoder.model")),
    ("gpt2", include_str!("../../../../data/models/gpt2.model")),
    ("llama", include_str!("../../../../data/models/llama.model")),
    ("qwen3", include_str!("../../../../data/models/qwen3.model")),
    ("nanochat", include_str!("../../../../data/models/nanochat.model")),
];

/// Returns the text of a built-in model.
pub fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
