//! `tokens.json` beside the shards that `xrun data` writes: the tokenizer that made them, with its special
//! tokens, and the bytes of text that it lost. Shards hold only ids, which mean nothing without it.

use super::tokenizer::{LostBytes, Tokenizer};
use crate::atomic;
use crate::error::{Error, Result};
use crate::regular;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// File name of the manifest.
pub(super) const NAME: &str = "tokens.json";

/// Largest manifest that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// What is known about the tokens of a folder of shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardManifest {
    /// Hash of the tokenizer, in hexadecimal ([`Tokenizer::hash`]).
    pub tokenizer_hash: String,
    /// Number of token ids.
    pub vocab_size: u64,
    /// The token that ends a document.
    pub end_token_id: u32,
    /// The token that opens a document.
    pub opening_token_id: u32,
    /// Bytes of all text that the tokens lost; `None` if they are unknown.
    pub lost: Option<LostBytes>,
    /// Bytes of the held-out text that the tokens lost; `None` if they are unknown.
    pub held_out_lost: Option<LostBytes>,
    /// False while the shards are written, and for ever if that is interrupted.
    #[serde(default = "written_before")]
    is_complete: bool,
}

/// Earlier versions wrote the manifest last.
fn written_before() -> bool {
    true
}

impl ShardManifest {
    /// Describes shards that a tokenizer made.
    pub fn new(tokenizer: &Tokenizer, lost: Option<LostBytes>, held_out_lost: Option<LostBytes>) -> Self {
        Self {
            tokenizer_hash: tokenizer.hash(),
            vocab_size: tokenizer.vocab_size() as u64,
            end_token_id: tokenizer.end_token(),
            opening_token_id: tokenizer.opening_token(),
            lost,
            held_out_lost,
            is_complete: true,
        }
    }

    /// Marks a folder as incomplete, before the first shard is written into it. [`ShardManifest::write`] ends
    /// that.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn begin(folder: &Path, tokenizer: &Tokenizer) -> Result<()> {
        Self { is_complete: false, ..Self::new(tokenizer, None, None) }.write(folder)
    }

    /// Writes the manifest into a folder of shards.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|e| Error::failed(format!("cannot encode {NAME}: {e}")))?;
        atomic::write(&folder.join(NAME), format!("{json}\n").as_bytes())
    }

    /// Reads the manifest beside a shard; `None` if there is none, as beside shards of other programs.
    ///
    /// # Errors
    /// If it cannot be read or is damaged, or if the shards are incomplete.
    pub(super) fn beside(shard: &Path) -> Result<Option<Self>> {
        let path = shard.with_file_name(NAME);
        if !path.is_file() {
            return Ok(None);
        }
        let text = regular::read_through_link(&path, MAX_BYTES)?;
        let manifest: Self = serde_json::from_slice(&text).map_err(|e| {
            Error::usage(format!(
                "{}: {e}. It says which tokenizer made the shards beside it; write them again with `xrun data`",
                path.display()
            ))
        })?;
        if !manifest.is_complete {
            return Err(Error::usage(format!(
                "the token shards in {} are a part of a corpus, because `xrun data` was interrupted or still writes \
                 them; remove the folder and write them again",
                shard.parent().unwrap_or(Path::new(".")).display()
            )));
        }
        Ok(Some(manifest))
    }

    /// Rejects a tokenizer that differs from the one that made the shards, in its entries or its special
    /// tokens.
    ///
    /// # Errors
    /// The usage error names both.
    pub(super) fn check(&self, shard: &Path, tokenizer: &Tokenizer) -> Result<()> {
        let folder = shard.parent().unwrap_or(Path::new(".")).display();
        let wrong = |what: String, then: &str| {
            Err(Error::usage(format!("the token shards in {folder} {what}; {then}")))
        };
        if self.opening_token_id != tokenizer.opening_token() && self.tokenizer_hash == tokenizer.hash() {
            return wrong(
                format!(
                    "open documents with token {}, but data.begin_token says {}",
                    self.opening_token_id,
                    tokenizer.opening_token()
                ),
                "set data.begin_token as for `xrun data --begin-token`",
            );
        }
        if self.end_token_id != tokenizer.end_token() {
            return wrong(
                format!(
                    "end documents with token {}, but the end token in use is {}",
                    self.end_token_id,
                    tokenizer.end_in_words()
                ),
                "set data.tokenizer to the tokenizer.json beside them, with the tokenizer_config.json beside it",
            );
        }
        if self.tokenizer_hash != tokenizer.hash() {
            return wrong(
                "were made by a tokenizer that is not the one in use".to_owned(),
                "set data.tokenizer to the tokenizer.json beside them",
            );
        }
        Ok(())
    }
}
