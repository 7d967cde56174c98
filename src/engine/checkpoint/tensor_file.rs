//! A safetensors file that is hashed while it is written, and read only after its hash was verified.
//!
//! The layout is <https://github.com/huggingface/safetensors#format>: a little-endian u64 header length, a
//! JSON header, then the tensors back to back. The `safetensors` crate encodes and checks the header; its own
//! writer is not used because it neither hashes nor syncs what it writes.

use super::fs::Fs;
use super::pace::Pace;
use super::tensors::{TensorView, check_name};
use crate::error::{Error, IoContext, Result};
use crate::interrupts;
use crate::regular;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// Bytes read or written at a time.
const CHUNK: usize = 4 << 20;
/// The header length of safetensors files is a u64.
const PREFIX: u64 = 8;
/// The format's own limit on its header.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The expected size and hash of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of the whole file.
    pub hash: blake3::Hash,
}

/// Writes the tensors in the given order and makes the content durable. Holds one tensor in memory at a time.
pub fn write(fs: &dyn Fs, path: &Path, tensors: &[TensorView]) -> Result<Content> {
    write_at(&Pace::default(), fs, path, tensors)
}

/// Writes like [`write`], at a pace.
pub(super) fn write_at(pace: &Pace, fs: &dyn Fs, path: &Path, tensors: &[TensorView]) -> Result<Content> {
    let header = header(tensors)?;
    let mut file = fs.create_file(path).at("create", path)?;
    let mut hasher = blake3::Hasher::new();
    let mut put = |bytes: &[u8]| -> Result<()> {
        for chunk in bytes.chunks(CHUNK) {
            let before = hasher.count();
            pace.hash(&mut hasher, chunk);
            file.write_all(chunk).at("write", path)?;
            if pace.syncs_between(before, hasher.count()) {
                file.sync().at("sync", path)?;
            }
            pace.count_part();
        }
        Ok(())
    };
    put(&(header.len() as u64).to_le_bytes())?;
    put(&header)?;
    for tensor in tensors {
        put(&tensor.bytes()?)?;
    }
    file.sync().at("sync", path)?;
    Ok(Content { bytes: hasher.count(), hash: hasher.finalize() })
}

/// Returns the JSON header, padded with spaces to a multiple of 8 bytes so that the tensors are aligned.
fn header(tensors: &[TensorView]) -> Result<Vec<u8>> {
    let mut names = BTreeSet::new();
    let mut infos = Vec::with_capacity(tensors.len());
    let mut start = 0usize;
    for t in tensors {
        check_name(&t.name)?;
        if !names.insert(&t.name) {
            return Err(Error::failed(format!("two tensors are named {}", t.name)));
        }
        let end = start
            .checked_add(t.byte_len()?)
            .ok_or_else(|| Error::failed(format!("tensor {} ends beyond any file", t.name)))?;
        let info = TensorInfo { dtype: t.dtype, shape: t.shape.clone(), data_offsets: (start, end) };
        infos.push((t.name.clone(), info));
        start = end;
    }
    // PyTorch's readers require this entry.
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let json = Metadata::new(Some(metadata), infos).map_err(|e| e.to_string());
    let json = json.and_then(|m| serde_json::to_vec(&m).map_err(|e| e.to_string()));
    let mut header = json.map_err(|e| Error::failed(format!("cannot encode a safetensors header: {e}")))?;
    header.resize(header.len().next_multiple_of(PREFIX as usize), b' ');
    Ok(header)
}

/// A file whose size, hash and header were verified. Tensors are read from it on demand.
///
/// Checkpoint files are never modified, so the bytes read are the bytes hashed. The open handle keeps them
/// readable even if the folder is removed.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    /// `None` once the file is closed.
    file: RwLock<Option<File>>,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    shape: Vec<usize>,
    offset: u64,
    bytes: usize,
}

impl TensorFile {
    /// Opens a file of fp32 tensors after verifying its size and hash.
    pub(super) fn open(path: &Path, expected: Content, pace: &Pace) -> Result<Self> {
        let mut file = regular::open(path)?;
        let bytes = file.metadata().at("read", path)?.len();
        if bytes != expected.bytes {
            return Err(Error::failed(format!(
                "{} holds {bytes} bytes, but its manifest says {}",
                path.display(),
                expected.bytes
            )));
        }
        if hash(&mut file, bytes, pace).at("read", path)? != expected.hash {
            return Err(Error::failed(format!("the content of {} does not match its hash", path.display())));
        }
        let entries = read_header(&file, bytes).map_err(|e| e.context(path.display()))?;
        Ok(Self { path: path.to_path_buf(), file: RwLock::new(Some(file)), entries })
    }

    /// Closes the file; later reads fail.
    pub fn close(&self) {
        *self.file.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the names of the tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Returns the shape of a tensor, or `None` if there is no tensor of that name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|e| e.shape.as_slice())
    }

    /// Returns the size of a tensor in bytes, or `None` if there is no tensor of that name.
    pub fn byte_len(&self, name: &str) -> Option<usize> {
        self.entries.get(name).map(|e| e.bytes)
    }

    /// Reads the tensor into `out`, which must have the tensor's length.
    pub fn read_into(&self, name: &str, out: &mut [u8]) -> Result<()> {
        let Some(entry) = self.entries.get(name) else {
            return Err(Error::failed(format!("{} has no tensor {name}", self.path.display())));
        };
        if out.len() != entry.bytes {
            return Err(Error::failed(format!(
                "tensor {name} in {} has {} bytes, but the buffer has {}",
                self.path.display(),
                entry.bytes,
                out.len()
            )));
        }
        match &*self.file.read().unwrap_or_else(PoisonError::into_inner) {
            Some(file) => interrupts::read_exact_at(file, out, entry.offset).at("read", &self.path),
            None => Err(Error::failed(format!("{} was closed before {name} was read", self.path.display()))),
        }
    }
}

/// Hashes the file. If it grew or shrank since `bytes` was measured, the hash will not match. `bytes` only
/// limits the buffer.
fn hash(file: &mut File, bytes: u64, pace: &Pace) -> std::io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK.min(usize::try_from(bytes).unwrap_or(CHUNK)).max(1)];
    loop {
        match interrupts::repeat(|| file.read(&mut buffer))? {
            0 => return Ok(hasher.finalize()),
            n => {
                pace.hash(&mut hasher, &buffer[..n]);
                pace.count_part();
            }
        }
    }
}

/// Reads the header of a file with `bytes` bytes, and checks every length in it against that size before
/// using it.
fn read_header(file: &File, bytes: u64) -> Result<BTreeMap<String, Entry>> {
    let io = |e: std::io::Error| Error::failed(format!("cannot read the header: {e}"));
    let mut prefix = [0; PREFIX as usize];
    interrupts::read_exact_at(file, &mut prefix, 0).map_err(io)?;
    let length = u64::from_le_bytes(prefix);
    let longest = bytes.saturating_sub(PREFIX).min(MAX_HEADER_BYTES);
    if length > longest {
        return Err(Error::failed(format!(
            "the header length is {length} bytes, but at most {longest} are possible"
        )));
    }
    let mut json = vec![0; length as usize];
    interrupts::read_exact_at(file, &mut json, PREFIX).map_err(io)?;
    let header: Metadata =
        serde_json::from_slice(&json).map_err(|e| Error::failed(format!("the header is wrong: {e}")))?;

    // The crate has checked that the tensors are contiguous from 0 and that each length matches its shape.
    let start = PREFIX + length;
    if header.data_len() as u64 != bytes - start {
        return Err(Error::failed(format!(
            "the header describes {} bytes of tensors, but the file holds {}",
            header.data_len(),
            bytes - start
        )));
    }
    let mut entries = BTreeMap::new();
    for (name, info) in header.tensors() {
        check_name(&name)?;
        if info.dtype != Dtype::F32 {
            return Err(Error::failed(format!("tensor {name} is {:?}, not F32", info.dtype)));
        }
        let (from, to) = info.data_offsets;
        entries
            .insert(name, Entry { shape: info.shape.clone(), offset: start + from as u64, bytes: to - from });
    }
    Ok(entries)
}
