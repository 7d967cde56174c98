//! `manifest.json`: the metadata of a checkpoint, the sizes and hashes of its files, and a hash of the
//! manifest itself.

use super::tensor_file::Content;
use crate::error::{Error, Result};
use crate::regular;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Format version, written to every manifest. A reader rejects any other.
const FORMAT: u32 = 1;
/// Maximum size in bytes: a manifest holds a recipe and a few hashes.
const MAX_BYTES: u64 = 16 << 20;

/// Metadata of a training state: enough to resume it, and to reject a resume with anything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// Optimizer steps taken.
    pub step: u64,
    /// Tokens trained on, over all ranks.
    pub tokens_seen: u64,
    /// Hash of the resolved recipe.
    pub recipe_hash: String,
    /// The resolved recipe, as TOML.
    pub resolved_recipe_toml: String,
    /// Hash of the tokenized corpus.
    pub corpus_hash: String,
    /// Hash of the tokenizer.
    pub tokenizer_hash: String,
    /// Number of ranks that trained.
    pub world_size: u64,
    /// Seed of initialization, sampling and dropout.
    pub seed: u64,
    /// Version of xrun that wrote the checkpoint.
    pub xrun_version: String,
    /// Everything else that results may depend on to the bit: the CPU's instruction set, or GPU model and
    /// library versions.
    pub engine: String,
    /// Hash of the table of matrix-product algorithms, if there is one.
    pub algorithms: Option<String>,
    /// Further values that a run restores, such as the state of a random generator.
    pub extra: BTreeMap<String, String>,
    /// Size and hash, by name, of each file that a resume continues, up to this step. Empty in checkpoints of
    /// earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rows: BTreeMap<String, FileRecord>,
}

/// Key in [`Meta::extra`] that marks a checkpoint without optimizer state.
const WEIGHTS_ONLY: &str = "weights_only";

/// Key in [`Meta::extra`] for the validation loss of the step, in nats per token.
const VALIDATION_LOSS: &str = "validation_loss";

/// Key in [`Meta::extra`] for the tokens that end a generated text besides the end token, with commas
/// between.
const STOP_TOKEN_IDS: &str = "stop_token_ids";

/// Key in [`Meta::extra`] for the updates that the optimizer's state had seen before the run's first step.
const UPDATES_BEFORE: &str = "updates_before";

impl Meta {
    /// Returns how many updates the optimizer's state had seen before the run's first step.
    pub fn updates_before(&self) -> u64 {
        self.extra.get(UPDATES_BEFORE).and_then(|updates| updates.parse().ok()).unwrap_or(0)
    }

    /// Sets how many updates the optimizer's state had seen before the run's first step.
    pub fn set_updates_before(&mut self, updates: u64) {
        set(&mut self.extra, UPDATES_BEFORE, (updates > 0).then(|| updates.to_string()));
    }

    /// Returns true if the checkpoint was saved without optimizer state.
    pub fn is_weights_only(&self) -> bool {
        self.extra.contains_key(WEIGHTS_ONLY)
    }

    /// Sets or clears the mark of a checkpoint without optimizer state.
    pub fn set_weights_only(&mut self, weights_only: bool) {
        set(&mut self.extra, WEIGHTS_ONLY, weights_only.then(|| "true".to_owned()));
    }

    /// Returns the tokens that end a generated text besides the end token.
    pub fn stop_token_ids(&self) -> Vec<u32> {
        let ids = self.extra.get(STOP_TOKEN_IDS).into_iter().flat_map(|ids| ids.split(','));
        ids.filter_map(|id| id.parse().ok()).collect()
    }

    /// Sets the tokens that end a generated text besides the end token.
    pub fn set_stop_token_ids(&mut self, ids: &[u32]) {
        let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        set(&mut self.extra, STOP_TOKEN_IDS, (!ids.is_empty()).then_some(ids));
    }

    /// Returns the validation loss of the step, in nats per token. `None` if the step was not evaluated, or
    /// if the run does not keep its best checkpoint.
    pub fn validation_loss(&self) -> Option<f32> {
        self.extra.get(VALIDATION_LOSS)?.parse().ok().filter(|loss: &f32| loss.is_finite())
    }

    /// Sets the validation loss of the step, in nats per token.
    pub fn set_validation_loss(&mut self, loss: Option<f32>) {
        set(&mut self.extra, VALIDATION_LOSS, loss.map(|loss| loss.to_string()));
    }
}

fn set(extra: &mut BTreeMap<String, String>, key: &str, value: Option<String>) {
    match value {
        Some(value) => _ = extra.insert(key.to_owned(), value),
        None => _ = extra.remove(key),
    }
}

/// Size and hash of a file, or of its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3, in hexadecimal.
    pub blake3: String,
}

/// A manifest without its own hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: u32,
    /// Number of saves so far. After a run went back to an earlier state, the step no longer tells which
    /// checkpoint is newest.
    pub(super) serial: u64,
    pub(super) meta: Meta,
    files: BTreeMap<String, FileRecord>,
}

impl Manifest {
    pub(super) fn new(
        serial: u64,
        meta: Meta,
        files: impl IntoIterator<Item = (&'static str, Content)>,
    ) -> Self {
        let record = |c: Content| FileRecord { bytes: c.bytes, blake3: c.hash.to_hex().to_string() };
        let files = files.into_iter().map(|(name, c)| (name.to_string(), record(c))).collect();
        Self { format: FORMAT, serial, meta, files }
    }

    /// Returns the expected size and hash of a file.
    pub(super) fn content(&self, name: &str) -> Result<Content> {
        let wrong = |what: &str| Error::failed(format!("the manifest has no {what} for {name}"));
        let record = self.files.get(name).ok_or_else(|| wrong("entry"))?;
        let hash = blake3::Hash::from_hex(&record.blake3).map_err(|_| wrong("valid hash"))?;
        Ok(Content { bytes: record.bytes, hash })
    }

    /// Returns a hash of the step, the tokens and the content of all files, in hexadecimal. It stays the same
    /// if a resumed run saves the same state again.
    pub(super) fn state_hash(&self) -> Result<String> {
        let state = serde_json::to_vec(&(self.meta.step, self.meta.tokens_seen, &self.files))
            .map_err(|e| Error::failed(format!("cannot encode a manifest: {e}")))?;
        Ok(blake3::hash(&state).to_hex().to_string())
    }

    /// Encodes the manifest as JSON that ends with a BLAKE3 hash of everything before it.
    pub(super) fn encode(&self) -> Result<String> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|e| Error::failed(format!("cannot encode a manifest: {e}")))?;
        let body = json.strip_suffix(CLOSE).unwrap_or(&json);
        Ok(format!("{body}{}", trailer(body)))
    }

    /// Decodes the output of [`Manifest::encode`]. Any changed byte is an error.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = || Error::failed("the manifest does not match its own hash");
        let text = std::str::from_utf8(bytes).map_err(|_| damaged())?;
        let at = text.len().checked_sub(trailer("").len()).ok_or_else(damaged)?;
        let body = text.get(..at).ok_or_else(damaged)?;
        if text[at..] != trailer(body) {
            return Err(damaged());
        }
        let json = format!("{body}{CLOSE}");
        let wrong = |e: serde_json::Error| Error::failed(format!("the manifest is wrong: {e}"));
        let Version { format } = serde_json::from_str(&json).map_err(wrong)?;
        if format != FORMAT {
            return Err(Error::failed(format!(
                "the manifest has format {format}, this xrun reads {FORMAT}: use the version that wrote it"
            )));
        }
        serde_json::from_str(&json).map_err(wrong)
    }

    /// Reads and checks a manifest.
    pub(super) fn read(path: &Path) -> Result<Self> {
        Self::decode(&regular::read(path, MAX_BYTES)?)
    }
}

#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// The end of a pretty-printed object.
const CLOSE: &str = "\n}";

/// Returns the last lines of a manifest, which always have the same length.
fn trailer(body: &str) -> String {
    format!(",\n  \"blake3\": \"{}\"\n}}\n", blake3::hash(body.as_bytes()).to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let meta = Meta {
            step: 7,
            tokens_seen: u64::MAX,
            recipe_hash: "r".into(),
            resolved_recipe_toml: "[model]\ndim = 8 # \"ü\"\n".into(),
            corpus_hash: "c".into(),
            tokenizer_hash: "t".into(),
            world_size: 2,
            seed: 1,
            xrun_version: "0.1.0".into(),
            engine: "avx2".into(),
            algorithms: None,
            extra: BTreeMap::from([("k".into(), "v".into())]),
            rows: BTreeMap::from([("metrics.csv".into(), FileRecord { bytes: 9, blake3: "b".into() })]),
        };
        Manifest::new(3, meta, [("model.safetensors", Content { bytes: 3, hash: blake3::hash(b"abc") })])
    }

    #[test]
    fn a_manifest_is_json_and_comes_back_whole() {
        let text = manifest().encode().unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["meta"]["tokens_seen"], u64::MAX);
        assert_eq!(json["blake3"].as_str().unwrap().len(), 64);
        assert_eq!(Manifest::decode(text.as_bytes()).unwrap(), manifest());
    }

    /// Checkpoints of earlier versions have no `rows`.
    #[test]
    fn a_manifest_without_rows_is_read() {
        let mut older = manifest();
        older.meta.rows.clear();
        let text = older.encode().unwrap();
        assert!(!text.contains("rows"));
        assert_eq!(Manifest::decode(text.as_bytes()).unwrap(), older);
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_found() {
        let text = manifest().encode().unwrap().into_bytes();
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&flipped).is_err(), "bit {bit}");
        }
        for length in 0..text.len() {
            assert!(Manifest::decode(&text[..length]).is_err(), "length {length}");
        }
    }

    #[test]
    fn the_validation_loss_comes_back_to_the_bit() {
        let mut meta = manifest().meta;
        for loss in [1.234_567_9_f32, f32::MIN_POSITIVE, 1e-10, 3.0] {
            meta.set_validation_loss(Some(loss));
            assert_eq!(meta.validation_loss().map(f32::to_bits), Some(loss.to_bits()));
        }
        meta.set_validation_loss(Some(f32::NAN));
        assert_eq!(meta.validation_loss(), None, "it is not the best of any");
        meta.set_validation_loss(None);
        meta.set_stop_token_ids(&[2, 10]);
        assert_eq!(meta.stop_token_ids(), [2, 10]);
        meta.set_stop_token_ids(&[]);
        meta.set_weights_only(true);
        assert!(meta.is_weights_only());
        meta.set_weights_only(false);
        assert_eq!(meta, manifest().meta);
    }

    #[test]
    fn another_format_is_named() {
        let mut newer = manifest();
        newer.format = 2;
        let error = Manifest::decode(newer.encode().unwrap().as_bytes()).unwrap_err();
        assert!(error.message().contains("format 2"), "{error}");
    }
}
