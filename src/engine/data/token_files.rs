//! Files of token ids, sorted by their names into training and held-out ones.

use super::file::CorpusFile;
use super::file_words::{HELD_OUT, TRAINING, is_named};
use super::manifest::ShardManifest;
use super::passed_over::PassedOver;
use super::source;
use super::tokenizer::{LostBytes, SETTINGS, Tokenizer};
use crate::error::Result;
use crate::format::plural;
use crate::regular;
use std::path::{Path, PathBuf};

/// Token files, sorted by their names into training and held-out ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenFiles {
    pub train: Vec<PathBuf>,
    pub validation: Vec<PathBuf>,
    /// The folders that were named.
    folders: Vec<Folder>,
}

/// A folder of token files, and what else is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Folder {
    path: PathBuf,
    /// Number of token files that are read.
    read: usize,
    passed: PassedOver,
}

/// Returns true if one of these words is a part of a file's name.
fn says(path: &Path, words: &[&str]) -> bool {
    is_named(Path::new(path.file_name().unwrap_or_default()), words)
}

/// Returns true for the files that `xrun data` and others write beside shards.
pub(super) fn is_tokenizer(path: &Path) -> bool {
    path.file_name().is_some_and(|name| {
        ["tokenizer.json", "tokenizer_config.json", super::manifest::NAME].into_iter().any(|own| name == own)
    })
}

impl TokenFiles {
    /// Returns files that are all trained on, whatever their names say.
    pub fn new(train: Vec<PathBuf>) -> Self {
        Self { train, ..Self::default() }
    }

    /// Returns the files of a folder, sorted by their names. `passed` is what else is in it.
    pub fn of_folder(path: &Path, files: Vec<PathBuf>, mut passed: PassedOver) -> Self {
        let (sorted, neither) = Self::sort(files);
        neither.iter().for_each(|path| passed.count(path));
        let read = sorted.train.len() + sorted.validation.len();
        Self { folders: vec![Folder { path: path.to_owned(), read, passed }], ..sorted }
    }

    /// Returns the files of several paths, in order.
    pub fn joined(parts: impl Iterator<Item = Self>) -> Self {
        parts.fold(Self::default(), |mut all, part| {
            all.train.extend(part.train);
            all.validation.extend(part.validation);
            all.folders.extend(part.folders);
            all
        })
    }

    /// Returns true if something besides their ending says that the files of a folder hold tokens: a name of
    /// a training or held-out shard, or what `xrun data` writes beside shards.
    pub fn are_shards(folder: &Path, files: &[PathBuf]) -> bool {
        let (Self { validation, .. }, _) = Self::sort(files.to_vec());
        let is_named = files.iter().any(|path| says(path, &TRAINING));
        let is_described =
            [super::manifest::NAME, "tokenizer.json"].iter().any(|name| folder.join(name).exists());
        is_named || !validation.is_empty() || is_described
    }

    /// Sorts files by name: `*_train_*` and `train` are training files, `*_val_*` and `val` (or `valid…`)
    /// held-out ones. If any are named as training files, those named as neither are returned beside them.
    fn sort(files: Vec<PathBuf>) -> (Self, Vec<PathBuf>) {
        let (validation, rest): (Vec<_>, Vec<_>) = files.into_iter().partition(|p| says(p, &HELD_OUT));
        let (named, other): (Vec<_>, Vec<_>) = rest.into_iter().partition(|p| says(p, &TRAINING));
        match named.is_empty() {
            true => (Self { train: other, validation, folders: Vec::new() }, Vec::new()),
            false => (Self { train: named, validation, folders: Vec::new() }, other),
        }
    }

    /// Returns all files, training ones first.
    pub fn all(&self) -> Vec<PathBuf> {
        [&self.train[..], &self.validation[..]].concat()
    }

    /// Returns true if a folder was named, not only files.
    pub fn are_of_folder(&self) -> bool {
        !self.folders.is_empty()
    }

    /// Refuses files that hold something else than token ids.
    pub fn check(&self) -> Result<()> {
        CorpusFile::open_all(self.all())?.iter().try_for_each(source::check_tokens)
    }

    /// Warns of the files in the folders that are not token files.
    pub fn passed_over(&self) -> Vec<String> {
        let warning = |Folder { path, read, passed }: &Folder| {
            let files = passed.visible()?;
            Some(format!("{}: {read} token file{} read, passed over: {files}", path.display(), plural(*read)))
        };
        self.folders.iter().filter_map(warning).collect()
    }

    /// Returns the first of some files in each of their folders: the files beside it belong to all of these.
    fn firsts(files: &[PathBuf]) -> Vec<&Path> {
        let mut firsts: Vec<&Path> = Vec::new();
        for file in files {
            if firsts.iter().all(|first| first.parent() != file.parent()) {
                firsts.push(file);
            }
        }
        firsts
    }

    /// Returns the bytes of their text that some of these files lack, as the manifests beside them say;
    /// `None` if one of the manifests does not.
    ///
    /// # Errors
    /// If a manifest is damaged.
    pub fn lost(
        files: &[PathBuf],
        lost: impl Fn(&ShardManifest) -> Option<LostBytes>,
    ) -> Result<Option<LostBytes>> {
        let mut sum = LostBytes::default();
        for shard in Self::firsts(files) {
            match ShardManifest::beside(shard)?.as_ref().and_then(&lost) {
                Some(own) => sum += own,
                None => return Ok(None),
            }
        }
        Ok(Some(sum))
    }

    /// Rejects shards whose manifest names another tokenizer. Without a manifest, warns if the tokenizer.json
    /// beside them is not the tokenizer in use.
    ///
    /// # Errors
    /// If a manifest is damaged or names another tokenizer.
    pub fn check_tokenizer(&self, tokenizer: &Tokenizer) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        for shard in Self::firsts(&self.all()) {
            match ShardManifest::beside(shard)? {
                Some(manifest) => manifest.check(shard, tokenizer)?,
                None => warnings.extend(other_than(tokenizer, shard).map(|beside| {
                    format!(
                        "{} is not the tokenizer in use, or {SETTINGS} beside it names another end token; if it made \
                         these shards, set data.tokenizer to that file",
                        beside.display()
                    )
                })),
            }
        }
        Ok(warnings)
    }

    /// Returns the first tokenizer.json beside the shards that is not the tokenizer in use.
    pub fn other_tokenizer(&self, tokenizer: &Tokenizer) -> Option<PathBuf> {
        Self::firsts(&self.all()).into_iter().find_map(|shard| other_than(tokenizer, shard))
    }
}

/// Returns the tokenizer.json beside a shard if it is not the tokenizer in use.
fn other_than(tokenizer: &Tokenizer, shard: &Path) -> Option<PathBuf> {
    let beside = shard.with_file_name("tokenizer.json");
    let json = regular::read_text_through_link(&beside).ok()?;
    if json != tokenizer.to_json() {
        return Some(beside);
    }
    let end = Tokenizer::open(beside.to_str()?).ok()?.end_token();
    (end != tokenizer.end_token()).then_some(beside)
}
