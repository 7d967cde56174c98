//! Recipe files: reads them, and finds the one that `extends` names.

use super::builtin;
use super::diagnostic::Diagnostic;
use super::home::expand_home;
use super::source::{Origin, Source};
use crate::regular;
use crate::suggest::{nearest, nearest_beside};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Longest chain of `extends`.
const MAX_DEPTH: usize = 16;

/// Maximum size of a recipe file in bytes, so that a corpus named by mistake is not read.
const MAX_BYTES: u64 = 1 << 20;

/// Finds and reads the recipe that the last one of the chain extends by `name`.
///
/// # Errors
/// A diagnostic at `span` if the recipe is missing, unreadable, or already in the chain.
pub(super) fn follow(
    chain: &[Arc<Source>],
    name: &str,
    span: &Range<usize>,
) -> Result<Arc<Source>, Diagnostic> {
    let from = chain.last().expect("a chain starts with the recipe itself");
    let wrong = |title: String, label: &str, help: String| {
        Err(Diagnostic::new(title, help).key("extends").mark(from, span.clone(), label))
    };
    let base = if name.ends_with(".toml") {
        let path = from.folder().join(expand_home(name));
        match read(&path) {
            Ok(text) => Source::new(Origin::File(path), text),
            Err(reason) => {
                return wrong(
                    format!("cannot extend {}: {reason}", path.display()),
                    "not a readable recipe",
                    format!("a path is relative to the recipe that names it{}", beside(&path)),
                );
            }
        }
    } else if let Some((known, text)) = builtin::find(name) {
        Source::new(Origin::BuiltIn(known), text)
    } else {
        let near =
            nearest(name, builtin::names()).map_or(String::new(), |near| format!("did you mean {near:?}? "));
        let all = builtin::names().collect::<Vec<_>>().join(", ");
        return wrong(
            format!("there is no built-in recipe {name:?}"),
            "unknown recipe",
            format!("{near}built in are {all}; the name of a file ends in .toml"),
        );
    };
    if let Some(seen) = chain.iter().position(|source| same(source, &base)) {
        let mut round: Vec<String> = chain[seen..].iter().map(|source| source.name()).collect();
        round.push(base.name());
        return wrong(
            format!("recipes extend each other in a circle: {}", round.join(" → ")),
            "comes back here",
            "let one of them stand on its own".to_owned(),
        );
    }
    if chain.len() > MAX_DEPTH {
        return wrong(
            format!("more than {MAX_DEPTH} recipes extend one another"),
            "one too many",
            "merge some of them".to_owned(),
        );
    }
    Ok(base)
}

fn same(a: &Source, b: &Source) -> bool {
    match (&a.origin, &b.origin) {
        (Origin::File(a), Origin::File(b)) => {
            a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
        }
        (a, b) => a == b,
    }
}

/// Reads a recipe file of the user, who may have put a link in its place.
///
/// # Errors
/// The reason, if it cannot be read.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let metadata = path.metadata().map_err(|e| e.to_string())?;
    if metadata.is_dir() {
        return Err("it is a folder, neither a recipe nor a run".to_owned());
    }
    let size = metadata.len();
    if size > MAX_BYTES {
        return Err(format!("it has {size} bytes, and a recipe has at most {MAX_BYTES}"));
    }
    text(regular::read_through_link(path, MAX_BYTES))
}

/// Reads a recipe or summary in the folder of a run, which may come from someone else, so no link is
/// followed.
///
/// # Errors
/// The reason, if it cannot be read.
pub(super) fn read_in_run(path: &Path) -> Result<String, String> {
    text(regular::read(path, MAX_BYTES))
}

fn text(read: crate::error::Result<Vec<u8>>) -> Result<String, String> {
    let bytes = read.map_err(|e| e.message().to_owned())?;
    String::from_utf8(bytes).map_err(|e| {
        let good = e.utf8_error().valid_up_to();
        let line = e.as_bytes()[..good].iter().filter(|&&b| b == b'\n').count() + 1;
        format!("line {line} is not UTF-8 text (byte {good})")
    })
}

/// Returns true for the recipe of a run, which has the run's summary beside it.
pub(super) fn is_of_run(path: &Path) -> bool {
    path.with_file_name("summary.json").is_file()
}

/// Returns "; did you mean ...?" with the most similarly named recipe in the same folder, or an empty string.
pub(super) fn beside(path: &Path) -> String {
    nearest_beside(path, |name| name.ends_with(".toml"))
        .map_or(String::new(), |near| format!("; did you mean {}?", near.display()))
}
