//! Named tensors to be written to a file.

use crate::error::{Error, Result};
use safetensors::Dtype;
use std::borrow::Cow;

const MAX_NAME: usize = 256;

type Read<'a> = Box<dyn Fn() -> Result<Cow<'a, [u8]>> + 'a>;

/// One tensor to be written: a name, a shape, and its row-major little-endian elements without padding.
///
/// The bytes are requested when the writer reaches the tensor, and dropped right after. A caller whose
/// tensors are padded or on a device therefore holds a copy of only one tensor at a time.
pub struct TensorView<'a> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    read: Read<'a>,
}

impl<'a> TensorView<'a> {
    /// Creates an fp32 tensor from bytes in memory.
    pub fn new(name: impl Into<String>, shape: Vec<usize>, bytes: &'a [u8]) -> Self {
        Self::lazy(name, Dtype::F32, shape, move || Ok(Cow::Borrowed(bytes)))
    }

    /// Creates a tensor whose bytes `read` returns when it is written. Every call must return the same bytes.
    pub fn lazy(
        name: impl Into<String>,
        dtype: Dtype,
        shape: Vec<usize>,
        read: impl Fn() -> Result<Cow<'a, [u8]>> + 'a,
    ) -> Self {
        Self { name: name.into(), dtype, shape, read: Box::new(read) }
    }

    /// Returns the tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the shape, without padding.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the length in bytes that dtype and shape require. Fails if the product overflows.
    pub fn byte_len(&self) -> Result<usize> {
        byte_len(self.dtype, &self.shape).ok_or_else(|| {
            Error::failed(format!("tensor {}: shape {:?} is too large", self.name, self.shape))
        })
    }

    /// Returns the bytes. Fails if their number does not match dtype and shape.
    pub fn bytes(&self) -> Result<Cow<'a, [u8]>> {
        let bytes = (self.read)()?;
        let expected = self.byte_len()?;
        if bytes.len() != expected {
            return Err(Error::failed(format!(
                "tensor {}: shape {:?} takes {expected} bytes, but {} were given",
                self.name,
                self.shape,
                bytes.len()
            )));
        }
        Ok(bytes)
    }
}

/// All tensors of a training state at one step, split by the files they are stored in.
#[derive(Default)]
pub struct Snapshot<'a> {
    pub(super) model: Vec<TensorView<'a>>,
    pub(super) optimizer: Vec<TensorView<'a>>,
}

impl<'a> Snapshot<'a> {
    /// Creates a snapshot from the parameters by name, and the optimizer's tensors under names such as
    /// `adam.m.<name>`.
    pub fn new(
        parameters: impl IntoIterator<Item = TensorView<'a>>,
        optimizer: impl IntoIterator<Item = TensorView<'a>>,
    ) -> Self {
        Self { model: parameters.into_iter().collect(), optimizer: optimizer.into_iter().collect() }
    }

    /// Drops the optimizer's tensors, except the ones whose names begin with `kept`.
    pub fn weights_only(mut self, kept: Option<&str>) -> Self {
        self.optimizer.retain(|tensor| kept.is_some_and(|prefix| tensor.name.starts_with(prefix)));
        self
    }

    /// Returns the parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &TensorView<'a>> {
        self.model.iter()
    }

    /// Returns every tensor, parameters first.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorView<'a>> {
        self.model.iter().chain(&self.optimizer)
    }
}

/// Returns the BLAKE3 hash of all tensors in name order: name, shape and bytes of each, every part preceded
/// by its length.
///
/// The hash depends only on names, shapes and values, not on files or order. Equal states have equal hashes
/// in memory and in a checkpoint (see [`super::Loaded::hash`]).
pub fn state_hash(snapshot: &Snapshot) -> Result<blake3::Hash> {
    let mut tensors: Vec<_> = snapshot.tensors().collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hasher = StateHasher::default();
    for t in tensors {
        hasher.add(&t.name, &t.shape, &t.bytes()?);
    }
    Ok(hasher.finish())
}

/// Hashes tensors that are passed in name order.
#[derive(Default)]
pub(super) struct StateHasher(blake3::Hasher);

impl StateHasher {
    pub(super) fn add(&mut self, name: &str, shape: &[usize], bytes: &[u8]) {
        self.number(name.len());
        self.0.update(name.as_bytes());
        self.number(shape.len());
        shape.iter().for_each(|&d| self.number(d));
        self.number(bytes.len());
        self.0.update_rayon(bytes);
    }

    pub(super) fn finish(&self) -> blake3::Hash {
        self.0.finalize()
    }

    fn number(&mut self, n: usize) {
        self.0.update(&(n as u64).to_le_bytes());
    }
}

/// Returns the bytes of a tensor with this dtype and shape. `None` if the product overflows or is not a whole
/// number of bytes.
pub(super) fn byte_len(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    let bits = elements.checked_mul(dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Rejects a tensor name that could be taken for a path or for part of the format.
pub(super) fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let ok = !name.is_empty()
        && name.len() <= MAX_NAME
        && name.chars().all(plain)
        && !name.starts_with('.')
        && !name.contains("..")
        && !name.starts_with("__");
    if ok {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{:?} is not a valid tensor name: letters, digits, `.`, `_` and `-`, at most {MAX_NAME}, without `..`",
        name.chars().take(80).collect::<String>()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_refused() {
        for name in ["", "../x", "/etc/passwd", "a/b", "a\\b", ".hidden", "a..b", "a\0b", "ü", "__metadata__"]
        {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        assert!(check_name(&"x".repeat(MAX_NAME + 1)).is_err());
        for name in ["embedding", "blocks.11.gate_up", "adam.m.blocks.0.q_norm", "a-b"] {
            check_name(name).unwrap();
        }
    }

    #[test]
    fn bytes_must_fit_the_shape() {
        let short = TensorView::new("a", vec![2, 3], &[0; 20]);
        assert!(short.bytes().unwrap_err().message().contains("takes 24 bytes, but 20 were given"));
        let huge = TensorView::new("a", vec![usize::MAX, 2], &[]);
        assert!(huge.bytes().unwrap_err().message().contains("too large"));
    }

    #[test]
    fn the_hash_sees_names_shapes_and_values_but_not_the_order() {
        let (zeros, ones) = ([0u8; 24], [1u8; 24]);
        let hash = |tensors: Vec<TensorView>| state_hash(&Snapshot::new(tensors, [])).unwrap();
        let t = |name: &str, shape: &[usize], bytes| TensorView::new(name, shape.to_vec(), bytes);
        let base = hash(vec![t("a", &[2, 3], &zeros), t("b", &[6], &ones)]);
        assert_eq!(base, hash(vec![t("b", &[6], &ones), t("a", &[2, 3], &zeros)]));
        assert_ne!(base, hash(vec![t("a", &[3, 2], &zeros), t("b", &[6], &ones)]));
        assert_ne!(base, hash(vec![t("a", &[2, 3], &ones), t("b", &[6], &ones)]));
        assert_ne!(base, hash(vec![t("a", &[2, 3], &zeros), t("c", &[6], &ones)]));
    }
}
