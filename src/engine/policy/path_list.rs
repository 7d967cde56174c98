//! Paths of a corpus: one, or several whose documents follow each other.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// One path, or several in order. A recipe writes one as a string and several as a list. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct PathList(Vec<PathBuf>);

/// Paths as a recipe writes them.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    One(PathBuf),
    Several(Vec<PathBuf>),
}

impl PathList {
    /// Returns a list of paths; `None` if there are none.
    pub fn new(paths: Vec<PathBuf>) -> Option<Self> {
        (!paths.is_empty()).then_some(Self(paths))
    }

    /// Returns the paths in order.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(PathBuf::as_path)
    }

    /// Returns the path, if there is only one.
    pub fn single(&self) -> Option<&Path> {
        match self.0.as_slice() {
            [path] => Some(path),
            _ => None,
        }
    }

    /// Replaces every path by what `replace` returns.
    ///
    /// # Errors
    /// If `replace` fails.
    pub fn try_map<E>(&self, replace: impl FnMut(&Path) -> Result<PathBuf, E>) -> Result<Self, E> {
        Ok(Self(self.iter().map(replace).collect::<Result<_, E>>()?))
    }
}

impl<P: Into<PathBuf>> From<P> for PathList {
    fn from(path: P) -> Self {
        Self(vec![path.into()])
    }
}

impl TryFrom<Written> for PathList {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        match written {
            Written::One(path) => Ok(Self(vec![path])),
            Written::Several(paths) => Self::new(paths).ok_or("an empty list of paths"),
        }
    }
}

impl From<PathList> for Written {
    fn from(paths: PathList) -> Self {
        match <[PathBuf; 1]>::try_from(paths.0) {
            Ok([path]) => Self::One(path),
            Err(paths) => Self::Several(paths),
        }
    }
}

/// Writes the path, or the first one and how many follow.
impl fmt::Display for PathList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, more)) = self.0.split_first() else { return Ok(()) };
        first.display().fmt(f)?;
        match more {
            [] => Ok(()),
            [second] => write!(f, " and {}", second.display()),
            more => write!(f, " and {} more", more.len()),
        }
    }
}
