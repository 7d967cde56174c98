//! The files of the corpus at a path, and what is passed over.

use super::file::CorpusFile;
use super::manifest::ShardManifest;
use super::pattern;
use super::source;
use super::spec::TEXT_EXTENSIONS;
use super::tokenizer::{SETTINGS, Tokenizer};
use crate::error::{Error, IoContext, Result};
use crate::format::plural;
use crate::policy::CorpusSource;
use crate::regular;
use crate::suggest::{nearest, nearest_beside};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The ending in `data.extensions` that stands for files without one.
const NO_ENDING: &str = "";

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
    /// The folder and what else is in it; `None` for a single file.
    passed: Option<(PathBuf, PassedOver)>,
}

/// A text file, a folder of text files, or the files that a pattern matches.
#[derive(Clone, Debug)]
pub(super) struct TextFiles {
    pub path: PathBuf,
}

/// The files of a text corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    pub files: Vec<PathBuf>,
    passed: PassedOver,
    /// The endings that were looked for.
    endings: Vec<String>,
}

/// What a folder holds besides its corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PassedOver {
    /// Number of visible files by ending, with its dot, in lower case; empty for files without one.
    endings: BTreeMap<String, usize>,
    /// Number of hidden files and folders.
    hidden: usize,
    /// Number of linked folders.
    linked: usize,
}

impl CorpusFiles {
    /// Finds the corpus at a path. `extensions` are those of the text files to read from a folder. A folder
    /// is a corpus of tokens if it holds token files, unless their names and neighbors do not say that they
    /// are shards and the extensions name text beside them.
    ///
    /// # Errors
    /// If nothing exists at the path, a folder cannot be listed or holds text and what may be token files, or
    /// a token file is not one.
    pub fn at(path: &Path, extensions: &[String]) -> Result<Self> {
        if pattern::is_pattern(path) {
            return Self::matching(path);
        }
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
            if !source::holds_tokens(&path) {
                return Ok(Self::Text(TextFiles { path }));
            }
            let files = TokenFiles { train: vec![path], ..TokenFiles::default() };
            files.check()?;
            return Ok(Self::Tokens(files));
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
            return Ok(Self::Text(TextFiles { path: path.to_owned() }));
        }
        let text = TextFiles { path: path.to_owned() };
        if !TokenFiles::are_shards(path, &files) {
            let mut readable = text.walk(extensions)?.files;
            readable.retain(|path| !source::holds_tokens(path));
            if !readable.is_empty() && extensions != TEXT_EXTENSIONS {
                return Ok(Self::Text(text));
            }
            if let (Some(other), [token_file, ..]) = (readable.first(), files.as_slice()) {
                return Err(text.is_ambiguous(token_file, other));
            }
        }
        let (sorted, neither) = TokenFiles::sort(files);
        neither.iter().for_each(|path| passed.count(path));
        let files = TokenFiles { passed: Some((path.to_owned(), passed)), ..sorted };
        files.check()?;
        Ok(Self::Tokens(files))
    }

    /// Finds the corpus of the files that a pattern matches.
    fn matching(path: &Path) -> Result<Self> {
        let (tokens, other): (Vec<_>, Vec<_>) =
            pattern::files(path)?.into_iter().partition(|file| source::holds_tokens(file));
        match (tokens.first(), other.first()) {
            (Some(token_file), Some(other)) => Err(Error::usage(format!(
                "corpus {}: the pattern matches token ids ({}) and text ({}), and only one of them can be meant",
                path.display(),
                token_file.display(),
                other.display()
            ))),
            (None, _) => Ok(Self::Text(TextFiles { path: path.to_owned() })),
            (Some(_), None) => {
                let files = TokenFiles { train: tokens, ..TokenFiles::default() };
                files.check()?;
                Ok(Self::Tokens(files))
            }
        }
    }

    /// Returns every file.
    pub fn list(&self, extensions: &[String]) -> Result<Vec<PathBuf>> {
        match self {
            Self::Tokens(files) => Ok(files.all()),
            Self::Text(files) => Ok(files.list(extensions)?.files),
        }
    }

    /// Warns of what a folder holds besides the files that are read.
    ///
    /// # Errors
    /// If a folder cannot be listed.
    pub fn passed_over(&self, extensions: &[String]) -> Result<Option<String>> {
        match self {
            Self::Tokens(files) => Ok(files.passed_over()),
            Self::Text(files) => Ok(files.list(extensions)?.passed_over(&files.path)),
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
        let json = regular::read_text_through_link(&beside).ok()?;
        if json != tokenizer.to_json() {
            return Some(beside);
        }
        let end = Tokenizer::open(beside.to_str()?).ok()?.end_token();
        (end != tokenizer.end_token()).then_some(beside)
    }
}

/// Parts of the names of files to train on, and of held-out files.
const TRAINING: [&str; 1] = ["train"];
const HELD_OUT: [&str; 3] = ["val", "valid", "validation"];

/// Other parts of the names of held-out files, of which token shards are trained on unless others are named
/// as training files.
const OTHER_HELD_OUT: [&str; 3] = ["test", "dev", "heldout"];

/// Returns true if one of these words is a part of a path below the corpus's folder.
fn is_named(below: &Path, words: &[&str]) -> bool {
    let name = below.to_string_lossy().to_lowercase();
    name.split(['/', '_', '-', '.']).any(|part| words.contains(&part))
}

/// Returns true if one of these words is a part of a file's name.
fn says(path: &Path, words: &[&str]) -> bool {
    is_named(Path::new(path.file_name().unwrap_or_default()), words)
}

/// Returns true for the files that `xrun data` and others write beside shards.
fn is_tokenizer(path: &Path) -> bool {
    path.file_name().is_some_and(|name| {
        ["tokenizer.json", "tokenizer_config.json", super::manifest::NAME].into_iter().any(|own| name == own)
    })
}

impl TokenFiles {
    /// Returns true if something besides their ending says that the files of a folder hold tokens: a name of
    /// a training or held-out shard, or what `xrun data` writes beside shards.
    fn are_shards(folder: &Path, files: &[PathBuf]) -> bool {
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
            true => (Self { train: other, validation, passed: None }, Vec::new()),
            false => (Self { train: named, validation, passed: None }, other),
        }
    }

    /// Returns all files, training ones first.
    pub fn all(&self) -> Vec<PathBuf> {
        [&self.train[..], &self.validation[..]].concat()
    }

    /// Returns true if a folder was named, not a file.
    pub fn are_of_folder(&self) -> bool {
        self.passed.is_some()
    }

    /// Refuses files that hold something else than token ids.
    fn check(&self) -> Result<()> {
        CorpusFile::open_all(self.all())?.iter().try_for_each(source::check_tokens)
    }

    /// Warns of the files in the folder that are not token files.
    pub fn passed_over(&self) -> Option<String> {
        let (folder, passed) = self.passed.as_ref()?;
        let files = passed.visible()?;
        let read = self.train.len() + self.validation.len();
        Some(format!("{}: {read} token file{} read, passed over: {files}", folder.display(), plural(read)))
    }
}

impl TextFiles {
    /// Returns the file itself, or what a pattern matches, or, for a folder, all files below it with one of
    /// these extensions (dots included, in any case; the empty one stands for files without an ending),
    /// sorted. A folder that has none of the default extensions, but JSON lines or else Parquet tables, is
    /// one of those.
    ///
    /// # Errors
    /// If a folder cannot be listed, or there is no such file.
    pub fn list(&self, extensions: &[String]) -> Result<Listing> {
        if pattern::is_pattern(&self.path) {
            return Ok(Listing { files: pattern::files(&self.path)?, ..Listing::default() });
        }
        if !self.path.is_dir() {
            return Ok(Listing { files: vec![self.path.clone()], ..Listing::default() });
        }
        let listing = self.walk(extensions)?;
        if !listing.files.is_empty() {
            return Ok(listing);
        }
        if extensions == TEXT_EXTENSIONS
            && let Some(endings) = listing.passed.of_one_format()
        {
            return self.walk(&endings);
        }
        Err(self.nothing_to_read(extensions, &listing.passed))
    }

    /// Returns the files of a folder, as [`TextFiles::list`] does, even if there are none.
    fn walk(&self, extensions: &[String]) -> Result<Listing> {
        let (mut files, mut passed) = (Vec::new(), PassedOver::default());
        let mut folders = vec![self.path.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).at("list", &folder)? {
                let entry = entry.at("list", &folder)?;
                let (name, path) = (entry.file_name(), entry.path());
                let kind = entry.file_type().at("read", &path)?;
                if name.as_encoded_bytes().starts_with(b".") {
                    passed.hidden += 1;
                } else if kind.is_dir() {
                    folders.push(path);
                } else if path.is_dir() {
                    // They may form cycles.
                    passed.linked += 1;
                } else if path.is_file() && is_read(&path, extensions) {
                    files.push(path);
                } else {
                    passed.count(&path);
                }
            }
        }
        files.sort();
        Ok(Listing { files, passed, endings: extensions.to_vec() })
    }

    /// Returns the warnings of [`Listing::warnings`].
    ///
    /// # Errors
    /// If [`TextFiles::list`] fails.
    pub fn warnings(&self, extensions: &[String]) -> Result<Vec<String>> {
        Ok(self.list(extensions)?.warnings(&self.path))
    }

    fn nothing_to_read(&self, extensions: &[String], passed: &PassedOver) -> Error {
        let read: Vec<&str> = extensions.iter().map(|ending| in_words(ending)).collect();
        let next = match (passed.visible(), passed.setting(&[])) {
            (Some(found), Some(setting)) => format!(
                "it holds {found}; data.extensions names the endings that are read, such as data.extensions={setting:?}"
            ),
            (Some(found), None) => {
                format!("it holds {found}; write their text as .txt files or JSON lines first")
            }
            (None, _) => "nothing else is there either".to_owned(),
        };
        Error::usage(format!(
            "corpus {}: the folder holds no {} or .bin files; {next}",
            self.path.display(),
            read.join(", ")
        ))
    }

    fn is_ambiguous(&self, token_file: &Path, text_file: &Path) -> Error {
        let name = |path: &Path| path.strip_prefix(&self.path).unwrap_or(path).display().to_string();
        let (token_file, text_file) = (name(token_file), name(text_file));
        let endings = format!("{:?}", [format!(".{}", ending_of(&text_file))]);
        Error::usage(format!(
            "corpus {}: it holds text ({text_file}) and what may be token ids ({token_file}), and only one of them can be \
             meant; set data.extensions, such as data.extensions={endings}, to read the text, or move the token files \
             into a folder of their own",
            self.path.display()
        ))
    }
}

/// Returns what follows the last dot of a name.
fn ending_of(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or_default()
}

/// Returns true if a file of a folder is read: its name ends with one of the extensions.
fn is_read(path: &Path, extensions: &[String]) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let ends = |ending: &String| match ending.as_str() {
        NO_ENDING => path.extension().is_none(),
        ending => {
            let from = name.len().checked_sub(ending.len());
            from.is_some_and(|from| name[from..].eq_ignore_ascii_case(ending.as_bytes()))
        }
    };
    extensions.iter().any(ends)
}

fn in_words(ending: &str) -> &str {
    if ending == NO_ENDING { "files without an ending" } else { ending }
}

impl PassedOver {
    fn count(&mut self, path: &Path) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if name.starts_with('.') {
            self.hidden += 1;
            return;
        }
        let mut ending =
            Path::new(&name).extension().map_or(String::new(), |x| format!(".{}", x.to_string_lossy()));
        // The ending of a packed file has two parts.
        if source::is_packed(Path::new(&name))
            && let Some(inner) = Path::new(name.trim_end_matches(&ending)).extension()
        {
            ending = format!(".{}{ending}", inner.to_string_lossy());
        }
        *self.endings.entry(ending).or_default() += 1;
    }

    /// Lists the visible files by ending, the most frequent first; `None` if there are none.
    fn visible(&self) -> Option<String> {
        /// Endings that a message lists.
        const LISTED: usize = 6;
        let sorted = self.sorted();
        let all: usize = sorted.iter().map(|(_, count)| count).sum();
        let mut parts: Vec<String> = sorted
            .iter()
            .take(LISTED)
            .map(|(ending, count)| {
                let ending = if ending.is_empty() { "without an ending" } else { ending };
                let plural = if *count == 1 { "" } else { "s" };
                match ending.starts_with('.') {
                    true => format!("{count} {ending} file{plural}"),
                    false => format!("{count} file{plural} {ending}"),
                }
            })
            .collect();
        let listed: usize = sorted.iter().take(LISTED).map(|(_, count)| count).sum();
        parts.extend((listed < all).then(|| format!("{} with other endings", all - listed)));
        (all > 0).then(|| parts.join(", "))
    }

    /// Returns the endings with their numbers of files, the most frequent first.
    fn sorted(&self) -> Vec<(&str, usize)> {
        let mut sorted: Vec<(&str, usize)> =
            self.endings.iter().map(|(ending, count)| (ending.as_str(), *count)).collect();
        sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        sorted
    }

    /// Returns the endings of files whose names say that they hold documents in fields, if all of these files
    /// have the same format.
    fn of_one_format(&self) -> Option<Vec<String>> {
        let mut found = self.endings.keys().filter_map(|ending| Some((ending, source::format_of(ending)?)));
        let (_, format) = found.clone().next()?;
        found
            .clone()
            .all(|(_, other)| other == format)
            .then(|| found.by_ref().map(|(e, _)| e.clone()).collect())
    }

    /// Returns a value of `data.extensions` that also reads the most frequent ending of those that may be
    /// text.
    fn setting(&self, extensions: &[String]) -> Option<Vec<String>> {
        let sorted = self.sorted();
        let mut readable = sorted.iter().filter(|(ending, _)| source::may_be_text(ending));
        // A .json file beside others often describes them.
        let (most, _) =
            readable.clone().find(|(ending, _)| *ending != ".json").or_else(|| readable.next())?;
        Some(extensions.iter().cloned().chain([(*most).to_owned()]).collect())
    }
}

impl Listing {
    /// Warns of what a folder holds besides the files that are read, and of files that are read though their
    /// names say that they are held out.
    pub fn warnings(&self, folder: &Path) -> Vec<String> {
        self.passed_over(folder).into_iter().chain(self.named_as_held_out(folder)).collect()
    }

    /// Warns if some files of a folder are named as training text and others as held-out text: all of them
    /// are read alike.
    fn named_as_held_out(&self, folder: &Path) -> Option<String> {
        let mut below = self.files.iter().filter_map(|path| path.strip_prefix(folder).ok());
        let is_held_out = |below: &Path| is_named(below, &HELD_OUT) || is_named(below, &OTHER_HELD_OUT);
        let held_out: Vec<&Path> = below.clone().filter(|below| is_held_out(below)).collect();
        let shown = held_out.first()?.display();
        below.find(|below| is_named(below, &TRAINING) && !is_held_out(below))?;
        let more = match held_out.len() {
            1 => "is".to_owned(),
            n => format!("and {} more are", n - 1),
        };
        Some(format!(
            "{}: {shown} {more} read like the files named as training text. To hold out what a name says, set \
             data.corpus to the training files and data.validation to the others",
            folder.display()
        ))
    }

    /// Warns of what a folder holds besides the files that are read.
    fn passed_over(&self, folder: &Path) -> Option<String> {
        let Self { files, passed, endings } = self;
        // Hidden files are everywhere, so they are worth a warning only beside others.
        if passed.endings.is_empty() && passed.linked == 0 {
            return None;
        }
        let counted = |n: usize, what: &str| format!("{n} {what}{}", plural(n));
        let mut parts: Vec<String> = passed.visible().into_iter().collect();
        let more = [(passed.linked, "linked folder"), (passed.hidden, "hidden name")];
        parts.extend(more.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| counted(n, what)));
        let advice = passed
            .setting(endings)
            .map_or(String::new(), |setting| format!("; data.extensions={setting:?} reads more of them"));
        Some(format!(
            "{}: {} read, passed over: {}{advice}",
            folder.display(),
            counted(files.len(), "file"),
            parts.join(", ")
        ))
    }
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
