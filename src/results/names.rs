//! Names of files in a run folder, and of folders in a results folder.

use crate::error::{Error, Result};

/// The recipe as written: all its layers in one file.
pub const RECIPE: &str = "recipe.toml";
/// The recipe with every value filled in.
pub const RESOLVED: &str = "resolved.toml";
/// The environment of the process that started the run; those that resumed it follow as `env-2.json` and so
/// on.
pub const ENVIRONMENT: &str = "env.json";
/// The deterministic rows.
pub const METRICS: &str = "metrics.csv";
/// The measured rows.
pub const TIMING: &str = "timing.csv";
/// The summary of the run.
pub const SUMMARY: &str = "summary.json";
/// The loss of every held-out document.
pub const DOCUMENTS: &str = "documents.csv";
/// Plain log lines.
pub const LOG: &str = "log";
/// The algorithms of matrix products on a GPU.
pub const ALGORITHMS: &str = "algorithms.json";
/// Where the time of a step goes, as `xrun profile RUN --keep` measured it.
pub const PROFILE: &str = "profile.json";
/// The folder of checkpoints.
pub const CHECKPOINT: &str = "checkpoint";
/// The folder of plots.
pub const PLOTS: &str = "plots";
/// The folder of event files for TensorBoard.
pub const TENSORBOARD: &str = "tensorboard";

/// The folder of kept runs in a results folder.
pub const KEPT: &str = "kept";
/// The folder of comparisons in a results folder.
pub const COMPARISONS: &str = "comparisons";
/// The file of a comparison in its folder.
pub const COMPARISON: &str = "comparison.json";
/// The file of a comparison of quality in its folder.
pub const QUALITY: &str = "quality.json";
/// The folder of coordinates in a results folder.
pub const COORDINATES: &str = "coordinates";
/// Slopes of coordinates in their folder.
pub const COORDINATES_JSON: &str = "coordinates.json";
/// Rows of coordinates in their folder.
pub const COORDINATE_ROWS: &str = "coordinates.csv";
/// The folder of compared binaries in a results folder, each under its BLAKE3.
pub const BINARIES: &str = "binaries";
/// The folder of sweeps in a results folder.
pub const SWEEPS: &str = "sweeps";
/// The ledger of sweeps in a results folder.
pub const LEDGER: &str = "ledger.jsonl";

/// Returns a recipe's name as a folder name: characters other than letters, digits, `.`, `_` and `-` become
/// `-`.
///
/// # Errors
/// For a name that becomes empty, begins with a dot, or is that of another folder in a results folder.
pub fn folder_name(recipe: &str) -> Result<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = recipe.chars().map(plain).collect();
    let taken = [KEPT, SWEEPS, COMPARISONS, COORDINATES, BINARIES].contains(&name.as_str());
    if taken || name.trim_matches(['.', '-']).is_empty() || name.starts_with('.') {
        return Err(Error::usage(format!(
            "`{recipe}` names no folder in the results: a name has a letter from a to z or a digit, begins \
             without a dot, and is none of {KEPT}, {SWEEPS}, {COMPARISONS}, {COORDINATES} and {BINARIES}; choose \
             another one"
        )));
    }
    Ok(name)
}
