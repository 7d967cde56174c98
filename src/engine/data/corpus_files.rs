//! The files of the corpus at a path.

use super::manifest::ShardManifest;
use super::source::{self, Format, Source};
use super::tokenizer::{SETTINGS, Tokenizer};
use crate::error::{Error, IoContext, Result};
use crate::policy::CorpusSource;
use crate::suggest::{nearest, nearest_beside};
use std::path::{Path, PathBuf};

/// The files of a corpus, by their content.
#[derive(Clone, Debug)]
pub(super) enum CorpusFiles {
    Tokens(TokenFiles),
    Text(TextFiles),
}

/// Token files, sorted by their names into training and held-out ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenFiles {
    pub train: Vec<PathBuf>,
    pub validation: Vec<PathBuf>,
}

/// A text file, or a folder of text files.
#[derive(Clone, Debug)]
pub(super) struct TextFiles {
    pub path: PathBuf,
    /// The format of every file in it.
    pub source: &'static dyn Source,
}

impl CorpusFiles {
    /// Finds the corpus at a path.
    ///
    /// # Errors
    /// If nothing exists at the path, or a folder cannot be listed.
    pub fn at(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Err(Error::usage(format!(
                "corpus {}: not a generated one ({}) and no such file or folder{}",
                path.display(),
                CorpusSource::GENERATED.join(", "),
                did_you_mean(path)
            )));
        }
        if !path.is_dir() {
            let path = path.to_owned();
            return Ok(match source::format(&path) {
                Format::Tokens => Self::Tokens(TokenFiles { train: vec![path], validation: Vec::new() }),
                Format::Documents(source) => Self::Text(TextFiles { path, source }),
            });
        }
        let entries = std::fs::read_dir(path).at("list", path)?;
        let mut files: Vec<PathBuf> =
            entries.map(|e| e.map(|e| e.path())).collect::<std::io::Result<_>>().at("list", path)?;
        files.retain(|path| matches!(source::format(path), Format::Tokens));
        files.sort();
        Ok(if files.is_empty() {
            Self::Text(TextFiles { path: path.to_owned(), source: source::TEXT })
        } else {
            Self::Tokens(TokenFiles::sort(files))
        })
    }

    /// Returns every file.
    pub fn list(&self, extensions: &[String]) -> Result<Vec<PathBuf>> {
        match self {
            Self::Tokens(files) => Ok(files.all()),
            Self::Text(files) => files.list(extensions),
        }
    }

    /// Rejects shards whose manifest names another tokenizer. Without a manifest, warns if the tokenizer.json
    /// beside them is not the tokenizer in use.
    ///
    /// # Errors
    /// If the manifest is damaged or names another tokenizer.
    pub fn check_tokenizer(&self, tokenizer: &Tokenizer) -> Result<Option<String>> {
        if let (Some(shard), Some(manifest)) = (self.first_shard(), self.manifest()?) {
            manifest.check(&shard, tokenizer)?;
            return Ok(None);
        }
        Ok(self.other_tokenizer(tokenizer).map(|beside| {
            format!(
                "{} is not the tokenizer in use, or {SETTINGS} beside it names another end token; if it made these \
                 shards, set data.tokenizer to that file",
                beside.display()
            )
        }))
    }

    /// Returns the manifest of shards, if there is one.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn manifest(&self) -> Result<Option<ShardManifest>> {
        self.first_shard().map_or(Ok(None), |shard| ShardManifest::beside(&shard))
    }

    /// Returns a shard; `None` if the corpus is text.
    fn first_shard(&self) -> Option<PathBuf> {
        let Self::Tokens(files) = self else { return None };
        files.all().into_iter().next()
    }

    /// Returns the tokenizer.json beside shards if it is not the tokenizer in use.
    pub fn other_tokenizer(&self, tokenizer: &Tokenizer) -> Option<PathBuf> {
        let beside = self.first_shard()?.with_file_name("tokenizer.json");
        let json = std::fs::read_to_string(&beside).ok()?;
        if json != tokenizer.to_json() {
            return Some(beside);
        }
        let end = Tokenizer::open(beside.to_str()?).ok()?.end_token();
        (end != tokenizer.end_token()).then_some(beside)
    }
}

impl TokenFiles {
    /// Sorts files by name: `*_train_*` and `train` are training files, `*_val_*` and `val` (or `valid…`)
    /// held-out ones.
    fn sort(files: Vec<PathBuf>) -> Self {
        let says = |p: &Path, words: &[&str]| {
            let stem = p.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
            stem.split(['_', '-', '.']).any(|part| words.contains(&part))
        };
        let (validation, rest): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|p| says(p, &["val", "valid", "validation"]));
        let (named, other): (Vec<_>, Vec<_>) = rest.into_iter().partition(|p| says(p, &["train"]));
        Self { train: if named.is_empty() { other } else { named }, validation }
    }

    /// Returns all files, training ones first.
    pub fn all(&self) -> Vec<PathBuf> {
        [&self.train[..], &self.validation[..]].concat()
    }
}

impl TextFiles {
    /// Returns the file itself, or, for a folder, all files below it with one of these extensions (dots
    /// included), sorted.
    ///
    /// # Errors
    /// If a folder cannot be listed, or the folder holds no such file.
    pub fn list(&self, extensions: &[String]) -> Result<Vec<PathBuf>> {
        if !self.path.is_dir() {
            return Ok(vec![self.path.clone()]);
        }
        let mut files = Vec::new();
        let mut folders = vec![self.path.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).at("list", &folder)? {
                let entry = entry.at("list", &folder)?;
                let name = entry.file_name();
                // Linked folders are skipped: they may form cycles.
                let kind = entry.file_type().at("read", &entry.path())?;
                let ends = |known: &String| name.as_encoded_bytes().ends_with(known.as_bytes());
                if name.as_encoded_bytes().starts_with(b".") {
                    continue;
                } else if kind.is_dir() {
                    folders.push(entry.path());
                } else if extensions.iter().any(ends) && entry.path().is_file() {
                    files.push(entry.path());
                }
            }
        }
        if files.is_empty() {
            return Err(Error::usage(format!(
                "corpus {}: the folder holds no {} or .bin files; data.extensions names the endings that are read, such as \
                 data.extensions=[\".py\"]",
                self.path.display(),
                extensions.join(", ")
            )));
        }
        files.sort();
        Ok(files)
    }
}

/// Returns "; did you mean ...?" with the most similar name: a file or folder beside `path`, or else a
/// generated corpus. Returns an empty string if nothing is similar.
fn did_you_mean(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match (nearest_beside(path, |_| true), nearest(&name, CorpusSource::GENERATED)) {
        (Some(file), _) => format!("; did you mean {}?", file.display()),
        (None, Some(generated)) => format!("; did you mean {generated}?"),
        (None, None) => String::new(),
    }
}
