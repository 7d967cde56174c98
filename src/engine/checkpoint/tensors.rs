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
    /// The tensor's name.
    pub name: String,
    /// Type of the elements.
    pub dtype: Dtype,
    /// The shape, without padding.
    pub shape: Vec<usize>,
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
}
