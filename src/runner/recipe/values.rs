//! A value type that is either a number or a word: the world size.

use serde::{Deserialize, Serialize};

/// The number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorldSize {
    /// One rank per device found, or the number in the launcher's environment.
    #[serde(rename = "auto")]
    Auto,
    /// Exactly this many.
    #[serde(untagged)]
    Fixed(usize),
}
