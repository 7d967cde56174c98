//! A row of `documents.csv`.

use serde::{Deserialize, Serialize};

/// Name of the set of `data.validation` in `documents.csv`. The dot keeps sets of `validation.sets` from
/// having it.
const MAIN_SET: &str = "data.validation";

/// The loss of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentLoss {
    /// Name of the held-out set.
    pub set: String,
    /// Number of the document in the set, from 0.
    pub document: u64,
    /// Evaluated tokens of the document, its end token included.
    pub tokens: u64,
    /// Bytes of text that these tokens stand for; blank if unknown.
    pub bytes: Option<u64>,
    /// Mean loss over these tokens, in nats.
    pub loss: f64,
}

impl DocumentLoss {
    /// Returns the name of a set in rows. `set` is empty for the set of `data.validation`.
    pub fn set_name(set: &str) -> String {
        if set.is_empty() { MAIN_SET } else { set }.to_owned()
    }
}
