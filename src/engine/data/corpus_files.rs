//! The files of a corpus, by their content.

use super::location::CorpusLocation;
use super::passed_over::PassedOver;
use super::pattern;
use super::source;
use super::spec::TEXT_EXTENSIONS;
use super::text_files::{ListedPath, TextFiles, refuse_repeated};
use super::token_files::{TokenFiles, is_tokenizer};
use super::tokenizer::Tokenizer;
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

impl CorpusFiles {
    /// Finds a corpus. `extensions` are those of the text files to read from a folder. A folder is a corpus
    /// of tokens if it holds token files, unless their names and neighbors do not say that they are shards
    /// and the extensions name text beside them.
    ///
    /// # Errors
    /// If nothing exists at a path, a folder cannot be listed or holds text and what may be token files, a
    /// token file is not one, or some paths hold tokens and others text.
    pub fn at(location: &CorpusLocation, extensions: &[String]) -> Result<Self> {
        let (mut tokens, mut text) = (Vec::new(), None);
        for path in location.paths.iter() {
            match tokens_at(path, location.split.as_deref(), extensions)? {
                Some(files) => tokens.push((path, files)),
                None => text = text.or(Some(path)),
            }
        }
        match (tokens.first(), text) {
            (Some((token_path, _)), Some(text)) => Err(Error::usage(format!(
                "corpus {location}: {} holds token ids and {} text, and only one of them can be meant",
                token_path.display(),
                text.display()
            ))),
            (None, _) => Ok(Self::Text(TextFiles { location: location.clone() })),
            (Some(_), None) => {
                refuse_repeated(tokens.iter().map(|(path, files)| (*path, files.all())))?;
                let files = TokenFiles::joined(tokens.into_iter().map(|(_, files)| files));
                files.check()?;
                Ok(Self::Tokens(files))
            }
        }
    }

    /// Returns every file.
    ///
    /// # Errors
    /// If [`TextFiles::list`] fails.
    pub fn list(&self, extensions: &[String]) -> Result<Vec<PathBuf>> {
        match self {
            Self::Tokens(files) => Ok(files.all()),
            Self::Text(files) => Ok(files.list(extensions)?.files()),
        }
    }

    /// Warns of what folders hold besides the files that are read.
    ///
    /// # Errors
    /// If [`TextFiles::list`] fails.
    pub fn passed_over(&self, extensions: &[String]) -> Result<Vec<String>> {
        match self {
            Self::Tokens(files) => Ok(files.passed_over()),
            Self::Text(files) => Ok(files.list(extensions)?.passed_over()),
        }
    }

    /// Rejects shards whose manifest names another tokenizer. Without a manifest, warns if the tokenizer.json
    /// beside them is not the tokenizer in use.
    ///
    /// # Errors
    /// If a manifest is damaged or names another tokenizer.
    pub fn check_tokenizer(&self, tokenizer: &Tokenizer) -> Result<Vec<String>> {
        match self {
            Self::Tokens(files) => files.check_tokenizer(tokenizer),
            Self::Text(_) => Ok(Vec::new()),
        }
    }

    /// Returns a tokenizer.json beside shards that is not the tokenizer in use.
    pub fn other_tokenizer(&self, tokenizer: &Tokenizer) -> Option<PathBuf> {
        match self {
            Self::Tokens(files) => files.other_tokenizer(tokenizer),
            Self::Text(_) => None,
        }
    }
}

/// Returns the token files at a path; `None` if there is text.
fn tokens_at(path: &Path, split: Option<&str>, extensions: &[String]) -> Result<Option<TokenFiles>> {
    if pattern::is_pattern(path) {
        return if split.is_some() { Ok(None) } else { matching(path) };
    }
    if !path.exists() {
        return Err(Error::usage(format!(
            "corpus {}: not a generated one ({}) and no such file or folder{}",
            path.display(),
            CorpusSource::GENERATED.join(", "),
            did_you_mean(path)
        )));
    }
    if split.is_some() {
        return Ok(None);
    }
    if !path.is_dir() {
        let is_tokens = source::holds_tokens(path);
        return Ok(is_tokens.then(|| TokenFiles::new(vec![path.to_owned()])));
    }
    let entries = std::fs::read_dir(path).at("list", path)?;
    let (mut files, mut passed) = (Vec::new(), PassedOver::default());
    for entry in entries {
        let path = entry.at("list", path)?.path();
        if source::holds_tokens(&path) {
            files.push(path);
        } else if !path.is_dir() && !is_tokenizer(&path) {
            passed.count(&path);
        }
    }
    files.sort();
    if files.is_empty() {
        return Ok(None);
    }
    if !TokenFiles::are_shards(path, &files) {
        let mut readable = ListedPath::walk(path, extensions)?.files;
        readable.retain(|path| !source::holds_tokens(path));
        if !readable.is_empty() && extensions != TEXT_EXTENSIONS {
            return Ok(None);
        }
        if let (Some(other), [token_file, ..]) = (readable.first(), files.as_slice()) {
            return Err(is_ambiguous(path, token_file, other));
        }
    }
    Ok(Some(TokenFiles::of_folder(path, files, passed)))
}

/// Returns the token files that a pattern matches; `None` if it matches text.
fn matching(path: &Path) -> Result<Option<TokenFiles>> {
    let (tokens, other): (Vec<_>, Vec<_>) =
        pattern::files(path)?.into_iter().partition(|file| source::holds_tokens(file));
    match (tokens.first(), other.first()) {
        (Some(token_file), Some(other)) => Err(Error::usage(format!(
            "corpus {}: the pattern matches token ids ({}) and text ({}), and only one of them can be meant",
            path.display(),
            token_file.display(),
            other.display()
        ))),
        (None, _) => Ok(None),
        (Some(_), None) => Ok(Some(TokenFiles::new(tokens))),
    }
}

fn is_ambiguous(folder: &Path, token_file: &Path, text_file: &Path) -> Error {
    let name = |path: &Path| path.strip_prefix(folder).unwrap_or(path).display().to_string();
    let (token_file, text_file) = (name(token_file), name(text_file));
    let ending = text_file.rsplit('.').next().unwrap_or_default();
    let endings = format!("{:?}", [format!(".{ending}")]);
    Error::usage(format!(
        "corpus {}: it holds text ({text_file}) and what may be token ids ({token_file}), and only one of them can be \
         meant; set data.extensions, such as data.extensions={endings}, to read the text, or move the token files \
         into a folder of their own",
        folder.display()
    ))
}

/// Returns true if there is a file or folder at a path, or one that matches it as a pattern.
pub fn is_there(path: &Path) -> bool {
    path.exists() || pattern::is_pattern(path) && pattern::files(path).is_ok()
}

/// Returns "; did you mean ...?" with the most similar name: a file or folder beside `path`, or else a
/// generated corpus. Returns an empty string if nothing is similar.
fn did_you_mean(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if path.to_string_lossy().contains(":/") {
        return "; xrun downloads nothing: name a file or folder of this machine".to_owned();
    }
    if path.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"~")) {
        return "; `~` stands for your home folder only at the beginning, before a slash: write the folder out".to_owned();
    }
    match (nearest_beside(path, |_| true), nearest(&name, CorpusSource::GENERATED)) {
        (Some(file), _) => format!("; did you mean {}?", file.display()),
        (None, Some(generated)) => format!("; did you mean {generated}?"),
        (None, None) => String::new(),
    }
}
