//! What a checkpoint was trained with: its recipe and its tokenizer.

use crate::checkpoint::{self, Loaded};
use crate::data::Tokenizer;
use crate::data::tokenizer::{FILE as TOKENIZER, MAX_JSON_BYTES};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::recipe::{self, Recipe};
use crate::regular;
use std::path::Path;

/// Returns the folder of the run that a checkpoint belongs to.
pub(super) fn run_of(loaded: &Loaded) -> Option<&Path> {
    loaded.path().parent()?.parent()
}

/// Returns the recipe that a checkpoint was trained with.
///
/// # Errors
/// If the recipe does not load.
pub fn recipe_of(loaded: &Loaded) -> Result<Recipe> {
    let name = Path::new("the checkpoint's recipe");
    recipe::load_resolved(name, &loaded.meta().resolved_recipe_toml, &[], &Machine::none())
}

/// Returns the tokenizer.json of a run.
///
/// # Errors
/// Fails like [`tokenizer_of`].
pub fn tokenizer_json(run: &Path, loaded: &Loaded) -> Result<String> {
    Ok(tokenizer_of(run, loaded)?.to_json().to_owned())
}

/// Opens the tokenizer of a run, with the end token that its checkpoint names.
///
/// # Errors
/// If its tokenizer.json cannot be read, or is not the one that the checkpoint was trained with.
pub fn tokenizer_of(run: &Path, loaded: &Loaded) -> Result<Tokenizer> {
    let path = run.join(TOKENIZER);
    let bytes = regular::read(&path, MAX_JSON_BYTES).map_err(|e| Error::usage(e.message()))?;
    let json = String::from_utf8(bytes).map_err(|e| {
        Error::failed(format!(
            "{} was changed since the run: it is not UTF-8 ({}). Restore the file",
            path.display(),
            e.utf8_error()
        ))
    })?;
    let (meta, at) = (loaded.meta(), loaded.path().display());
    let changed = |hash: &str| {
        Error::failed(format!(
            "{} was changed since the run: its hash with the end token is {hash}, but {at} was trained with {}. Restore \
             the file",
            path.display(),
            meta.tokenizer_hash
        ))
    };
    let end = match meta.extra.get(checkpoint::END_TOKEN_ID) {
        Some(id) => Some(id.parse().map_err(|_| {
            Error::failed(format!(
                "the end token {id:?} in {at} is not a token id; the checkpoint is damaged"
            ))
        })?),
        None => None,
    };
    let tokenizer = match Tokenizer::from_run(json, end) {
        Ok(tokenizer) => tokenizer,
        Err(e) => return Err(changed("unknown").context(e.message())),
    };
    let hash = tokenizer.hash();
    if hash == meta.tokenizer_hash { Ok(tokenizer) } else { Err(changed(&hash)) }
}
