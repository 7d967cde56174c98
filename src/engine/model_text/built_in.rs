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

/// Name and text of each idea: models whose blocks no keys describe. Some need keys, which the first lines of
/// a text name.
pub static IDEAS: [(&str, &str); 8] = [
    ("gemma2", include_str!("../../../data/models/ideas/gemma2.model")),
    ("parallel", include_str!("../../../data/models/ideas/parallel.model")),
    ("latent_attention", include_str!("../../../data/models/ideas/latent_attention.model")),
    ("differential_attention", include_str!("../../../data/models/ideas/differential_attention.model")),
    ("gated_attention", include_str!("../../../data/models/ideas/gated_attention.model")),
    ("u_net", include_str!("../../../data/models/ideas/u_net.model")),
    ("nanochat_2026", include_str!("../../../data/models/ideas/nanochat_2026.model")),
    ("modded_nanogpt", include_str!("../../../data/models/ideas/modded_nanogpt.model")),
];

/// Returns the names and texts of [`BUILT_IN`] and [`IDEAS`].
pub fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
    BUILT_IN.iter().chain(&IDEAS).copied()
}

/// Returns the text of this name in [`texts`].
pub fn built_in(name: &str) -> Option<&'static str> {
    texts().find(|(known, _)| *known == name).map(|(_, text)| text)
}
