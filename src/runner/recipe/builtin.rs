//! The built-in base recipes.

use crate::error::{Error, Result};
use crate::suggest::nearest;

/// Name and text of each recipe, in listing order.
pub static RECIPES: &[(&str, &str)] = &[
    ("quickstart", include_str!("../../../recipes/quickstart.toml")),
    ("dim384", include_str!("../../../recipes/dim384.toml")),
    ("dim768", include_str!("../../../recipes/dim768.toml")),
    ("v8-dim1024", include_str!("../../../recipes/v8-dim1024.toml")),
    ("base-160m", include_str!("../../../recipes/base-160m.toml")),
    ("qwen3-0.6b-shape", include_str!("../../../recipes/qwen3-0.6b-shape.toml")),
    ("long-context", include_str!("../../../recipes/long-context.toml")),
    ("gpt2-124m", include_str!("../../../recipes/gpt2-124m.toml")),
    ("smollm2-135m", include_str!("../../../recipes/smollm2-135m.toml")),
    ("qwen3-0.6b", include_str!("../../../recipes/qwen3-0.6b.toml")),
    ("nanochat-d12", include_str!("../../../recipes/nanochat-d12.toml")),
    ("width-transfer", include_str!("../../../recipes/width-transfer.toml")),
    ("v9-full-stack", include_str!("../../../recipes/v9-full-stack.toml")),
];

/// Returns the name and text of the built-in recipe called `name`.
pub fn find(name: &str) -> Option<(&'static str, &'static str)> {
    RECIPES.iter().copied().find(|(known, _)| *known == name)
}

/// Returns the same as [`find`], or an error.
///
/// # Errors
/// If there is no such recipe: a usage error that names the nearest one.
pub fn get(name: &str) -> Result<(&'static str, &'static str)> {
    find(name).ok_or_else(|| {
        let near = nearest(name, names()).map_or(String::new(), |near| format!("did you mean {near}? "));
        Error::usage(format!(
            "there is no built-in recipe {name:?}; {near}built in are {}",
            names().collect::<Vec<_>>().join(", ")
        ))
    })
}

/// Returns the names of the built-in recipes.
pub fn names() -> impl Iterator<Item = &'static str> {
    RECIPES.iter().map(|(name, _)| *name)
}
