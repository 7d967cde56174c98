//! A row of `documents.csv`.

use serde::{Deserialize, Serialize};

/// Name of the set of `data.validation` there: no set of `validation.sets` can have this name.
const MAIN_SET: &str = "data.validation";

/// The loss of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentLoss {
    /// The held-out set.
    pub set: String,
    /// Number of the document in the set, from 0.
    pub document: u64,
    /// Its tokens that were evaluated, the one that ends it included.
    pub tokens: u64,
    /// Bytes of text that they stand for; blank where that is not known.
    pub bytes: Option<u64>,
    /// Mean loss over these tokens, in nats.
    pub loss: f64,
}

impl DocumentLoss {
    /// Returns the name under which a row has a set, which is empty for that of `data.validation`.
    pub fn set_name(set: &str) -> String {
        if set.is_empty() { MAIN_SET } else { set }.to_owned()
    }
}
