//! What several checkpoint tests share: a small training state made from integers, and its meta.

use std::collections::BTreeMap;
use std::path::Path;
use xrun::checkpoint::{Loaded, Meta, Snapshot, TensorView, newest};

/// A training state in which every value depends on the tag.
pub struct State {
    tensors: Vec<(String, Vec<usize>, Vec<u8>)>,
    meta: Meta,
}

impl State {
    /// The state of a step, with values of a tag of its own.
    pub fn new(step: u64, tag: u32) -> Self {
        let mut tensors = Vec::new();
        let parameters: [(&str, &[usize]); 4] =
            [("embedding", &[11, 4]), ("blocks.0.qkv", &[12, 4]), ("final_norm", &[4]), ("empty", &[0, 4])];
        for (i, (name, shape)) in parameters.iter().enumerate() {
            for (j, prefix) in ["", "adam.m.", "adam.v."].iter().enumerate() {
                let n = shape.iter().product::<usize>() as u32;
                let value = |k: u32| (k * 31 + tag * 7 + (i * 3 + j) as u32) as f32 / 16.0;
                let bytes = (0..n).flat_map(|k| value(k).to_le_bytes()).collect();
                tensors.push((format!("{prefix}{name}"), shape.to_vec(), bytes));
            }
        }
        let meta = Meta {
            step,
            tokens_seen: u64::from(tag),
            recipe_hash: "recipe".into(),
            resolved_recipe_toml: "[model]\ndim = 4\n".into(),
            corpus_hash: "corpus".into(),
            tokenizer_hash: "tokenizer".into(),
            world_size: 1,
            seed: 7,
            xrun_version: "0.1.0".into(),
            engine: "scalar".into(),
            algorithms: None,
            extra: BTreeMap::from([("cursor".into(), "12".into())]),
            rows: BTreeMap::new(),
        };
        Self { tensors, meta }
    }

    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize], &[u8])> {
        self.tensors.iter().map(|(n, s, b)| (n.as_str(), s.as_slice(), b.as_slice()))
    }

    pub fn snapshot(&self) -> Snapshot<'_> {
        let views = self.tensors().map(|(n, s, b)| TensorView::new(n, s.to_vec(), b));
        let (optimizer, parameters): (Vec<_>, Vec<_>) = views.partition(|t| t.name.starts_with("adam."));
        Snapshot::new(parameters, optimizer)
    }

    pub fn hash(&self) -> blake3::Hash {
        let mut tensors: Vec<_> = self.tensors().collect();
        tensors.sort_unstable_by_key(|(name, ..)| *name);
        hash(tensors.into_iter())
    }
}

/// Returns the hash of all tensors of a checkpoint, equal to [`State::hash`] of the state that was saved.
pub fn loaded_hash(loaded: &Loaded) -> blake3::Hash {
    let shape = |name: &str| loaded.shape(name).unwrap();
    let tensors: Vec<_> = loaded
        .names()
        .into_iter()
        .map(|name| (name, shape(name), loaded.read(name, shape(name)).unwrap()))
        .collect();
    hash(tensors.iter().map(|(name, shape, bytes)| (*name, *shape, bytes.as_slice())))
}

/// Hashes name, shape and bytes of tensors in name order, every part preceded by its length.
fn hash<'a>(tensors: impl Iterator<Item = (&'a str, &'a [usize], &'a [u8])>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for (name, shape, bytes) in tensors {
        let shape: Vec<u8> = shape.iter().flat_map(|size| size.to_le_bytes()).collect();
        for part in [name.as_bytes(), &shape, bytes] {
            hasher.update(&part.len().to_le_bytes()).update(part);
        }
    }
    hasher.finalize()
}

/// A temporary folder in memory where there is one: thousands of them would keep a disk busy for a minute.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Which of the states the newest checkpoint of `dir` holds, whole and with its own meta; `None` without a
/// checkpoint. Panics when it is none of them.
pub fn newest_of(dir: &Path, states: &[&State]) -> Option<usize> {
    let loaded = newest(dir).unwrap_or_else(|e| panic!("nothing can be loaded: {e}"))?;
    let hash = loaded_hash(&loaded);
    let at = states.iter().position(|s| s.hash() == hash && s.meta() == loaded.meta());
    Some(at.expect("the newest checkpoint holds one of the states that were saved"))
}
