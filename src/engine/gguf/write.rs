//! Writes a file, reads it back, and gives it its name.

use super::element::Element;
use super::head::{ALIGNMENT, Entry, MAGIC, head};
use super::value::Value;
use crate::atomic::Draft;
use crate::error::{Error, IoContext, Result};
use crate::regular;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Returns the numbers of a tensor.
type Numbers<'a> = Box<dyn Fn() -> Result<Vec<f32>> + 'a>;

/// A tensor of a file. Its numbers are made when they are written.
pub struct Tensor<'a> {
    /// Name in the file.
    pub name: String,
    /// Rows first, as in `[outputs, inputs]`.
    pub shape: Vec<usize>,
    /// Format to round to.
    pub element: Element,
    /// The numbers, row by row.
    pub numbers: Numbers<'a>,
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, shape, element, .. } = self;
        write!(f, "{name} {shape:?} {element:?}")
    }
}

impl Tensor<'_> {
    fn entry(&self) -> Entry<'_> {
        Entry { name: &self.name, shape: &self.shape, element: self.element }
    }

    /// Returns the elements as in the file, without what fills them up.
    fn encoded(&self) -> Result<Vec<u8>> {
        let numbers = (self.numbers)()?;
        let expected = self.entry().elements()?;
        if numbers.len() as u64 != expected {
            return Err(Error::failed(format!(
                "tensor {} has {} elements, but its shape {:?} has {expected}",
                self.name,
                numbers.len(),
                self.shape
            )));
        }
        self.element.encode(&numbers).map_err(|e| e.context(format!("tensor {}", self.name)))
    }
}

/// Writes a file at `path`: keys and tensors in the given order. Replaces a file in GGUF there, and no other.
/// The file is complete and durable, and its bytes were read back and compared, before it gets its name.
///
/// # Errors
/// A usage error if something else is at `path`, or a number does not fit its format. Fails if a name is
/// wrong, a tensor cannot be made or has another length than its shape, or the file cannot be written. After
/// an error what was at `path` is still there.
pub fn write(path: &Path, metadata: &[(String, Value)], tensors: &[Tensor<'_>]) -> Result<()> {
    let entries: Vec<Entry<'_>> = tensors.iter().map(Tensor::entry).collect();
    let head = head(metadata, &entries)?;
    check_target(path)?;
    let mut draft = Draft::begin(path)?;
    let mut written = blake3::Hasher::new();
    let mut append = |bytes: &[u8]| {
        written.update(bytes);
        draft.append(bytes)
    };
    append(&head)?;
    for tensor in tensors {
        let elements = tensor.encoded()?;
        append(&elements)?;
        let filling = elements.len().next_multiple_of(ALIGNMENT as usize) - elements.len();
        append(&[0; ALIGNMENT as usize][..filling])?;
    }
    let mut read = blake3::Hasher::new();
    draft.read_back(|part| _ = read.update(part))?;
    if read.finalize() != written.finalize() {
        return Err(Error::failed(format!(
            "{}: the bytes read back differ from those written; check the disk and export again",
            path.display()
        )));
    }
    draft.finish(&[])
}

/// Refuses to replace what is not a file in GGUF.
fn check_target(path: &Path) -> Result<()> {
    let other = |what: &str| {
        Err(Error::usage(format!("{} {what}; name a new file, such as model.gguf", path.display())))
    };
    match path.symlink_metadata() {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).at("read", path),
        Ok(there) if !there.is_file() => return other("is not a regular file"),
        Ok(_) => {}
    }
    let mut first = Vec::new();
    regular::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut first).at("read", path)?;
    if first != MAGIC { other("exists and is not in GGUF") } else { Ok(()) }
}
