//! The folder that runs on a machine share: compiled kernels, chosen algorithms, tokens of texts.

use std::path::PathBuf;

/// Returns the folder in which compiled kernels, chosen algorithms and tokens of texts are kept between runs:
/// `XRUN_CACHE`, else `xrun` in the user's cache folder. `None` if the environment names neither.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("XRUN_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("xrun")))
        .or_else(|| set("HOME").map(|p| p.join(".cache/xrun")))
}

/// Name of the folder for tokens in the cache, and extension of the files that hold them.
pub const TOKENS: &str = "tokens";

/// Returns the folder of tokens of texts.
pub fn tokens_folder() -> Option<PathBuf> {
    cache_folder().map(|folder| folder.join(TOKENS))
}
