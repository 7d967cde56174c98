//! The files beside the weights and the tokenizer that a run began with, in one file of its folder.

use super::request::Origin;
use super::start::Start;
use crate::data::chat::CHAT_TEMPLATE;
use crate::data::tokenizer::BUILT_IN;
use crate::error::{Error, Result};
use crate::hugging_face::Folder;
use crate::model::hugging_face::{Companions, MAX_COMPANION_BYTES, OF_MODEL, OF_TOKENIZER};
use crate::recipe::Recipe;
use crate::regular;
use crate::results::atomic;
use std::path::Path;

/// The file of a run.
const COMPANIONS: &str = "companions.json";

/// Reads the companions of a run; none if it began with no such files.
///
/// # Errors
/// If the file is not a regular file, is too large, or is not JSON.
pub fn companions(run: &Path) -> Result<Companions> {
    let path = run.join(COMPANIONS);
    let most = MAX_COMPANION_BYTES * 2 * (OF_MODEL.len() + OF_TOKENIZER.len()) as u64;
    match regular::is_missing(&path) {
        true => Ok(Companions::default()),
        false => Companions::from_json(&path, &text(&path, regular::read(&path, most)?)?),
    }
}

fn text(path: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes)
        .map_err(|e| Error::usage(format!("{}: not UTF-8: {}", path.display(), e.utf8_error())))
}

/// Writes the companions of a run, and those that a conversation needs, under their own names too.
///
/// # Errors
/// If a file cannot be written.
pub(super) fn write(run: &Path, companions: &Companions) -> Result<()> {
    if companions.0.is_empty() {
        return Ok(());
    }
    for name in OF_TOKENIZER {
        if let Some(text) = companions.get(name) {
            atomic::write(&run.join(name), text.as_bytes())?;
        }
    }
    atomic::write(&run.join(COMPANIONS), companions.to_json()?.as_bytes())
}

/// Reads some of the companions in a folder that others made.
///
/// # Errors
/// A usage error if one is larger than such files are, not a regular file, a link out of the folder, or not
/// UTF-8.
pub(super) fn from_folder(folder: &Folder, names: &[&str]) -> Result<Companions> {
    let read = |name: &&str| {
        let text = folder.text(name, MAX_COMPANION_BYTES).transpose()?;
        Some(text.map(|text| ((*name).to_owned(), text)))
    };
    names.iter().filter_map(read).collect::<Result<_>>().map(Companions)
}

/// Reads the companions beside a tokenizer.json; none for a built-in tokenizer.
///
/// # Errors
/// A usage error if one cannot be read, is larger than such files are, or is not UTF-8.
pub(super) fn beside_tokenizer(name: &str) -> Result<Companions> {
    let path = Path::new(name);
    if BUILT_IN.contains(&name) {
        return Ok(Companions::default());
    }
    let mut found = Companions::default();
    for name in OF_TOKENIZER {
        let path = path.with_file_name(name);
        if !regular::is_missing(&path) {
            let bytes = regular::read_through_link(&path, MAX_COMPANION_BYTES);
            let bytes = bytes.map_err(|e| Error::usage(e.message()))?;
            found.0.insert(name.to_owned(), text(&path, bytes)?);
        }
    }
    Ok(found)
}

/// Writes the companions of a new run: those of the run that it forks, or those beside its tokenizer and its
/// initial weights. A resumed run has its own.
///
/// # Errors
/// If one cannot be read or written.
pub(super) fn begin(run: &Path, origin: &Origin, recipe: &Recipe, start: &Start) -> Result<()> {
    let mut own = match origin {
        Origin::Resume(_) => return Ok(()),
        Origin::Fork { run, .. } => companions(run)?,
        Origin::Fresh => beside_tokenizer(&recipe.values().data.tokenizer)?,
    };
    if let Some(template) = &recipe.values().data.chat_template {
        let path = Path::new(template);
        let bytes = regular::read_through_link(path, MAX_COMPANION_BYTES);
        let bytes = bytes.map_err(|e| Error::usage(e.message()))?;
        own.0.insert(CHAT_TEMPLATE.to_owned(), text(path, bytes)?);
    }
    if let Some(initial) = &start.initial {
        let of_model = match (initial.base.folder(), initial.base.run()) {
            (Some(folder), _) => from_folder(folder, &OF_MODEL)?,
            (None, Some(run)) => companions(run)?,
            (None, None) => Companions::default(),
        };
        own.0.extend(of_model.0.into_iter().filter(|(name, _)| OF_MODEL.contains(&name.as_str())));
    }
    write(run, &own)
}
