//! `model.safetensors.index.json`: lists which file of a sharded model holds which tensor.

use super::files::OpenedFile;
use super::json::{self, UniqueKeys, shortened};
use crate::error::{Error, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;

/// File name of the index.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Largest index that is read, in bytes: models of 400 billion parameters have 200 KiB.
const MAX_BYTES: u64 = 16 << 20;

/// Most shards: models of 600 billion parameters have 200.
const MAX_SHARDS: usize = 4096;

#[derive(Deserialize)]
struct Index {
    /// Ignored: sizes for information, which tools often write wrongly.
    #[serde(default, rename = "metadata")]
    _metadata: IgnoredAny,
    weight_map: UniqueKeys<String>,
}

/// Returns the names of the tensors in each file.
///
/// # Errors
/// A usage error if a listed file is not a plain `*.safetensors` in this folder.
pub(super) fn read(opened: &OpenedFile) -> Result<BTreeMap<String, Vec<String>>> {
    let bytes = opened.read(MAX_BYTES)?;
    let index: Index = json::parse(&opened.path, &bytes)?;
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, file) in index.weight_map.0 {
        if !is_plain(&file) {
            return Err(Error::usage(format!(
                "{}: tensor {} is listed in {:?}, which is not a safetensors file in this folder: a name has letters, \
                 digits, `.`, `_` and `-` only",
                opened.path.display(),
                shortened(&tensor),
                shortened(&file)
            )));
        }
        files.entry(file).or_default().push(tensor);
    }
    if files.is_empty() || files.len() > MAX_SHARDS {
        return Err(Error::usage(format!(
            "{}: it names {} files, but a model has 1 to {MAX_SHARDS}",
            opened.path.display(),
            files.len()
        )));
    }
    Ok(files)
}

/// Returns true for names that cannot lead out of the folder.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.ends_with(".safetensors") && name.len() <= 255 && !name.starts_with('.') && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::super::files;
    use super::*;

    fn parsed(text: &str) -> Result<BTreeMap<String, Vec<String>>> {
        let at = tempfile::tempdir().unwrap();
        std::fs::write(at.path().join(INDEX), text).unwrap();
        read(&files::open(at.path(), INDEX).unwrap().unwrap())
    }

    #[test]
    fn tensors_are_listed_by_file() {
        let text = r#"{"metadata": {"total_size": 1e3}, "weight_map": {"b": "1.safetensors", "a": "1.safetensors", "c": "2.safetensors"}}"#;
        let files = parsed(text).unwrap();
        assert_eq!(files["1.safetensors"], ["a", "b"]);
        assert_eq!(files["2.safetensors"], ["c"]);
    }

    #[test]
    fn files_outside_of_the_folder_are_refused() {
        for file in [
            "../m.safetensors",
            "/etc/m.safetensors",
            "a/m.safetensors",
            ".m.safetensors",
            "m.bin",
            "",
            "ü.safetensors",
        ] {
            let error = parsed(&format!(r#"{{"weight_map": {{"a": "{file}"}}}}"#)).unwrap_err();
            assert!(error.message().contains("not a safetensors file in this folder"), "{file}: {error}");
        }
        for (text, says) in [
            (r#"{"weight_map": {}}"#, "it names 0 files"),
            (r#"{"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}}"#, "\"a\" appears twice"),
            (r#"{"weight_map": {"a": 1}}"#, "expected a string"),
            (r#"{}"#, "missing field `weight_map`"),
            (r#"[]"#, INDEX),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.message().contains(says), "{text}: {error}");
        }
    }
}
