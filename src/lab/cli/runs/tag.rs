//! `xrun runs tag RUN WORD…`.

use crate::cli::terminal::print;
use crate::error::Result;
use crate::results::collection::{AnnotationChange, annotate, check_tag, locate, read_annotations};
use crate::results::find;
use std::path::Path;

/// Arguments of `xrun runs tag`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run: its folder, its name, a prefix of its name or hash, or `latest`.
    #[arg(value_name = "RUN")]
    run: String,
    /// Tags by which `xrun runs tag=WORD` finds the run.
    #[arg(value_name = "WORD", required = true)]
    words: Vec<String>,
    /// Remove the tags instead.
    #[arg(long)]
    remove: bool,
}

/// Adds or removes tags, and prints the tags that the run then has.
///
/// # Errors
/// If there is no such run, a word cannot be a tag, or the annotations cannot be written.
pub fn run(args: &Args, results: &Path) -> Result<()> {
    let located = locate(&find::find(results, &args.run)?)?;
    if !args.remove {
        args.words.iter().try_for_each(|word| check_tag(word))?;
    }
    let change = if args.remove { AnnotationChange::Untag } else { AnnotationChange::Tag };
    annotate(&located, args.words.iter().cloned().map(change).collect())?;
    let annotation = read_annotations(&located.results).0.remove(&located.id).unwrap_or_default();
    let tags: Vec<String> = annotation.tags.into_iter().collect();
    let tags = if tags.is_empty() { "no tags".to_owned() } else { tags.join(" ") };
    print(&format!("{}: {tags}\n", located.id))
}
