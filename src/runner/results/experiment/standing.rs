//! What an answer may claim: whether its question was there before its runs.

use serde::{Deserialize, Serialize};

/// Whether an answer tests a question, or looks at what is known already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Standing {
    /// The question was stored before the first of its runs began, with seeds that no earlier run of either
    /// arm had.
    Confirmatory,
    /// What the runs give could be known when the question was asked, so the answer has intervals but no
    /// verdict.
    Exploratory {
        /// Why, in sentences without a period.
        reasons: Vec<String>,
    },
}

/// How the standing of a record from before standings were recorded is called.
pub const NOT_RECORDED: &str = "not recorded";

impl Standing {
    /// Makes the standing from the reasons why the answer is exploratory.
    pub fn from_reasons(reasons: Vec<String>) -> Self {
        if reasons.is_empty() { Self::Confirmatory } else { Self::Exploratory { reasons } }
    }

    /// Returns the standing in a word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Confirmatory => "confirmatory",
            Self::Exploratory { .. } => "exploratory",
        }
    }
}
