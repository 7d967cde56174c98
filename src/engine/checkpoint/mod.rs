//! Checkpoints: training states on disk. A checkpoint is either complete or absent, and is verified before it
//! is used.
//!
//! ```text
//! checkpoint/
//!   step-000100/{model.safetensors, optimizer.safetensors, manifest.json}
//!   step-000200/…
//!   latest, best      "step-000200"
//!   .tmp-…            an unfinished save; removed when the folder is next opened for writing
//!   .old-step-000200  a checkpoint that a new save of the same step is replacing
//! ```
//!
//! `docs/checkpoints.md` specifies the format and which faults it survives.

pub mod fs;
mod load;
mod manifest;
mod pace;
mod save;
pub mod tensor_file;
mod tensors;
mod writer;

pub use fs::write_synced;
pub use fs::{DiskFs, Fs, SyncWrite};
pub use load::{Loaded, at_step, first_difference, newest, newest_resumable, steps};
pub use manifest::{FileRecord, Meta};
pub use save::{Saved, Store};
pub use tensors::{Snapshot, TensorView};
pub use writer::{BackgroundWriter, HeldState, Write, Written};

/// Key in [`Meta::extra`] for the id of the token that ends a document, in decimal.
pub const END_TOKEN_ID: &str = "end_token_id";

/// Key in [`Meta::extra`] for the hash of the run's initial weights: of a folder, or of a checkpoint's
/// state.
pub const INITIAL_WEIGHTS: &str = "initial_weights";

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const MANIFEST: &str = "manifest.json";
const LATEST: &str = "latest";
const BEST: &str = "best";
const TEMPORARY: &str = ".tmp-";
const REPLACED: &str = ".old-";

/// Returns the folder name of a step's checkpoint.
pub fn folder_name(step: u64) -> String {
    format!("step-{step:06}")
}

/// Returns the step in a folder name, or `None` if [`folder_name`] never returns that name.
pub fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (folder_name(step) == name).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_folder_names_are_checkpoints() {
        for step in [0, 7, 123, 999_999, 1_000_000, u64::MAX] {
            assert_eq!(step_of(&folder_name(step)), Some(step));
        }
        for name in ["step-7", "step-+00007", "step-0000007", "step-", "../step-000007", "step-000007/", "x"]
        {
            assert_eq!(step_of(name), None, "{name}");
        }
    }
}
