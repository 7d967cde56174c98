//! Words in the names of files that say what the files are for.

use std::path::Path;

/// Parts of the names of files to train on, and of held-out files.
pub(super) const TRAINING: [&str; 1] = ["train"];
pub(super) const HELD_OUT: [&str; 3] = ["val", "valid", "validation"];

/// Other parts of the names of held-out files, of which token shards are trained on unless others are named
/// as training files.
pub(super) const OTHER_HELD_OUT: [&str; 3] = ["test", "dev", "heldout"];

/// Returns true if one of these words is a part of a path below the corpus's folder.
pub(super) fn is_named(below: &Path, words: &[&str]) -> bool {
    let name = below.to_string_lossy().to_lowercase();
    name.split(['/', '_', '-', '.']).any(|part| words.contains(&part))
}
