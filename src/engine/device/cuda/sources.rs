//! The kernels' sources, embedded in the binary.

use crate::regular;
use std::borrow::Cow;
use std::path::Path;

// build.rs generates `HEADERS` and `SOURCES`: the names and texts of all files in `kernels/`.
include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The environment variable for a folder whose files replace those in the binary, so that kernels can be
/// edited without rebuilding.
pub const FOLDER_VARIABLE: &str = "XRUN_KERNELS";

/// Returns the source of a kernel file.
///
/// Panics if the binary has no file with this name: a programming error.
pub fn source(file: &str) -> Cow<'static, str> {
    let embedded = SOURCES.iter().find(|(name, _)| *name == file);
    replaced(&format!("{file}.cu"))
        .unwrap_or_else(|| Cow::Borrowed(embedded.unwrap_or_else(|| panic!("no kernel file {file}")).1))
}

/// Returns the names and sources of the headers.
pub fn headers() -> Vec<(&'static str, Cow<'static, str>)> {
    HEADERS.iter().map(|(name, text)| (*name, replaced(name).unwrap_or(Cow::Borrowed(text)))).collect()
}

/// Returns a file from the folder in [`FOLDER_VARIABLE`], if it exists.
fn replaced(name: &str) -> Option<Cow<'static, str>> {
    let folder = std::env::var_os(FOLDER_VARIABLE)?;
    regular::read_text_through_link(&Path::new(&folder).join(name)).ok().map(Cow::Owned)
}
