//! Text corpora as lists of documents: a file, a folder of files, JSON lines.

use super::END_OF_TEXT;
use super::file::CorpusFile;
use super::text::{BLOCK_BYTES, TextReader};
use crate::error::{Error, IoContext, Result};
use rayon::prelude::*;
use serde::Deserialize;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Where a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DocumentSpan {
    source: usize,
    start: u64,
    end: u64,
    /// Line in the file, from 1, of JSON lines.
    line: usize,
}

/// A line of JSON lines; other fields are ignored.
#[derive(Deserialize)]
struct Record<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

/// The documents of a corpus, in order, read on demand.
#[derive(Debug)]
pub(super) struct Documents {
    sources: Vec<CorpusFile>,
    places: Vec<DocumentSpan>,
    json: bool,
    /// Things worth telling the user.
    pub warnings: Vec<String>,
}

/// The text files that a path stands for: itself, or all below a folder with one of these endings (dots
/// included), sorted.
pub(super) fn text_files(path: &Path, extensions: &[String]) -> Result<Vec<PathBuf>> {
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
            let named = entry.path().extension().is_some_and(|ending| {
                extensions.iter().any(|known| known.strip_prefix('.').is_some_and(|known| ending == known))
            });
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
            "corpus {}: the folder holds no {} or .bin files; data.extensions names the endings that are read, such as \
             data.extensions=[\".py\"]",
            path.display(),
            extensions.join(", ")
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
    /// Files that cannot be read or are not UTF-8, a line that is not JSON with a `text`, a corpus with no
    /// text.
    pub fn open(path: &Path, separator: Option<&str>, extensions: &[String]) -> Result<Self> {
        if separator == Some("") {
            return Err(Error::usage("data.document_separator is empty; leave it out for whole files"));
        }
        let json = is_json_lines(path);
        let sources = CorpusFile::open_all(text_files(path, extensions)?)?;
        let scanned = sources
            .par_iter()
            .enumerate()
            .map(|(i, file)| if json { lines(i, file) } else { parts(i, file, separator) })
            .collect::<Result<Vec<_>>>()?;
        let warning = scanned.iter().find_map(|scanned| scanned.warning.clone());
        let places = scanned.into_iter().flat_map(|scanned| scanned.places).collect();
        let mut documents = Self { sources, places, json, warnings: Vec::new() };
        if documents.places.is_empty() {
            return Err(Error::usage(format!("corpus {}: it holds no text", path.display())));
        }
        if json && separator.is_some() {
            documents.warnings.push(unused_separator(path));
        } else if !json && separator.is_none() {
            documents.warnings.extend(warning);
        }
        Ok(documents)
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Number of files.
    pub fn files(&self) -> usize {
        self.sources.len()
    }

    /// Bytes of the files that document `i` takes.
    pub fn bytes(&self, i: usize) -> u64 {
        self.places[i].end - self.places[i].start
    }

    /// The text of document `i`, to be read block by block.
    pub fn reader(&self, i: usize) -> Result<DocumentReader<'_>> {
        let DocumentSpan { source, start, end, line } = self.places[i];
        let file = &self.sources[source];
        let mut reader = TextReader::range(file, start..end);
        if !self.json {
            return Ok(DocumentReader::Text(reader));
        }
        let mut json = String::new();
        reader.append(&mut json, usize::MAX)?;
        Ok(DocumentReader::Record(Some(record(file, line, &json)?.text.into_owned())))
    }
}

/// The text of a document.
pub(super) enum DocumentReader<'d> {
    Text(TextReader<'d>),
    /// Of a line of JSON, in one piece.
    Record(Option<String>),
}

impl DocumentReader<'_> {
    /// Appends the next block of about `most` bytes to `text`; false where nothing is left.
    ///
    /// # Errors
    /// As [`TextReader::append`].
    pub fn append(&mut self, text: &mut String, most: usize) -> Result<bool> {
        match self {
            DocumentReader::Text(reader) => reader.append(text, most),
            DocumentReader::Record(record) => {
                let record = record.take();
                text.push_str(record.as_deref().unwrap_or_default());
                Ok(record.is_some())
            }
        }
    }
}

/// The documents of a file.
struct Scanned {
    places: Vec<DocumentSpan>,
    warning: Option<String>,
}

fn record<'a>(file: &CorpusFile, line: usize, json: &'a str) -> Result<Record<'a>> {
    serde_json::from_str(json).map_err(|e| {
        Error::usage(format!(
            "{}:{line}: not a JSON object with a string \"text\": {e}",
            file.path().display()
        ))
    })
}

/// The documents of a JSON-lines file; every line is checked.
fn lines(source: usize, file: &CorpusFile) -> Result<Scanned> {
    let mut reader = TextReader::whole(file)?;
    let (mut places, mut line) = (Vec::new(), 0);
    let (mut text, mut at) = (String::new(), reader.at());
    loop {
        // A line that is longer than a block: as much again.
        let block = BLOCK_BYTES.max(text.len());
        let more = reader.append(&mut text, block)?;
        let whole = if more { text.rfind('\n').map_or(0, |end| end + 1) } else { text.len() };
        let mut found = Vec::new();
        let mut start = 0;
        for part in text[..whole].split_inclusive('\n') {
            line += 1;
            found.push((line, start..start + part.trim_end().len()));
            start += part.len();
        }
        let kept = found.into_par_iter().map(|(line, range)| {
            let json = &text[range.clone()];
            if json.trim().is_empty() || record(file, line, json)?.text.trim().is_empty() {
                return Ok(None);
            }
            let [start, end] = [range.start, range.end].map(|byte| at + byte as u64);
            Ok(Some(DocumentSpan { source, start, end, line }))
        });
        places.extend(kept.collect::<Result<Vec<_>>>()?.into_iter().flatten());
        text.drain(..whole);
        at += whole as u64;
        if !more {
            return Ok(Scanned { places, warning: None });
        }
    }
}

/// A document of a text file while its file is read.
#[derive(Default)]
struct Part {
    /// From the first to the last character that is no line break.
    span: Option<(u64, u64)>,
    /// Whether it has more than white space.
    has_text: bool,
}

impl Part {
    fn add(&mut self, text: &str, at: u64) {
        let breaks = |c| c == '\n' || c == '\r';
        let trimmed = text.trim_matches(breaks);
        if trimmed.is_empty() {
            return;
        }
        let from = at + (text.len() - text.trim_start_matches(breaks).len()) as u64;
        let start = self.span.map_or(from, |(start, _)| start);
        self.span = Some((start, from + trimmed.len() as u64));
        self.has_text = self.has_text || !trimmed.trim().is_empty();
    }

    /// Ends the document.
    fn close(&mut self, source: usize) -> Option<DocumentSpan> {
        let Self { span, has_text } = std::mem::take(self);
        let (start, end) = span.filter(|_| has_text)?;
        Some(DocumentSpan { source, start, end, line: 0 })
    }
}

/// The documents of a text file: the whole, or what stands between separators.
fn parts(source: usize, file: &CorpusFile, separator: Option<&str>) -> Result<Scanned> {
    let mut reader = TextReader::whole(file)?;
    let (mut text, mut at) = (String::new(), reader.at());
    let (mut places, mut part) = (Vec::new(), Part::default());
    let Some(separator) = separator else {
        let (begin, mut warning, mut has_text) = (at, None, false);
        while reader.append(&mut text, BLOCK_BYTES)? {
            if at == begin {
                warning = suggest_separator(file, &text);
            }
            has_text = has_text || !text.trim().is_empty();
            at = reader.at();
            text.clear();
        }
        let whole = DocumentSpan { source, start: begin, end: file.bytes(), line: 0 };
        return Ok(Scanned { places: if has_text { vec![whole] } else { vec![] }, warning });
    };
    loop {
        let more = reader.append(&mut text, BLOCK_BYTES)?;
        let mut start = 0;
        while let Some(found) = text[start..].find(separator) {
            part.add(&text[start..start + found], at + start as u64);
            places.extend(part.close(source));
            start += found + separator.len();
        }
        // The end of a block may be the beginning of a separator.
        let kept = if more { separator.len() - 1 } else { 0 };
        let mut end = text.len().saturating_sub(kept).max(start);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        part.add(&text[start..end], at + start as u64);
        text.drain(..end);
        at += end as u64;
        if !more {
            places.extend(part.close(source));
            return Ok(Scanned { places, warning: None });
        }
    }
}

/// Returns what [`Documents::open`] warns of, by the beginnings of the first files alone.
pub(super) fn warnings(path: &Path, separator: Option<&str>, extensions: &[String]) -> Result<Vec<String>> {
    warnings_in(path, separator, extensions, PROBED_FILES)
}

/// As [`warnings`], by the beginnings of so many files at most.
pub(super) fn warnings_in(
    path: &Path,
    separator: Option<&str>,
    extensions: &[String],
    most: usize,
) -> Result<Vec<String>> {
    if is_json_lines(path) {
        return Ok(separator.map(|_| unused_separator(path)).into_iter().collect());
    }
    let mut files = text_files(path, extensions)?;
    files.truncate(if separator.is_some() { 0 } else { most });
    for file in &CorpusFile::open_all(files)? {
        let mut text = String::new();
        TextReader::whole(file)?.append(&mut text, BLOCK_BYTES)?;
        if let Some(warning) = suggest_separator(file, &text) {
            return Ok(vec![warning]);
        }
    }
    Ok(Vec::new())
}

/// Files whose first block is read for the plan of a run; the run reads all.
const PROBED_FILES: usize = 16;

fn unused_separator(path: &Path) -> String {
    format!("data.document_separator is not used: each line of {} is a document", path.display())
}

/// A warning when the first block of a file without a separator is full of literal end tokens.
fn suggest_separator(file: &CorpusFile, block: &str) -> Option<String> {
    let count = block.matches(END_OF_TEXT).count();
    (count > 1).then(|| {
        format!(
            "{} holds the text {END_OF_TEXT} {count} times{}; it is read as plain text. If it separates documents, \
             set data.document_separator = \"{END_OF_TEXT}\"",
            file.path().display(),
            if file.bytes() > BLOCK_BYTES as u64 { " in its first 4 MiB" } else { "" }
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::TEXT_EXTENSIONS;

    fn write(name: &str, content: impl AsRef<[u8]>) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        (dir, path)
    }

    fn texts(path: &Path, separator: Option<&str>) -> Vec<String> {
        let d = Documents::open(path, separator, &TEXT_EXTENSIONS.map(str::to_owned)).unwrap();
        let read = |i| {
            let (mut reader, mut text) = (d.reader(i).unwrap(), String::new());
            while reader.append(&mut text, 3).unwrap() {}
            text
        };
        (0..d.len()).map(read).collect()
    }

    #[test]
    fn a_text_file_is_one_document_or_what_a_separator_makes() {
        let text = "one\r\n\n<|endoftext|>\n  two\n<|endoftext|> \n <|endoftext|>three";
        let (_dir, path) = write("a.txt", text);
        assert_eq!(texts(&path, None), [text]);
        assert_eq!(texts(&path, Some("<|endoftext|>")), ["one", "  two", "three"]);
        let open = Documents::open(&path, None, &TEXT_EXTENSIONS.map(str::to_owned)).unwrap();
        assert!(open.warnings[0].contains("data.document_separator = \"<|endoftext|>\""));
        assert!(
            Documents::open(&path, Some("<|endoftext|>"), &TEXT_EXTENSIONS.map(str::to_owned))
                .unwrap()
                .warnings
                .is_empty()
        );
        assert!(Documents::open(&path, Some(""), &TEXT_EXTENSIONS.map(str::to_owned)).is_err());
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
        assert!(
            Documents::open(empty.path(), None, &TEXT_EXTENSIONS.map(str::to_owned))
                .unwrap_err()
                .message()
                .contains("no .txt")
        );
    }

    #[test]
    fn json_lines_give_their_text() {
        let (_dir, path) =
            write("a.jsonl", "{\"text\": \"a\\nb\", \"id\": 3}\n\n{\"text\":\"c\"}\r\n{\"text\":\"\"}");
        assert_eq!(texts(&path, None), ["a\nb", "c"]);
        assert!(
            Documents::open(&path, Some("x"), &TEXT_EXTENSIONS.map(str::to_owned)).unwrap().warnings[0]
                .contains("not used")
        );
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
            let error = Documents::open(&path, None, &TEXT_EXTENSIONS.map(str::to_owned)).unwrap_err();
            assert!(error.message().contains(says), "{says}: {error}");
            assert_eq!(error.kind(), crate::error::ErrorKind::Usage);
        }
    }
}
