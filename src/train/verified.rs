//! Files of a run that are read again, verified against its checkpoint.

use crate::checkpoint::Loaded;
use crate::data::tokenizer::MAX_JSON_BYTES;
use crate::error::{Error, IoContext, Result};
use crate::model::hf_export::CHAT_TEMPLATE;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// File name of the tokenizer in a run folder.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Returns the tokenizer.json of a run.
///
/// # Errors
/// When it cannot be read, or is not the one that the checkpoint was trained with.
pub fn tokenizer_json(run: &Path, loaded: &Loaded) -> Result<String> {
    let path = run.join(TOKENIZER);
    let file = File::open(&path).at("open", &path).map_err(|e| Error::usage(e.message()))?;
    let mut bytes = Vec::new();
    file.take(MAX_JSON_BYTES + 1).read_to_end(&mut bytes).at("read", &path)?;
    let expected = &loaded.meta().tokenizer_hash;
    let hash = blake3::hash(&bytes).to_hex();
    if hash.as_str() != expected {
        return Err(Error::failed(format!(
            "{} was changed since the run: its hash is {hash}, and {} was trained with {expected}. Restore the file",
            path.display(),
            loaded.path().display()
        )));
    }
    String::from_utf8(bytes)
        .map_err(|e| Error::failed(format!("{} is not UTF-8: {}", path.display(), e.utf8_error())))
}

/// Returns the chat template that was imported with a run; `None` if there is none.
///
/// # Errors
/// When it cannot be read.
pub fn chat_template(run: &Path) -> Result<Option<String>> {
    let path = run.join(CHAT_TEMPLATE);
    match std::fs::read_to_string(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        text => text.at("read", &path).map(Some),
    }
}
