//! Text corpora as lists of documents: a file, a folder of files, JSON lines.

use super::END_OF_TEXT;
use crate::error::{Error, IoContext, Result};
use crate::liveness::report_progress;
use memmap2::Mmap;
use rayon::prelude::*;
use serde::Deserialize;
use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};

/// What a folder is searched for.
const TEXT_EXTENSIONS: [&str; 2] = ["txt", "md"];

/// One mapped file.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
}

impl Source {
    fn open(path: PathBuf) -> Result<Self> {
        let file = File::open(&path).at("open", &path)?;
        if file.metadata().at("read", &path)?.len() == 0 {
            return Ok(Self { path, map: None });
        }
        // SAFETY: the map is only read; a corpus that is rewritten during the run is outside what can be served.
        let map = unsafe { Mmap::map(&file) }.at("map", &path)?;
        Ok(Self { path, map: Some(map) })
    }

    /// What is in it, without the mark of its encoding that some editors put first.
    fn bytes(&self) -> &[u8] {
        let all = self.map.as_deref().unwrap_or_default();
        all.strip_prefix(b"\xef\xbb\xbf").unwrap_or(all)
    }

    /// The file as text. Line numbers in the error count from 1.
    fn text(&self) -> Result<&str> {
        report_progress();
        std::str::from_utf8(self.bytes()).map_err(|e| {
            let line = 1 + self.bytes()[..e.valid_up_to()].iter().filter(|&&b| b == b'\n').count();
            Error::usage(format!(
                "{}:{line}: not UTF-8 (byte {} of the file); convert it first",
                self.path.display(),
                e.valid_up_to()
            ))
        })
    }
}

/// Where a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DocumentSpan {
    source: usize,
    start: usize,
    end: usize,
    /// Line in the file, from 1, of JSON lines.
    line: usize,
}

/// A line of JSON lines; other fields are ignored.
#[derive(Deserialize)]
struct Record<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

/// The documents of a corpus, in order, read on demand from mapped files.
#[derive(Debug)]
pub(super) struct Documents {
    sources: Vec<Source>,
    places: Vec<DocumentSpan>,
    json: bool,
    /// Things worth telling the user.
    pub warnings: Vec<String>,
}

/// The text files that a path stands for: itself, or all below a folder, sorted.
pub(super) fn text_files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).at("list", &folder)? {
            let entry = entry.at("list", &folder)?;
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            // Linked folders are not followed: they may lead in circles.
            let kind = entry.file_type().at("read", &entry.path())?;
            let named = entry.path().extension().is_some_and(|x| TEXT_EXTENSIONS.iter().any(|t| x == *t));
            if hidden {
                continue;
            } else if kind.is_dir() {
                folders.push(entry.path());
            } else if named && entry.path().is_file() {
                files.push(entry.path());
            }
        }
    }
    if files.is_empty() {
        return Err(Error::usage(format!(
            "corpus {}: the folder holds no .txt, .md or .bin files",
            path.display()
        )));
    }
    files.sort();
    Ok(files)
}

/// Whether a path is read as JSON lines.
pub(super) fn is_json_lines(path: &Path) -> bool {
    path.extension().is_some_and(|x| x == "jsonl" || x == "ndjson")
}

impl Documents {
    /// Finds the documents of a text file, a folder or a JSON-lines file.
    ///
    /// With a separator each text file is cut at it, line breaks around it removed; documents of white space
    /// alone are dropped.
    ///
    /// # Errors
    /// Files that cannot be read or are not UTF-8, a line that is not JSON with a `text`, a corpus with no text.
    pub fn open(path: &Path, separator: Option<&str>) -> Result<Self> {
        if separator == Some("") {
            return Err(Error::usage("data.document_separator is empty; leave it out for whole files"));
        }
        let json = is_json_lines(path);
        let sources = text_files(path)?.into_iter().map(Source::open).collect::<Result<Vec<_>>>()?;
        let places = sources
            .par_iter()
            .enumerate()
            .map(|(i, s)| if json { lines(i, s) } else { parts(i, s, separator) })
            .collect::<Result<Vec<_>>>()?
            .concat();
        let mut documents = Self { sources, places, json, warnings: Vec::new() };
        if documents.places.is_empty() {
            return Err(Error::usage(format!("corpus {}: it holds no text", path.display())));
        }
        if json && separator.is_some() {
            documents.warnings.push(format!(
                "data.document_separator is not used: each line of {} is a document",
                path.display()
            ));
        } else if !json && separator.is_none() {
            documents.warnings.extend(documents.sources.iter().find_map(suggest_separator));
        }
        Ok(documents)
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Bytes of the files that document `i` takes.
    pub fn bytes(&self, i: usize) -> usize {
        self.places[i].end - self.places[i].start
    }

    /// The text of document `i`.
    pub fn text(&self, i: usize) -> Result<Cow<'_, str>> {
        let place = self.places[i];
        let source = &self.sources[place.source];
        let bytes = &source.bytes()[place.start..place.end];
        if self.json {
            return record(source, place.line, bytes).map(|r| r.text);
        }
        std::str::from_utf8(bytes)
            .map(Cow::Borrowed)
            .map_err(|_| Error::failed(format!("{} changed while it was read", source.path.display())))
    }
}

fn record<'a>(source: &Source, line: usize, bytes: &'a [u8]) -> Result<Record<'a>> {
    serde_json::from_slice(bytes).map_err(|e| {
        Error::usage(format!(
            "{}:{line}: not a JSON object with a string \"text\": {e}",
            source.path.display()
        ))
    })
}

/// The documents of a JSON-lines file; every line is checked.
fn lines(index: usize, source: &Source) -> Result<Vec<DocumentSpan>> {
    let text = source.text()?;
    let mut start = 0;
    let mut places = Vec::new();
    for (i, line) in text.split_inclusive('\n').enumerate() {
        if !line.trim().is_empty() {
            places.push(DocumentSpan {
                source: index,
                start,
                end: start + line.trim_end().len(),
                line: i + 1,
            });
        }
        start += line.len();
    }
    let kept = places.into_par_iter().map(|p| {
        let r = record(source, p.line, &source.bytes()[p.start..p.end])?;
        Ok((!r.text.trim().is_empty()).then_some(p))
    });
    Ok(kept.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// The documents of a text file: the whole, or what stands between separators.
fn parts(index: usize, source: &Source, separator: Option<&str>) -> Result<Vec<DocumentSpan>> {
    let text = source.text()?;
    let breaks = |c| c == '\n' || c == '\r';
    let Some(separator) = separator else {
        let whole = DocumentSpan { source: index, start: 0, end: text.len(), line: 0 };
        return Ok(if text.trim().is_empty() { vec![] } else { vec![whole] });
    };
    let mut start = 0;
    let mut places = Vec::new();
    for part in text.split(separator) {
        let trimmed = part.trim_matches(breaks);
        if !trimmed.trim().is_empty() {
            let from = start + part.len() - part.trim_start_matches(breaks).len();
            places.push(DocumentSpan { source: index, start: from, end: from + trimmed.len(), line: 0 });
        }
        start += part.len() + separator.len();
    }
    Ok(places)
}

/// A warning when a file without a separator is full of literal end tokens.
fn suggest_separator(source: &Source) -> Option<String> {
    /// Enough of a file to see how it separates its documents.
    const SAMPLE: usize = 4 << 20;
    let bytes = source.bytes();
    let sample = String::from_utf8_lossy(&bytes[..bytes.len().min(SAMPLE)]);
    let count = sample.matches(END_OF_TEXT).count();
    (count > 1).then(|| {
        format!(
            "{} holds the text {END_OF_TEXT} {count} times{}; it is read as plain text. If it separates documents, \
             set data.document_separator = \"{END_OF_TEXT}\"",
            source.path.display(),
            if bytes.len() > SAMPLE { " in its first 4 MiB" } else { "" }
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(name: &str, content: impl AsRef<[u8]>) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        (dir, path)
    }

    fn texts(path: &Path, separator: Option<&str>) -> Vec<String> {
        let d = Documents::open(path, separator).unwrap();
        (0..d.len()).map(|i| d.text(i).unwrap().into_owned()).collect()
    }

    #[test]
    fn a_text_file_is_one_document_or_what_a_separator_makes() {
        let text = "one\r\n\n<|endoftext|>\n  two\n<|endoftext|> \n <|endoftext|>three";
        let (_dir, path) = write("a.txt", text);
        assert_eq!(texts(&path, None), [text]);
        assert_eq!(texts(&path, Some("<|endoftext|>")), ["one", "  two", "three"]);
        let open = Documents::open(&path, None).unwrap();
        assert!(open.warnings[0].contains("data.document_separator = \"<|endoftext|>\""));
        assert!(Documents::open(&path, Some("<|endoftext|>")).unwrap().warnings.is_empty());
        assert!(Documents::open(&path, Some("")).is_err());
    }

    #[test]
    fn a_folder_is_read_in_order_and_by_extension() {
        let (dir, _) = write("b.md", "B");
        let root = dir.path();
        std::fs::create_dir_all(root.join("a/.hidden")).unwrap();
        for (name, text) in
            [("c.txt", "C"), ("a/z.txt", "Z"), ("a/.hidden/x.txt", "X"), ("a/n.rs", "N"), ("e.txt", " ")]
        {
            std::fs::write(root.join(name), text).unwrap();
        }
        assert_eq!(texts(root, None), ["Z", "B", "C"]);
        let empty = tempfile::tempdir().unwrap();
        assert!(Documents::open(empty.path(), None).unwrap_err().message().contains("no .txt"));
    }

    #[test]
    fn json_lines_give_their_text() {
        let (_dir, path) =
            write("a.jsonl", "{\"text\": \"a\\nb\", \"id\": 3}\n\n{\"text\":\"c\"}\r\n{\"text\":\"\"}");
        assert_eq!(texts(&path, None), ["a\nb", "c"]);
        assert!(Documents::open(&path, Some("x")).unwrap().warnings[0].contains("not used"));
    }

    #[test]
    fn wrong_files_say_the_line() {
        for (name, content, says) in [
            ("a.jsonl", &b"{\"text\":\"a\"}\n{\"text\": 3}\n"[..], "a.jsonl:2:"),
            ("a.jsonl", b"{\"text\":\"a\"}\n\n{\"txt\":\"a\"}", "a.jsonl:3:"),
            ("a.jsonl", b"{\"text\":\"a\"}\n{\"text\":\"a", "a.jsonl:2:"),
            ("a.txt", b"fine\nnot \xff fine", "a.txt:2:"),
            ("a.txt", b"", "no text"),
            ("a.txt", b" \n ", "no text"),
            ("a.jsonl", b"", "no text"),
        ] {
            let (_dir, path) = write(name, content);
            let error = Documents::open(&path, None).unwrap_err();
            assert!(error.message().contains(says), "{says}: {error}");
            assert_eq!(error.kind(), crate::error::ErrorKind::Usage);
        }
    }
}
