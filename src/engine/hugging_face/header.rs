//! The header of a safetensors file: <https://github.com/huggingface/safetensors#format>.
//!
//! Parsed here rather than by the `safetensors` crate, which silently takes the last of two tensors with one
//! name and whose errors do not say what is wrong.

use super::element::Element;
use super::files::OpenedFile;
use super::json::{self, UniqueKeys, shortened};
use crate::error::{Error, IoContext, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

/// Bytes before the header: its length as a little-endian u64.
const PREFIX: u64 = 8;
/// The limit that the format itself sets.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Most dimensions that a tensor of a model may have.
const MAX_DIMENSIONS: usize = 8;
/// Longest name of a tensor, in bytes.
const MAX_NAME: usize = 256;

/// The location of a tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorSpan {
    pub element: Element,
    pub shape: Vec<usize>,
    /// Offset of the first byte in the file.
    pub start: u64,
    pub bytes: usize,
}

/// A tensor as the header describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// An entry of the header: a tensor, or the metadata, which is not about tensors.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Tensor(TensorEntry),
    Metadata(BTreeMap<String, String>),
    Other(IgnoredAny),
}

const METADATA: &str = "__metadata__";

/// Reads the header of a file. Tensors lie back to back from the end of the header to the end of the file, in
/// any order, and each has exactly the bytes that its shape takes.
///
/// # Errors
/// A usage error that names the tensor: lengths that do not fit the file, tensors that overlap or leave a
/// gap, a shape that takes a different number of bytes, an unknown format, or two tensors with one name.
pub(super) fn read(opened: &OpenedFile) -> Result<BTreeMap<String, TensorSpan>> {
    let (path, bytes) = (&opened.path, opened.bytes);
    let wrong = |text: String| Error::usage(format!("{}: {text}", path.display()));
    let mut prefix = [0; PREFIX as usize];
    if bytes < PREFIX {
        return Err(wrong(format!("{bytes} bytes are not a safetensors file; download it again")));
    }
    opened.file.read_exact_at(&mut prefix, 0).at("read", path)?;
    let length = u64::from_le_bytes(prefix);
    let longest = (bytes - PREFIX).min(MAX_HEADER_BYTES);
    if length > longest {
        return Err(wrong(format!(
            "the header length is {length} bytes, but in a file of {bytes} bytes at most {longest} are possible: it is \
             cut short or not a safetensors file; download it again"
        )));
    }
    let mut json = vec![0; length as usize];
    opened.file.read_exact_at(&mut json, PREFIX).at("read", path)?;
    let UniqueKeys(entries) =
        json::parse::<UniqueKeys<Entry>>(path, &json).map_err(|e| e.context("the header"))?;
    let mut spans = BTreeMap::new();
    for (name, entry) in entries {
        match entry {
            Entry::Metadata(texts) if name == METADATA => drop(texts),
            Entry::Tensor(described) if name != METADATA => {
                let span = span(&name, described, PREFIX + length).map_err(&wrong)?;
                spans.insert(name, span);
            }
            Entry::Tensor(_) | Entry::Metadata(_) | Entry::Other(_) => {
                return Err(wrong(format!(
                    "{:?} of the header is not the dtype, shape and data_offsets of a tensor",
                    shortened(&name)
                )));
            }
        }
    }
    check_contiguous(&spans, PREFIX + length, bytes).map_err(wrong)?;
    Ok(spans)
}

/// Checks one tensor on its own. `base` is the offset in the file from which its offsets count.
fn span(name: &str, described: TensorEntry, base: u64) -> Result<TensorSpan, String> {
    let TensorEntry { dtype, shape, data_offsets: (from, to) } = described;
    let shown = shortened(name);
    if name.len() > MAX_NAME || name.is_empty() || name.chars().any(char::is_control) {
        return Err(format!("{shown:?} is not a tensor's name: it has 1 to {MAX_NAME} printable characters"));
    }
    let Some(element) = Element::from_name(&dtype) else {
        return Err(format!("tensor {shown} has the unknown dtype {:?}", shortened(&dtype)));
    };
    if shape.len() > MAX_DIMENSIONS {
        return Err(format!(
            "tensor {shown} has {} dimensions, but at most {MAX_DIMENSIONS} are read",
            shape.len()
        ));
    }
    let takes = shape.iter().try_fold(element.size(), |bytes, n| bytes.checked_mul(*n));
    let has = to.checked_sub(from);
    match (takes, has) {
        (Some(takes), Some(has)) if takes as u64 == has => {
            let start =
                base.checked_add(from).ok_or_else(|| format!("tensor {shown} begins at byte {from}"))?;
            Ok(TensorSpan { element, shape, start, bytes: takes })
        }
        (Some(takes), _) => Err(format!(
            "tensor {shown} of shape {shape:?} takes {takes} bytes, but its data_offsets are {from} to {to}"
        )),
        (None, _) => Err(format!("tensor {shown} has the shape {shape:?}, which no file can hold")),
    }
}

/// Checks that the tensors fill a file from byte `start` to its end, each byte exactly once.
fn check_contiguous(spans: &BTreeMap<String, TensorSpan>, start: u64, end: u64) -> Result<(), String> {
    let mut sorted: Vec<(&String, &TensorSpan)> = spans.iter().collect();
    sorted.sort_by_key(|(_, span)| (span.start, span.bytes));
    let (mut at, mut before) = (start, "the header");
    for (name, span) in sorted {
        let offset = span.start - start;
        if span.start < at {
            return Err(format!("tensor {name} begins at byte {offset} of the data, inside of {before}"));
        }
        if span.start > at {
            return Err(format!(
                "{} bytes between {before} and tensor {name} belong to nothing",
                span.start - at
            ));
        }
        at = span.start.saturating_add(span.bytes as u64);
        before = name;
    }
    match at {
        at if at > end => Err(format!(
            "tensor {before} ends at byte {at}, but the file has {end} bytes: it is cut short; download it again"
        )),
        at if at < end => Err(format!("the last {} bytes belong to no tensor", end - at)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::files;
    use super::*;

    /// Parses a file with this header and `data` bytes of data.
    fn parsed(header: &str, data: usize) -> Result<BTreeMap<String, TensorSpan>> {
        parsed_bytes(&[&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat())
    }

    fn parsed_bytes(bytes: &[u8]) -> Result<BTreeMap<String, TensorSpan>> {
        let at = tempfile::tempdir().unwrap();
        std::fs::write(at.path().join("m.safetensors"), bytes).unwrap();
        read(&files::open(at.path(), "m.safetensors").unwrap().unwrap())
    }

    fn tensor(name: &str, dtype: &str, shape: &str, from: u64, to: u64) -> String {
        format!(r#""{name}": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": [{from}, {to}]}}"#)
    }

    #[test]
    fn tensors_are_found_where_they_are_in_any_order() {
        let (a, b) = (tensor("a", "F32", "[2, 3]", 4, 28), tensor("b", "BF16", "[2]", 0, 4));
        let header = format!(
            r#"{{"__metadata__": {{"format": "pt"}}, {a}, {b}, {}}}"#,
            tensor("c", "F16", "[0, 5]", 28, 28)
        );
        let places = parsed(&header, 28).unwrap();
        let base = 8 + header.len() as u64;
        assert_eq!(
            places["a"],
            TensorSpan { element: Element::F32, shape: vec![2, 3], start: base + 4, bytes: 24 }
        );
        assert_eq!((places["b"].start, places["b"].bytes, places["c"].bytes), (base, 4, 0));
        assert_eq!(parsed("{}", 0).unwrap().len(), 0);
    }

    #[test]
    fn inconsistent_headers_are_refused_with_the_reason() {
        let one = |dtype: &str, shape: &str, from, to| format!("{{{}}}", tensor("a", dtype, shape, from, to));
        let two = |from, to| {
            format!("{{{}, {}}}", tensor("a", "F32", "[2]", 0, 8), tensor("b", "F32", "[1]", from, to))
        };
        for (header, data, says) in [
            (one("F32", "[2]", 0, 8), 4, "tensor a ends at byte"),
            (one("F32", "[2]", 0, 8), 12, "the last 4 bytes belong to no tensor"),
            (one("F32", "[2]", 4, 12), 12, "4 bytes between the header and tensor a belong to nothing"),
            (one("F32", "[3]", 0, 8), 8, "of shape [3] takes 12 bytes, but its data_offsets are 0 to 8"),
            (one("F32", "[2]", 8, 0), 8, "data_offsets are 8 to 0"),
            (one("F32", "[4294967296, 4294967296, 4]", 0, 8), 8, "which no file can hold"),
            (one("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4), 4, "9 dimensions"),
            (one("F31", "[1]", 0, 8), 8, "tensor a has the unknown dtype \"F31\""),
            (one("F32", "[-1]", 0, 4), 4, "not the dtype, shape and data_offsets"),
            (two(4, 8), 8, "tensor b begins at byte 4 of the data, inside of a"),
            (two(12, 16), 16, "4 bytes between a and tensor b"),
            (format!("{{{0}, {0}}}", tensor("a", "F32", "[1]", 0, 4)), 4, "\"a\" appears twice"),
            (one("F32", &format!("[{}]", u64::MAX / 4), 0, u64::MAX - 3), 0, "ends at byte"),
            ("{\"a\": 3}".to_owned(), 0, "\"a\" of the header is not"),
            ("{\"__metadata__\": {\"x\": 1}}".to_owned(), 0, "\"__metadata__\" of the header is not"),
            (
                format!("{{{}}}", tensor("__metadata__", "F32", "[1]", 0, 4)),
                4,
                "\"__metadata__\" of the header",
            ),
            (format!("{{{}}}", tensor(&"x".repeat(300), "F32", "[1]", 0, 4)), 4, "is not a tensor's name"),
            ("[]".to_owned(), 0, "expected an object"),
        ] {
            let error = parsed(&header, data).unwrap_err();
            assert!(
                error.message().contains(says) && error.message().contains("m.safetensors"),
                "{says}: {error}"
            );
        }
        for (bytes, says) in [
            (vec![1, 2, 3], "3 bytes are not a safetensors file"),
            (u64::MAX.to_le_bytes().to_vec(), "at most 0 are possible"),
            ([&100u64.to_le_bytes()[..], b"{}"].concat(), "the header length is 100 bytes"),
        ] {
            let error = parsed_bytes(&bytes).unwrap_err();
            assert!(error.message().contains(says), "{error}");
        }
    }
}
