//! The documents of a text corpus, in order, read on demand.

use super::Spec;
use super::location::CorpusLocation;
use super::parallel::collect_in_order;
use super::source::{self, DocumentReader, DocumentSpan, Rules, Sample, TextFile};
use super::text_files::TextFiles;
use crate::error::{Error, Result};
use crate::format::{plural, printable, shortened};
use rayon::prelude::*;
use std::path::Path;

/// The documents of a corpus.
#[derive(Debug)]
pub(super) struct Documents {
    location: CorpusLocation,
    files: Vec<TextFile>,
    rules: Rules,
    /// Each span with the index of its file in `files`.
    spans: Vec<(usize, DocumentSpan)>,
    /// Number of documents left out because they have no text.
    empty: usize,
    /// Number of documents left out because they lack the field with their text.
    missing: usize,
    /// True if the separator occurs in one of the files.
    is_separated: bool,
    /// What the user should know about the names of the files.
    listing_warnings: Vec<String>,
}

/// Where a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DocumentPlace<'a> {
    pub file: &'a Path,
    /// Its line, from 1, in formats with one document per line.
    pub line: Option<usize>,
    /// Its number among the documents of the file, from 1.
    pub number: usize,
}

impl Documents {
    /// Finds the documents of a text file, a folder or a JSON-lines file.
    ///
    /// With a separator, each text file is cut at it and the line breaks around it are removed. Documents
    /// that are only white space are dropped.
    ///
    /// # Errors
    /// If a file is not what its ending says or does not follow its format, or the corpus holds no text.
    pub fn open(text: &TextFiles, spec: &Spec) -> Result<Self> {
        let rules = spec.rules();
        if spec.holds_conversations() {
            return Err(Error::usage(format!(
                "{}.format = \"chat\": only a run reads conversations as such; for the text of a field, name another format",
                rules.table
            )));
        }
        if rules.separator.as_deref() == Some("") {
            let table = rules.table;
            return Err(Error::usage(format!(
                "{table}.document_separator is empty; leave it out for whole files"
            )));
        }
        let listing = text.list(&spec.extensions)?;
        let listing_warnings = listing.warnings();
        let files = source::open(listing.files(), &rules)?;
        let scans = files.par_iter().map(|file| file.source.scan(file.content.as_ref(), &rules));
        let scans = collect_in_order(scans)?;
        let empty = scans.iter().map(|scan| scan.empty).sum();
        let missing = scans.iter().map(|scan| scan.missing).sum();
        let is_separated = scans.iter().any(|scan| scan.is_separated);
        let mut spans = Vec::with_capacity(scans.iter().map(|scan| scan.documents.len()).sum());
        for (i, scan) in scans.into_iter().enumerate() {
            spans.extend(scan.documents.into_iter().map(|document| (i, document)));
        }
        if spans.is_empty() {
            let lacking = match missing {
                0 => String::new(),
                n => format!(": {}, so {}.field names another one", lacks(n, &rules.field), rules.table),
            };
            return Err(Error::usage(format!("corpus {}: it holds no text{lacking}", text.location)));
        }
        let location = text.location.clone();
        Ok(Self { location, files, rules, spans, empty, missing, is_separated, listing_warnings })
    }

    /// Returns the number of documents.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns the bytes of content that document `i` takes.
    pub fn bytes(&self, i: usize) -> u64 {
        self.spans[i].1.bytes
    }

    /// Returns the bytes of content that all documents take.
    pub fn total_bytes(&self) -> u64 {
        self.spans.iter().map(|(_, span)| span.bytes).sum()
    }

    /// Returns where document `i` is, for people.
    pub fn place(&self, i: usize) -> DocumentPlace<'_> {
        let (file, span) = &self.spans[i];
        let first = self.spans.partition_point(|(other, _)| other < file);
        let line = Some(span.line).filter(|line| *line > 0);
        DocumentPlace { file: self.files[*file].content.file().path(), line, number: i - first + 1 }
    }

    /// Returns the files, in order.
    pub fn files(&self) -> &[TextFile] {
        &self.files
    }

    /// Counts the documents, the files and what was left out, in words.
    pub fn counted(&self) -> String {
        let (documents, files) = (self.len(), self.files.len());
        let counted = format!("{documents} document{} in {files} file{}", plural(documents), plural(files));
        let left_out = [
            (self.empty, "without text".to_owned()),
            (self.missing, format!("without a {}", shown(&self.rules.field))),
        ];
        let left_out = left_out.into_iter().filter(|(n, _)| *n > 0);
        left_out.fold(counted, |counted, (n, which)| format!("{counted}, {n} {which} left out"))
    }

    /// Opens the text of document `i`.
    ///
    /// # Errors
    /// If [`Source::read`](source::Source::read) fails.
    pub fn reader(&self, i: usize) -> Result<DocumentReader<'_>> {
        let (file, span) = &self.spans[i];
        let TextFile { content, source } = &self.files[*file];
        source.read(content.as_ref(), span, &self.rules)
    }

    /// Returns the document with byte `at` of the content that all documents take, and the bytes of it before
    /// that byte; `None` behind the last document.
    pub fn at_byte(&self, mut at: u64) -> Option<(usize, u64)> {
        for (i, (_, span)) in self.spans.iter().enumerate() {
            match at.checked_sub(span.bytes) {
                None => return Some((i, at)),
                Some(left) => at = left,
            }
        }
        None
    }

    /// Returns at most `most` bytes of the text of document `i` from byte `offset` on, or from its beginning
    /// where its format reads whole documents.
    ///
    /// # Errors
    /// If [`Source::sample`](source::Source::sample) fails.
    pub fn sample(&self, i: usize, offset: u64, most: usize) -> Result<Sample> {
        let (file, span) = &self.spans[i];
        let TextFile { content, source } = &self.files[*file];
        source.sample(content.as_ref(), span, (offset, most), &self.rules)
    }

    /// Returns what the user should know about the corpus: what its folder holds besides it, what names
    /// of files say, and what [`Documents::content_warnings`] finds.
    ///
    /// # Errors
    /// If a file cannot be read or has changed.
    pub fn warnings(&self) -> Result<Vec<String>> {
        Ok(self.listing_warnings.iter().cloned().chain(self.content_warnings()?).collect())
    }

    /// Returns what the user should know about the content of the files: a separator that does nothing, text
    /// that looks like a separator, documents without the field that holds their text.
    ///
    /// # Errors
    /// If a file cannot be read or has changed.
    pub fn content_warnings(&self) -> Result<Vec<String>> {
        let separator = self.rules.separator.as_deref();
        let look = |file: &TextFile| file.source.warning(file.content.as_ref(), &self.rules).transpose();
        let looked = match self.is_separated {
            // Files of other formats have no separator, and the text files use it.
            true => None,
            false => self.files.par_iter().find_map_first(look).transpose()?,
        };
        let cut_nothing = match separator.filter(|_| !self.is_separated && looked.is_none()) {
            Some(separator) => Some(self.unused_separator(separator)?),
            None => None,
        };
        let left_out = (self.missing > 0).then(|| {
            format!(
                "{}: {} and left out, as {}.missing = \"skip\" says; {} are read",
                self.location,
                lacks(self.missing, &self.rules.field),
                self.rules.table,
                self.len()
            )
        });
        Ok(looked.into_iter().chain(cut_nothing).chain(left_out).collect())
    }

    /// Warns of a separator that does not occur, and guesses what was meant.
    fn unused_separator(&self, separator: &str) -> Result<String> {
        let mut head = vec![0; HEAD_BYTES];
        let read = self.files[0].content.read_at(0, &mut head)?;
        let head = String::from_utf8_lossy(&head[..read]).into_owned();
        let unescaped = separator.replace("\\r", "\r").replace("\\n", "\n").replace("\\t", "\t");
        let guess =
            [unescaped.clone(), unescaped.replace('\n', "\r\n")].into_iter().find(|text| head.contains(text));
        let table = &self.rules.table;
        let advice = match guess {
            Some(guess) if unescaped != separator => format!(
                "; a shell passes a backslash and a letter on as they are: for line breaks, write \
                 '{table}.document_separator={guess:?}' with both kinds of quotes, or --separator $'{}'",
                guess.escape_default()
            ),
            Some(guess) => {
                format!("; its lines end with \\r\\n, so set {table}.document_separator = {guess:?}")
            }
            None => String::new(),
        };
        Ok(format!(
            "{}: {table}.document_separator, {:?}, occurs nowhere, so each file is one document{advice}",
            self.location,
            shortened(separator, SHOWN)
        ))
    }
}

/// Says how many documents lack a field.
fn lacks(documents: usize, field: &str) -> String {
    let are = if documents == 1 { "document is" } else { "documents are" };
    format!("{documents} {are} without a {}", shown(field))
}

/// Quotes the name of a field for a message.
fn shown(field: &str) -> String {
    format!("{:?}", shortened(&printable(field), SHOWN))
}

/// Bytes of the first file in which a guess of the separator is looked for.
const HEAD_BYTES: usize = 64 << 10;

/// Longest separator that a message shows, in characters.
const SHOWN: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::PathList;
    use crate::data::corpus_files::CorpusFiles;
    use crate::data::spec::TEXT_EXTENSIONS;
    use std::path::PathBuf;

    fn write(name: &str, content: impl AsRef<[u8]>) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        (dir, path)
    }

    fn spec(path: &Path, separator: Option<&str>) -> Spec {
        Spec { document_separator: separator.map(str::to_owned), ..Spec::new(path.to_str().unwrap(), "byte") }
    }

    fn text(path: &Path) -> TextFiles {
        match CorpusFiles::at(&CorpusLocation::at(path), &TEXT_EXTENSIONS.map(str::to_owned)).unwrap() {
            CorpusFiles::Text(text) => text,
            CorpusFiles::Tokens(files) => panic!("{files:?}"),
        }
    }

    fn open(path: &Path, separator: Option<&str>) -> Result<Documents> {
        Documents::open(&text(path), &spec(path, separator))
    }

    fn warned(path: &Path, separator: Option<&str>) -> Option<String> {
        let warnings = open(path, separator).unwrap().warnings().unwrap();
        assert!(warnings.len() < 2, "{warnings:?}");
        warnings.into_iter().next()
    }

    fn texts(path: &Path, separator: Option<&str>) -> Vec<String> {
        let d = open(path, separator).unwrap();
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
        assert!(warned(&path, None).unwrap().contains("data.document_separator = \"<|endoftext|>\""));
        assert_eq!(warned(&path, Some("<|endoftext|>")), None);
        assert!(open(&path, Some("")).is_err());
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
        let d = open(root, None).unwrap();
        let place = |i| (d.place(i).file.file_name().unwrap().to_owned(), d.place(i).line, d.place(i).number);
        assert_eq!(place(1), ("b.md".into(), None, 1));
        let empty = tempfile::tempdir().unwrap();
        assert!(open(empty.path(), None).unwrap_err().message().contains("no .txt"));
        let passed = warned(root, None).unwrap();
        assert!(passed.contains("4 files read, passed over: 1 .rs file, 1 hidden name"), "{passed}");
    }

    #[test]
    fn json_lines_give_their_text() {
        let (_dir, path) =
            write("a.jsonl", "{\"text\": \"a\\nb\", \"id\": 3}\n\n{\"text\":\"c\"}\r\n{\"text\":\"\"}");
        assert_eq!(texts(&path, None), ["a\nb", "c"]);
        assert_eq!(
            open(&path, None).unwrap().place(1),
            DocumentPlace { file: &path, line: Some(3), number: 2 }
        );
        assert!(warned(&path, Some("x")).unwrap().contains("not used"));
        let both = PathList::new(vec![path.clone(), path.with_extension("txt")]).unwrap();
        for (text, says) in [("one x two", None), ("one", Some("not used: each line"))] {
            std::fs::write(path.with_extension("txt"), text).unwrap();
            let text = TextFiles { location: both.clone().into() };
            let warnings = Documents::open(&text, &spec(&path, Some("x"))).unwrap().warnings().unwrap();
            assert_eq!(warnings.len(), usize::from(says.is_some()), "{warnings:?}");
            assert!(warnings.iter().all(|one| says.is_some_and(|says| one.contains(says))), "{warnings:?}");
        }
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
            let error = open(&path, None).unwrap_err();
            assert!(error.message().contains(says), "{says}: {error}");
            assert_eq!(error.kind(), crate::error::ErrorKind::Usage);
        }
    }
}
