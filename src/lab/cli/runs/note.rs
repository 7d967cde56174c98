//! `xrun runs note RUN TEXT`.

use crate::cli::terminal::print;
use crate::error::Result;
use crate::results::collection::{AnnotationChange, annotate, check_note, locate, read_annotations};
use crate::results::find;
use std::path::Path;

/// Arguments of `xrun runs note`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run: its folder, its name, a prefix of its name or hash, or `latest`.
    #[arg(value_name = "RUN")]
    run: String,
    /// The note, which replaces an earlier one. Without it, the current note is printed.
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// Remove the note.
    #[arg(long, conflicts_with = "text")]
    remove: bool,
}

/// Replaces, removes or prints a note.
///
/// # Errors
/// If there is no such run, or the annotations cannot be written.
pub fn run(args: &Args, results: &Path) -> Result<()> {
    let located = locate(&find::find(results, &args.run)?)?;
    let text = if args.remove { Some("") } else { args.text.as_deref() };
    if let Some(text) = text {
        check_note(text)?;
        return annotate(&located, vec![AnnotationChange::Note(text.to_owned())]);
    }
    match read_annotations(&located.results).0.remove(&located.id).and_then(|annotation| annotation.note) {
        Some(note) => print(&format!("{note}\n")),
        None => Ok(()),
    }
}
