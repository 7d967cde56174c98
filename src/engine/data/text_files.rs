//! The files of a text corpus, and what is passed over.

use super::file_words::{HELD_OUT, OTHER_HELD_OUT, TRAINING, is_named};
use super::location::CorpusLocation;
use super::passed_over::PassedOver;
use super::spec::TEXT_EXTENSIONS;
use super::{named_splits, pattern, source};
use crate::error::{Error, IoContext, Result};
use crate::format::plural;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The ending in `data.extensions` that stands for files without one.
const NO_ENDING: &str = "";

/// A text corpus.
#[derive(Clone, Debug)]
pub(super) struct TextFiles {
    pub location: CorpusLocation,
}

/// The files of a text corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing(Vec<ListedPath>);

/// The files of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListedPath {
    path: PathBuf,
    pub files: Vec<PathBuf>,
    passed: PassedOver,
    /// The endings that were looked for in a folder; none of a split.
    endings: Vec<String>,
}

impl TextFiles {
    /// Returns the files of every path: the file itself, or what a pattern matches, or, for a folder, all
    /// files below it with one of these extensions (dots included, in any case; the empty one stands for
    /// files without an ending), sorted. A folder that has none of the default extensions, but JSON lines or
    /// else Parquet tables, is one of those. Of a split, the files that belong to it.
    ///
    /// # Errors
    /// If a folder cannot be listed, there is no such file or split, or a file belongs to two paths.
    pub fn list(&self, extensions: &[String]) -> Result<Listing> {
        let paths = self.location.paths.iter();
        let listed = paths.map(|path| match &self.location.split {
            Some(split) => ListedPath::of_split(path, split, extensions),
            None => ListedPath::at(path, extensions),
        });
        let listed = listed.collect::<Result<Vec<_>>>()?;
        refuse_repeated(listed.iter().map(|listed| (listed.path.as_path(), listed.files.clone())))?;
        Ok(Listing(listed))
    }

    /// Returns the warnings of [`Listing::warnings`].
    ///
    /// # Errors
    /// If [`TextFiles::list`] fails.
    pub fn warnings(&self, extensions: &[String]) -> Result<Vec<String>> {
        Ok(self.list(extensions)?.warnings())
    }
}

/// Refuses a file that belongs to two of several paths: it would be trained on twice.
///
/// # Errors
/// If there is one. The usage error names it.
pub(super) fn refuse_repeated<'p>(
    paths: impl ExactSizeIterator<Item = (&'p Path, Vec<PathBuf>)>,
) -> Result<()> {
    if paths.len() < 2 {
        return Ok(());
    }
    let mut known: HashMap<PathBuf, &Path> = HashMap::new();
    for (path, files) in paths {
        for file in files {
            let real = file.canonicalize().at("find", &file)?;
            if let Some(before) = known.insert(real, path) {
                return Err(Error::usage(format!(
                    "corpus {}: {} belongs to {} too, and a file can be in a corpus only once; leave one of the paths \
                     out",
                    path.display(),
                    file.display(),
                    before.display()
                )));
            }
        }
    }
    Ok(())
}

impl ListedPath {
    fn at(path: &Path, extensions: &[String]) -> Result<Self> {
        let named = |files| Self { path: path.to_owned(), files, ..Self::default() };
        if pattern::is_pattern(path) {
            return Ok(named(pattern::files(path)?));
        }
        if !path.is_dir() {
            return Ok(named(vec![path.to_owned()]));
        }
        let listed = Self::walk(path, extensions)?;
        if !listed.files.is_empty() {
            return Ok(listed);
        }
        if extensions == TEXT_EXTENSIONS
            && let Some(endings) = listed.passed.of_one_format()
        {
            return Self::walk(path, &endings);
        }
        Err(nothing_to_read(path, extensions, &listed.passed))
    }

    /// Returns the files of a folder, even if there are none.
    ///
    /// # Errors
    /// If a folder cannot be listed.
    pub fn walk(path: &Path, extensions: &[String]) -> Result<Self> {
        let (mut files, mut passed) = (Vec::new(), PassedOver::default());
        let mut folders = vec![path.to_owned()];
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
        Ok(Self { path: path.to_owned(), files, passed, endings: extensions.to_vec() })
    }

    /// Returns the files of a folder's split: those with these extensions, or, by default, those of the
    /// format that they have.
    fn of_split(path: &Path, split: &str, extensions: &[String]) -> Result<Self> {
        let by_format = extensions == TEXT_EXTENSIONS;
        let (mut files, mut passed) = (Vec::new(), PassedOver::default());
        let mut first: Option<(&str, PathBuf)> = None;
        for file in named_splits::files(path, split)? {
            let format = source::format_in_words(&file);
            match (by_format, format) {
                (true, None) => {
                    passed.count(&file);
                    continue;
                }
                (false, _) if !is_read(&file, extensions) => {
                    passed.count(&file);
                    continue;
                }
                _ => {}
            }
            let (known, shown) = first.get_or_insert_with(|| (format.unwrap_or_default(), file.clone()));
            if let Some(format) = format.filter(|format| by_format && format != known) {
                return Err(Error::usage(format!(
                    "corpus {}: the split {split:?} has {known} ({}) and {format} ({}), and only one of them can be \
                     meant; data.extensions says which",
                    path.display(),
                    shown.strip_prefix(path).unwrap_or(shown).display(),
                    file.strip_prefix(path).unwrap_or(&file).display()
                )));
            }
            files.push(file);
        }
        if files.is_empty() {
            return Err(Error::usage(format!(
                "corpus {}: the split {split:?} has no files that are read: it has {}",
                path.display(),
                passed.visible().unwrap_or_default()
            )));
        }
        Ok(Self { path: path.to_owned(), files, passed, endings: Vec::new() })
    }

    /// Warns if some files of a folder are named as training text and others as held-out text: all of them
    /// are read alike.
    fn named_as_held_out(&self) -> Option<String> {
        if self.endings.is_empty() {
            return None;
        }
        let mut below = self.files.iter().filter_map(|path| path.strip_prefix(&self.path).ok());
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
             data.split and data.validation_split, or data.corpus to the training files and data.validation to the \
             others",
            self.path.display()
        ))
    }

    /// Warns of what a folder holds besides the files that are read.
    fn passed_over(&self) -> Option<String> {
        let Self { files, passed, endings, .. } = self;
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
            .filter(|_| !endings.is_empty())
            .map_or(String::new(), |setting| format!("; data.extensions={setting:?} reads more of them"));
        Some(format!(
            "{}: {} read, passed over: {}{advice}",
            self.path.display(),
            counted(files.len(), "file"),
            parts.join(", ")
        ))
    }
}

fn nothing_to_read(path: &Path, extensions: &[String], passed: &PassedOver) -> Error {
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
        path.display(),
        read.join(", ")
    ))
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

impl Listing {
    /// Returns every file, in order.
    pub fn files(self) -> Vec<PathBuf> {
        self.0.into_iter().flat_map(|listed| listed.files).collect()
    }

    /// Warns of what folders hold besides the files that are read, and of files that are read though their
    /// names say that they are held out.
    pub fn warnings(&self) -> Vec<String> {
        self.0
            .iter()
            .flat_map(|listed| listed.passed_over().into_iter().chain(listed.named_as_held_out()))
            .collect()
    }

    /// Warns of what folders hold besides the files that are read.
    pub fn passed_over(&self) -> Vec<String> {
        self.0.iter().filter_map(ListedPath::passed_over).collect()
    }
}
