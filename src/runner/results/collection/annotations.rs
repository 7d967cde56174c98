//! Tags and notes for runs, appended as lines to `annotations.jsonl`.
//!
//! The file lies in the results folder and not in a run's: what people later say about a run is not part of
//! its output, and no hash or manifest covers it. Lines name runs as `RECIPE/RUN`, so tags survive when a run
//! is kept and even when its folder is removed. Kept runs in `RESULTS/kept` use the file in `RESULTS`.

use super::location::Located;
use crate::error::{Error, IoContext, Result};
use crate::format::{harmless_json, now, printable};
use crate::regular;
use crate::results::atomic::json_line;
use crate::results::names::KEPT;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The file of annotations in a results folder.
const FILE: &str = "annotations.jsonl";

/// The longest tag, in characters.
const MAX_TAG: usize = 64;

/// The longest note, in bytes.
const MAX_NOTE: usize = 16 << 10;

/// What people said about a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotation {
    pub tags: BTreeSet<String>,
    pub note: Option<String>,
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    /// `RECIPE/RUN`.
    run: String,
    /// When the line was written, UTC.
    at: Timestamp,
    #[serde(flatten)]
    change: AnnotationChange,
}

/// What a line changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnnotationChange {
    /// Adds a tag.
    Tag(String),
    /// Removes a tag.
    Untag(String),
    /// Replaces the note; an empty one removes it.
    Note(String),
}

impl Annotation {
    fn apply(&mut self, change: AnnotationChange) {
        match change {
            AnnotationChange::Tag(tag) => _ = self.tags.insert(tag),
            AnnotationChange::Untag(tag) => _ = self.tags.remove(&tag),
            AnnotationChange::Note(note) => self.note = Some(note).filter(|note| !note.is_empty()),
        }
    }
}

/// Reads the annotations of the runs in a results folder, by `RECIPE/RUN`. Returns an error for each damaged
/// line, which is left out. A last line without its newline is left out silently, since another process may
/// be writing it.
pub fn read_annotations(results: &Path) -> (HashMap<String, Annotation>, Vec<Error>) {
    let path = file(results);
    let bytes = match regular::read(&path, regular::MAX_TEXT) {
        Err(_) if regular::is_missing(&path) => Vec::new(),
        Err(error) => return (HashMap::new(), vec![error]),
        Ok(bytes) => bytes,
    };
    let (mut found, mut faults) = (HashMap::<String, Annotation>::new(), Vec::new());
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate();
    for (number, line) in lines.filter(|(_, line)| line.ends_with(b"\n") && line.len() > 1) {
        match serde_json::from_slice::<Line>(line) {
            Ok(line) => found.entry(line.run).or_default().apply(line.change),
            Err(e) => faults.push(Error::failed(format!(
                "{}:{}: not an annotation: {e}; xrun ignores this line until you fix or remove it",
                path.display(),
                number + 1
            ))),
        }
    }
    (found, faults)
}

/// Appends changes to one run's annotation. They are on disk when this returns.
///
/// # Errors
/// If the file cannot be written.
pub fn annotate(run: &Located, changes: Vec<AnnotationChange>) -> Result<()> {
    let path = file(&run.results);
    let mut options = File::options();
    let mut written = regular::open_own(options.read(true).append(true).create(true), &path)?;
    let mut text = String::new();
    if !ends_with_newline(&mut written).at("read", &path)? {
        text.push('\n');
    }
    for change in changes {
        let line = json_line(&Line { run: run.id.clone(), at: now(), change })?;
        text += &format!("{}\n", harmless_json(&line));
    }
    // One write keeps the lines of two processes apart.
    written.write_all(text.as_bytes()).and_then(|()| written.sync_data()).at("write", &path)
}

/// Returns the path of the annotations for the runs in a results folder.
fn file(results: &Path) -> PathBuf {
    let is_kept = results.file_name().is_some_and(|name| name == KEPT);
    let results = results.parent().filter(|_| is_kept).unwrap_or(results);
    results.join(FILE)
}

/// Returns true if the file is empty or ends with a newline.
fn ends_with_newline(file: &mut File) -> std::io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Checks that a word can be a tag, so that it can be used unquoted in filters and lists.
///
/// # Errors
/// A usage error that explains what a tag may be.
pub fn check_tag(tag: &str) -> Result<()> {
    let is_plain = |c: char| !c.is_whitespace() && !",=<>!\"'".contains(c);
    let is_tag = !tag.is_empty()
        && tag.chars().count() <= MAX_TAG
        && tag.chars().all(is_plain)
        && !tag.starts_with('-')
        && printable(tag) == tag;
    if is_tag {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{:?} cannot be a tag: a tag is a word of at most {MAX_TAG} characters without white space, quotes, \
         commas, comparison signs or control characters that does not begin with a dash; `xrun runs note` takes any text",
        printable(tag)
    )))
}

/// Checks the length of a note.
///
/// # Errors
/// A usage error if the note is too long.
pub fn check_note(note: &str) -> Result<()> {
    if note.len() <= MAX_NOTE {
        return Ok(());
    }
    Err(Error::usage(format!("the note has {} bytes; the limit is {MAX_NOTE}", note.len())))
}

#[cfg(test)]
mod tests {
    use super::AnnotationChange::{Note, Tag, Untag};
    use super::*;

    fn at(results: &Path) -> Located {
        Located { results: results.to_owned(), id: "r/1".to_owned() }
    }

    fn read_run(results: &Path) -> (Annotation, usize) {
        let (mut all, faults) = read_annotations(results);
        (all.remove("r/1").unwrap_or_default(), faults.len())
    }

    fn tag(word: &str) -> AnnotationChange {
        Tag(word.to_owned())
    }

    #[test]
    fn the_last_word_on_a_run_holds() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_run(dir.path()), (Annotation::default(), 0));
        let run = at(dir.path());
        annotate(&run, vec![tag("b"), tag("a"), tag("b")]).unwrap();
        annotate(&run, vec![Untag("b".to_owned()), Note("first".to_owned())]).unwrap();
        let text = "\u{1b}[31mred\u{202e} \"quoted\"\nand 'more'";
        annotate(&run, vec![Note(text.to_owned())]).unwrap();
        let other = Located { id: "r/2".to_owned(), ..run.clone() };
        annotate(&other, vec![tag("x")]).unwrap();
        let expected = Annotation { tags: ["a".to_owned()].into(), note: Some(text.to_owned()) };
        assert_eq!(read_run(dir.path()), (expected.clone(), 0));
        assert_eq!(read_run(&dir.path().join(KEPT)).0, expected, "kept runs have the same");
        let stored = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert_eq!(stored.lines().count(), 7);
        assert_eq!(printable(&stored), stored, "nothing in the file acts on a terminal");
        annotate(&run, vec![Note(String::new())]).unwrap();
        assert_eq!(read_run(dir.path()).0.note, None);
    }

    #[test]
    fn damaged_and_torn_lines_take_no_others_with_them() {
        let dir = tempfile::tempdir().unwrap();
        let run = at(dir.path());
        annotate(&run, vec![tag("a")]).unwrap();
        let path = dir.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend(b"garbage \xff\n\n{\"run\":\"r/1\",\"at\":\"2026-11-02T03:04:05Z\",\"ta");
        std::fs::write(&path, bytes).unwrap();
        let tags = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<BTreeSet<_>>();
        let (found, faults) = read_run(dir.path());
        assert_eq!((found.tags, faults), (tags(&["a"]), 1), "the torn line may be about to be written");
        annotate(&run, vec![tag("b")]).unwrap();
        let (found, faults) = read_run(dir.path());
        assert_eq!((found.tags, faults), (tags(&["a", "b"]), 2));
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(annotate(&run, vec![tag("c")]).is_err());
        assert_eq!(read_run(dir.path()).1, 1);
        assert!(!dir.path().join("elsewhere").exists());
    }

    #[test]
    fn appends_at_once_are_all_there() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for number in 0..16 {
                let run = at(dir.path());
                scope.spawn(move || annotate(&run, vec![tag(&number.to_string())]).unwrap());
            }
        });
        let (found, faults) = read_run(dir.path());
        assert_eq!((found.tags.len(), faults), (16, 0));
    }

    #[test]
    fn tags_are_words() {
        for word in ["baseline", "lr-sweep/2", "v1.0", "größer", "日本"] {
            check_tag(word).unwrap();
        }
        let long = "x".repeat(65);
        for word in ["", "two words", "a,b", "a=b", "\u{1b}[31m", "a\u{202e}b", "-x", "\"x\"", &long] {
            let error = check_tag(word).unwrap_err();
            assert_eq!(printable(error.message()), error.message(), "{error}");
        }
        assert!(check_note(&"x".repeat(MAX_NOTE)).is_ok() && check_note(&"x".repeat(MAX_NOTE + 1)).is_err());
    }
}
