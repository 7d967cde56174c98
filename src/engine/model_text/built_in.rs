//! The texts inside the binary.

/// Name and text of each built-in model. The first is the decoder that the keys of a recipe describe.
pub static BUILT_IN: [(&str, &str); 5] = [
    ("decoder", include_str!("../../../data/models/decoder.model")),
    ("gpt2", include_str!("../../../data/models/gpt2.model")),
    ("llama", include_str!("../../../data/models/llama.model")),
    ("qwen3", include_str!("../../../data/models/qwen3.model")),
    ("nanochat", include_str!("../../../data/models/nanochat.model")),
];

/// Their names.
pub const BUILT_IN_NAMES: [&str; 5] = ["decoder", "gpt2", "llama", "qwen3", "nanochat"];

/// Returns the text of a built-in model.
pub fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
