//! The part of a file before the elements: metadata and the table of tensors.

use super::element::Element;
use super::value::{Value, append_text};
use crate::error::{Error, Result};
use std::collections::BTreeSet;

/// The first bytes of every file.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";

/// The version of the format.
const VERSION: u32 = 3;

/// Bytes to a multiple of which every tensor begins. Files that do not name another have this one.
pub(super) const ALIGNMENT: u64 = 32;

/// Most dimensions of a tensor (`GGML_MAX_DIMS`).
const MAX_DIMS: usize = 4;

/// Most bytes of a tensor's name: `GGML_MAX_NAME` without the zero at its end.
const MAX_NAME: usize = 63;

/// Most bytes of a key.
const MAX_KEY: usize = (1 << 16) - 1;

/// A tensor in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub name: &'a str,
    /// Rows first, as in `[outputs, inputs]`.
    pub shape: &'a [usize],
    pub element: Element,
}

impl Entry<'_> {
    /// Returns the number of elements.
    ///
    /// # Errors
    /// If the tensor has no elements, too many dimensions, or more elements than a file can have.
    pub fn elements(&self) -> Result<u64> {
        let Self { name, shape, .. } = self;
        if shape.is_empty() || shape.len() > MAX_DIMS || shape.contains(&0) {
            return Err(Error::failed(format!(
                "tensor {name} has the shape {shape:?}; GGUF has 1 to {MAX_DIMS} dimensions of at least 1"
            )));
        }
        let elements = shape.iter().try_fold(1u64, |all, &size| all.checked_mul(size as u64));
        // A reader counts elements and bytes in numbers with a sign.
        elements.filter(|all| *all <= i64::MAX as u64 / 8).ok_or_else(|| too_large(name))
    }

    /// Returns the bytes of the elements.
    ///
    /// # Errors
    /// Like [`Entry::elements`].
    pub fn bytes(&self) -> Result<u64> {
        self.elements().map(|elements| elements * self.element.size())
    }
}

/// Returns everything before the elements, filled up to the alignment.
///
/// # Errors
/// If a name or key is empty, too long or given twice, a shape is wrong, or the file would be too large.
pub(super) fn head(metadata: &[(String, Value)], tensors: &[Entry<'_>]) -> Result<Vec<u8>> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    let mut names = BTreeSet::new();
    for (key, value) in metadata {
        check("key", key, MAX_KEY)?;
        if !names.insert(key.as_str()) {
            return Err(Error::failed(format!("two keys are named {key}")));
        }
        append_text(key, &mut bytes);
        value.append_to(&mut bytes);
    }
    let mut names = BTreeSet::new();
    let mut offset = 0u64;
    for tensor in tensors {
        let Entry { name, shape, element } = tensor;
        check("tensor", name, MAX_NAME)?;
        if !names.insert(*name) {
            return Err(Error::failed(format!("two tensors are named {name}")));
        }
        let size = tensor.bytes()?;
        append_text(name, &mut bytes);
        bytes.extend((shape.len() as u32).to_le_bytes());
        // The innermost dimension is first.
        bytes.extend(shape.iter().rev().flat_map(|&size| (size as u64).to_le_bytes()));
        bytes.extend(element.code().to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        offset = offset.checked_add(size).and_then(aligned).ok_or_else(|| too_large(name))?;
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
    Ok(bytes)
}

/// Returns the next multiple of the alignment; `None` if a file cannot be so large.
pub(super) fn aligned(offset: u64) -> Option<u64> {
    offset.checked_next_multiple_of(ALIGNMENT).filter(|end| *end <= i64::MAX as u64)
}

fn check(what: &str, name: &str, most: usize) -> Result<()> {
    match name.is_empty() || name.len() > most {
        true => Err(Error::failed(format!(
            "the name {name:?} of a {what} has {} bytes; GGUF has 1 to {most}",
            name.len()
        ))),
        false => Ok(()),
    }
}

fn too_large(name: &str) -> Error {
    Error::failed(format!("tensor {name} ends beyond any file"))
}
