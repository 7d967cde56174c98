//! The documents of a text corpus, in order, read on demand.

use super::Spec;
use super::corpus_files::TextFiles;
use super::source::{self, Content, DocumentReader, DocumentSpan, Source};
use crate::error::{Error, Result};
use rayon::prelude::*;

/// The documents of a corpus.
#[derive(Debug)]
pub(super) struct Documents {
    source: &'static dyn Source,
    files: Vec<Box<dyn Content>>,
    /// Each span with the index of its file in `files`.
    spans: Vec<(usize, DocumentSpan)>,
}

impl Documents {
    /// Finds the documents of a text file, a folder or a JSON-lines file.
    ///
    /// With a separator, each text file is cut at it and the line breaks around it are removed. Documents
    /// that are only white space are dropped.
    ///
    /// # Errors
    /// If [`Source::scan`] fails, or the corpus holds no text.
    pub fn open(text: &TextFiles, spec: &Spec) -> Result<Self> {
        let separator = spec.document_separator.as_deref();
        if separator == Some("") {
            return Err(Error::usage("data.document_separator is empty; leave it out for whole files"));
        }
        let (source, files) = (text.source, source::open(text.list(&spec.extensions)?)?);
        let scanned = files.par_iter().enumerate().map(|(i, file)| {
            let spans = source.scan(file.as_ref(), separator)?;
            Ok(spans.into_iter().map(|span| (i, span)).collect())
        });
        let spans = scanned.collect::<Result<Vec<Vec<_>>>>()?.concat();
        if spans.is_empty() {
            return Err(Error::usage(format!("corpus {}: it holds no text", text.path.display())));
        }
        Ok(Self { source, files, spans })
    }

    /// Returns the number of documents.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns the number of files.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Returns the bytes of content that document `i` takes.
    pub fn bytes(&self, i: usize) -> u64 {
        self.spans[i].1.bytes
    }

    /// Opens the text of document `i`.
    ///
    /// # Errors
    /// If [`Source::read`] fails.
    pub fn reader(&self, i: usize) -> Result<DocumentReader<'_>> {
        let (file, span) = &self.spans[i];
        self.source.read(self.files[*file].as_ref(), span)
    }

    /// Looks at the beginning of each file and returns the first warning.
    ///
    /// # Errors
    /// If [`Source::warning`] fails.
    pub fn warning(&self, spec: &Spec) -> Result<Option<String>> {
        first_warning(self.source, &self.files, spec)
    }
}

/// Files that a plan probes for warnings. The run itself probes all of them.
pub(super) const PROBED_FILES: usize = 16;

/// Looks at the beginning of the first `most` files and returns the first warning.
///
/// # Errors
/// If [`Source::warning`] fails.
pub(super) fn warning(text: &TextFiles, spec: &Spec, most: usize) -> Result<Option<String>> {
    let mut files = text.list(&spec.extensions)?;
    files.truncate(most);
    first_warning(text.source, &source::open(files)?, spec)
}

fn first_warning(source: &dyn Source, files: &[Box<dyn Content>], spec: &Spec) -> Result<Option<String>> {
    let separator = spec.document_separator.as_deref();
    files.par_iter().find_map_first(|file| source.warning(file.as_ref(), separator).transpose()).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::corpus_files::CorpusFiles;
    use std::path::{Path, PathBuf};

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
        match CorpusFiles::at(path).unwrap() {
            CorpusFiles::Text(text) => text,
            CorpusFiles::Tokens(files) => panic!("{files:?}"),
        }
    }

    fn open(path: &Path, separator: Option<&str>) -> Result<Documents> {
        Documents::open(&text(path), &spec(path, separator))
    }

    fn warned(path: &Path, separator: Option<&str>) -> Option<String> {
        warning(&text(path), &spec(path, separator), 1).unwrap()
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
        let empty = tempfile::tempdir().unwrap();
        assert!(open(empty.path(), None).unwrap_err().message().contains("no .txt"));
    }

    #[test]
    fn json_lines_give_their_text() {
        let (_dir, path) =
            write("a.jsonl", "{\"text\": \"a\\nb\", \"id\": 3}\n\n{\"text\":\"c\"}\r\n{\"text\":\"\"}");
        assert_eq!(texts(&path, None), ["a\nb", "c"]);
        assert!(warned(&path, Some("x")).unwrap().contains("not used"));
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
