//! Where a corpus lies.

use crate::policy::PathList;
use std::fmt;
use std::path::Path;

/// Files, folders and patterns whose documents follow each other, or one split of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorpusLocation {
    /// The paths, in order.
    pub paths: PathList,
    /// The split that is taken of each folder, by its name, such as `train`; `None` for all files.
    pub split: Option<String>,
}

impl<P: Into<PathList>> From<P> for CorpusLocation {
    fn from(paths: P) -> Self {
        Self { paths: paths.into(), split: None }
    }
}

impl CorpusLocation {
    /// Returns the corpus at one path.
    pub(super) fn at(path: &Path) -> Self {
        path.into()
    }
}

/// Writes the paths, the first ones if there are many, and the split.
impl fmt::Display for CorpusLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.paths.fmt(f)?;
        match &self.split {
            Some(split) => write!(f, " (split {split:?})"),
            None => Ok(()),
        }
    }
}
