//! The folder of compiled kernels and chosen algorithms, shared by all runs on a machine.

use std::path::PathBuf;

/// Returns the folder where compiled kernels and chosen algorithms are kept between runs: `XRUN_CACHE`, else
/// `xrun` in the user's cache folder; `None` if the environment names neither.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("XRUN_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("xrun")))
        .or_else(|| set("HOME").map(|p| p.join(".cache/xrun")))
}
