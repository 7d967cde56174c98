//! Log-probabilities of answers by the reference model, the one with which a run on pairs of answers begins.
//! They are computed once. The run's folder keeps them, and the cache for other runs with the same model and
//! pairs.

use crate::device::cuda::cache_folder;
use crate::error::{Error, Result};
use crate::plan::{Adapter, Model, Plan};
use crate::{atomic, regular};
use std::path::{Path, PathBuf};

/// Name of the file in a run's folder.
pub(super) const REFERENCE: &str = "reference.bin";

/// Name of the folder in the cache.
const CACHED: &str = "reference";

/// What a file begins with: its kind and version.
const MAGIC: &[u8; 8] = b"xrunref1";

/// Bytes of a key, and of the hash that ends a file.
const HASH_BYTES: usize = blake3::OUT_LEN;

/// Largest file that is read: more pairs than that do not fit in memory as tokens.
const MAX_BYTES: u64 = 16 << 30;

/// The log-probabilities of the chosen and of the rejected answer of a pair, in nats.
pub(super) type Answers = [f64; 2];

/// Log-probabilities of all pairs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ReferenceLogProbs {
    /// Those of the pairs that are trained on.
    pub train: Vec<Answers>,
    /// Those of each held-out set, in the order of [`Dataset::held_out`](crate::data::Dataset::held_out).
    pub held_out: Vec<Vec<Answers>>,
}

/// Returns the log-probabilities for a batch whose sequences are the `pairs` with these indices, in the order
/// of [`Batch::reference`](crate::data::Batch::reference). A sequence that is no pair gets zeros.
pub(super) fn for_batch(pairs: &[u32], of: &[Answers]) -> Vec<f64> {
    let answers = |side: usize| {
        pairs.iter().map(move |&pair| of.get(pair as usize).map_or(0.0, |answers| answers[side]))
    };
    answers(0).chain(answers(1)).collect()
}

/// What log-probabilities were computed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReferenceKey {
    /// Hash of everything on which their bits may depend.
    pub all: [u8; HASH_BYTES],
    /// Hash of the pairs alone.
    pub pairs: [u8; HASH_BYTES],
}

/// Returns a hash of texts.
fn hash_of(texts: &[&str]) -> [u8; HASH_BYTES] {
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// Returns the key of the log-probabilities that a plan's model gives, with weights of this hash and training
/// and held-out pairs of these. `device` is the name of the device.
pub(super) fn key(plan: &Plan, weights: &str, pairs: &[&str], device: &str) -> ReferenceKey {
    let (batch, execution) = (&plan.batch, &plan.execution);
    // Nothing is dropped.
    let model = Model { dropout: 0.0, ..plan.model.canonical() };
    let adapter = plan.adapter.as_ref().map(|adapter| Adapter { dropout: 0.0, ..adapter.clone() });
    let model = format!("{model:?} {adapter:?}");
    let shape = format!("{:?} {} {}", plan.precision, batch.micro, batch.seq_len);
    let execution = format!("{:?} {}", execution.products, execution.fused);
    let rest = [env!("CARGO_PKG_VERSION"), weights, device, &model, &shape, &execution];
    ReferenceKey { all: hash_of(&[pairs, &rest].concat()), pairs: hash_of(pairs) }
}

/// Returns the path of an entry in the user's cache; `None` if the environment names no folder for one.
pub(super) fn cached(key: &ReferenceKey) -> Option<PathBuf> {
    let name = blake3::Hash::from_bytes(key.all).to_hex();
    Some(cache_folder()?.join(CACHED).join(&name[..32]).with_extension("bin"))
}

impl ReferenceLogProbs {
    /// Returns the content of a file.
    pub fn to_bytes(&self, key: &ReferenceKey) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &key.all, &key.pairs].concat();
        bytes.extend((self.held_out.len() as u64).to_le_bytes());
        for set in std::iter::once(&self.train).chain(&self.held_out) {
            bytes.extend((set.len() as u64).to_le_bytes());
            bytes.extend(set.iter().flatten().flat_map(|number| number.to_le_bytes()));
        }
        let hash = blake3::hash(&bytes);
        bytes.extend(hash.as_bytes());
        bytes
    }

    /// Reads the content of a file, with its key; `None` if it is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Option<(ReferenceKey, Self)> {
        let (content, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH_BYTES)?)?;
        if blake3::hash(content).as_bytes() != hash {
            return None;
        }
        let (all, rest) = content.strip_prefix(MAGIC)?.split_first_chunk::<HASH_BYTES>()?;
        let (pairs, mut rest) = rest.split_first_chunk::<HASH_BYTES>()?;
        let key = ReferenceKey { all: *all, pairs: *pairs };
        let count = |rest: &mut &[u8]| {
            let (count, more) = rest.split_first_chunk::<8>()?;
            *rest = more;
            usize::try_from(u64::from_le_bytes(*count)).ok()
        };
        let sets = count(&mut rest)?;
        let mut found = Vec::new();
        for _ in 0..sets.checked_add(1)? {
            let numbers = count(&mut rest)?.checked_mul(size_of::<Answers>())?;
            let (own, more) = rest.split_at_checked(numbers)?;
            let number = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes);
            let (numbers, _) = own.as_chunks::<8>();
            let (pairs, _) = numbers.as_chunks::<2>();
            found.push(pairs.iter().map(|pair| [number(&pair[0]), number(&pair[1])]).collect());
            rest = more;
        }
        rest.is_empty().then(|| {
            let train = found.remove(0);
            (key, Self { train, held_out: found })
        })
    }

    /// Reads the file of a run, which must be of the pairs of this key.
    ///
    /// # Errors
    /// If the file is missing or damaged, or of other pairs.
    pub fn of_run(run: &Path, key: &ReferenceKey) -> Result<Self> {
        let path = run.join(REFERENCE);
        let why = |why: &str| {
            Error::usage(format!(
                "{} {why}: the run cannot continue without the log-probabilities of its reference model. Begin a new run of \
                 the recipe",
                path.display()
            ))
        };
        let bytes = regular::read(&path, MAX_BYTES).map_err(|_| why("cannot be read"))?;
        let (of, found) = Self::from_bytes(&bytes).ok_or_else(|| why("is damaged"))?;
        if of.pairs == key.pairs { Ok(found) } else { Err(why("is of other pairs")) }
    }

    /// Reads an entry of the cache; `None` if there is none, or it is damaged.
    pub fn of_cache(path: &Path, key: &ReferenceKey) -> Option<Self> {
        let bytes = regular::read(path, MAX_BYTES).ok()?;
        Self::from_bytes(&bytes).filter(|(found, _)| found == key).map(|(_, found)| found)
    }

    /// Writes the file of a run.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, run: &Path, key: &ReferenceKey) -> Result<()> {
        atomic::write(&run.join(REFERENCE), &self.to_bytes(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ReferenceKey = ReferenceKey { all: [7; HASH_BYTES], pairs: [8; HASH_BYTES] };

    fn some() -> ReferenceLogProbs {
        ReferenceLogProbs {
            train: vec![[-1.5, -2.25], [f64::MIN_POSITIVE, -700.0]],
            held_out: vec![vec![[-3.0, -0.1]], Vec::new()],
        }
    }

    #[test]
    fn files_read_as_they_are_written_and_damage_is_found() {
        let bytes = some().to_bytes(&KEY);
        assert_eq!(ReferenceLogProbs::from_bytes(&bytes), Some((KEY, some())));
        for at in [0, 20, 60, 76, 92, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(ReferenceLogProbs::from_bytes(&damaged), None, "{at}");
        }
        assert!((0..bytes.len()).all(|len| ReferenceLogProbs::from_bytes(&bytes[..len]).is_none()));
        // A count beyond the file, with a hash that is right.
        let mut content = bytes[..bytes.len() - HASH_BYTES].to_vec();
        content[80..88].copy_from_slice(&u64::MAX.to_le_bytes());
        let hash = blake3::hash(&content);
        content.extend(hash.as_bytes());
        assert_eq!(ReferenceLogProbs::from_bytes(&content), None);
    }

    #[test]
    fn a_run_keeps_the_log_probabilities_of_its_own_pairs() {
        let run = tempfile::tempdir().unwrap();
        let missing = ReferenceLogProbs::of_run(run.path(), &KEY).unwrap_err();
        assert!(missing.message().contains("cannot be read"), "{missing}");
        some().write(run.path(), &KEY).unwrap();
        let elsewhere = ReferenceKey { all: [0; HASH_BYTES], ..KEY };
        assert_eq!(ReferenceLogProbs::of_run(run.path(), &elsewhere).unwrap(), some());
        let other = ReferenceKey { pairs: [0; HASH_BYTES], ..KEY };
        let other = ReferenceLogProbs::of_run(run.path(), &other).unwrap_err();
        assert!(other.message().contains("is of other pairs"), "{other}");
    }

    #[test]
    fn a_batch_has_those_of_its_pairs_and_zeros_beyond_them() {
        assert_eq!(for_batch(&[1, 5, 0], &some().train), [f64::MIN_POSITIVE, 0.0, -1.5, -700.0, 0.0, -2.25]);
    }
}
