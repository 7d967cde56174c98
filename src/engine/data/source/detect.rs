//! Finds the format of a file: by its ending, and by its content where the ending leaves it open. Refuses a
//! file that is not what its ending says, and one that holds no text.

use super::content::Content;
use super::format::{Rules, Source};
use super::gzip::Gzip;
use super::json_lines::JsonLines;
use super::packed::Packed;
use super::parquet::Parquet;
use super::plain_text::PlainText;
use super::zstd::Zstd;
use crate::data::file::CorpusFile;
use crate::error::{Error, Result};
use crate::format::{printable, shortened};
use crate::policy::TextFormat;
use std::path::{Path, PathBuf};

/// What the ending of a file's name says about its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// Token ids, which are read in place.
    Tokens,
    /// A JSON object per line.
    JsonLines,
    /// JSON lines, or one JSON value.
    Json,
    /// Plain text.
    Text,
    /// A Parquet table.
    Parquet,
    /// A format that xrun does not read, in words.
    Foreign(&'static str),
    /// Nothing: the content decides.
    Unknown,
}

/// The known endings, without their dots and in lower case.
static ENDINGS: &[(&str, Named)] = &[
    ("bin", Named::Tokens),
    ("jsonl", Named::JsonLines),
    ("ndjson", Named::JsonLines),
    ("jsonlines", Named::JsonLines),
    ("json", Named::Json),
    ("txt", Named::Text),
    ("text", Named::Text),
    ("md", Named::Text),
    ("markdown", Named::Text),
    ("rst", Named::Text),
    ("csv", Named::Foreign("a table in CSV")),
    ("tsv", Named::Foreign("a table in TSV")),
    ("parquet", Named::Parquet),
    ("pq", Named::Parquet),
    ("arrow", Named::Foreign("an Arrow table")),
    ("feather", Named::Foreign("a Feather table")),
    ("orc", Named::Foreign("an ORC table")),
    ("avro", Named::Foreign("an Avro file")),
    ("xls", Named::Foreign("a spreadsheet")),
    ("xlsx", Named::Foreign("a spreadsheet")),
    ("ods", Named::Foreign("a spreadsheet")),
    ("zip", Named::Foreign("a zip archive")),
    ("tar", Named::Foreign("a tar archive")),
    ("tgz", Named::Foreign("a packed tar archive")),
    ("7z", Named::Foreign("a 7z archive")),
    ("rar", Named::Foreign("a rar archive")),
    ("bz2", Named::Foreign("packed by bzip2")),
    ("xz", Named::Foreign("packed by xz")),
    ("lz4", Named::Foreign("packed by lz4")),
    ("npy", Named::Foreign("a NumPy array")),
    ("npz", Named::Foreign("a NumPy archive")),
    ("pt", Named::Foreign("a PyTorch file")),
    ("pth", Named::Foreign("a PyTorch file")),
    ("pkl", Named::Foreign("a Python pickle")),
    ("pickle", Named::Foreign("a Python pickle")),
    ("safetensors", Named::Foreign("a file of tensors")),
    ("gguf", Named::Foreign("a GGUF model")),
    ("h5", Named::Foreign("an HDF5 file")),
    ("hdf5", Named::Foreign("an HDF5 file")),
    ("tfrecord", Named::Foreign("a TFRecord file")),
    ("db", Named::Foreign("a database")),
    ("sqlite", Named::Foreign("a database")),
    ("pdf", Named::Foreign("a PDF document")),
    ("doc", Named::Foreign("a Word document")),
    ("docx", Named::Foreign("a Word document")),
    ("odt", Named::Foreign("an OpenDocument text")),
    ("epub", Named::Foreign("an EPUB book")),
];

/// A packing of files, whose ending follows the format's own.
struct Packing {
    /// The endings, without their dots and in lower case; the first is the usual one.
    endings: &'static [&'static str],
    /// What a file is that is packed so.
    what: &'static str,
    open: fn(CorpusFile) -> Box<dyn Content>,
}

static GZIP: Packing =
    Packing { endings: &["gz"], what: "packed by gzip", open: |file| Packed::<Gzip>::open(file) };
static ZSTD: Packing =
    Packing { endings: &["zst", "zstd"], what: "packed by zstd", open: |file| Packed::<Zstd>::open(file) };
static PACKINGS: [&Packing; 2] = [&GZIP, &ZSTD];

/// What a file is that has no ending for its format.
const PARQUET: &str = "a Parquet table";

/// First bytes of files that are not text, and what the files are.
static SIGNATURES: &[(&[u8], &str)] = &[
    (b"%PDF-", "a PDF document"),
    (b"PAR1", PARQUET),
    (b"ARROW1\0\0", "an Arrow table"),
    (b"FEA1", "a Feather table"),
    (b"Obj\x01", "an Avro file"),
    (b"PK\x03\x04", "a zip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a rar archive"),
    (b"BZh", "packed by bzip2"),
    (b"\xfd7zXZ\0", "packed by xz"),
    (b"\x28\xb5\x2f\xfd", ZSTD.what),
    (b"\x04\x22\x4d\x18", "packed by lz4"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"GGUF", "a GGUF model"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"SQLite format 3\0", "a database"),
    (b"\x89PNG\r\n", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"\x7fELF", "a program"),
    (b"\x1f\x8b\x08", GZIP.what),
    (b"\xff\xfe", "text in UTF-16"),
    (b"\xfe\xff", "text in UTF-16"),
];

/// Bytes at the beginning of a file that decide its format where the ending does not.
const HEAD_BYTES: usize = 64 << 10;

/// Lines that must look like JSON before a file counts as JSON lines.
const PROBED_LINES: usize = 4;

/// Bytes of a token file that are looked at for text.
const TOKEN_HEAD: usize = 4 << 10;

/// Longest name of a field that a message shows, in characters.
const SHOWN: usize = 60;

/// Fewer bytes may be token ids and readable text at once.
const MIN_READABLE: usize = 64;

/// An opened file of documents with its format.
#[derive(Debug)]
pub(in crate::data) struct TextFile {
    pub content: Box<dyn Content>,
    pub source: &'static dyn Source,
}

/// Returns true if a path's ending is `ending`, in any case.
fn ends_with(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|own| own.eq_ignore_ascii_case(ending))
}

fn named(path: &Path) -> Named {
    let known = ENDINGS.iter().find(|(ending, _)| ends_with(path, ending));
    known.map_or(Named::Unknown, |(_, named)| *named)
}

/// Returns true if a file's name says that it holds token ids.
pub(in crate::data) fn holds_tokens(path: &Path) -> bool {
    named(path) == Named::Tokens
}

/// Returns true if files with an ending, packed or not, may be read as text. The ending begins with its dot.
pub(in crate::data) fn may_be_text(ending: &str) -> bool {
    let name = PathBuf::from(format!("a{ending}"));
    match named(&without_packing(&name)) {
        Named::Tokens | Named::Foreign(_) => false,
        Named::Parquet => !is_packed(&name),
        _ => true,
    }
}

/// Returns the packing that a file's name says.
fn packing(path: &Path) -> Option<&'static Packing> {
    PACKINGS.into_iter().find(|packing| packing.endings.iter().any(|ending| ends_with(path, ending)))
}

/// Returns true if a file's name says that it is packed, and xrun unpacks it.
pub(in crate::data) fn is_packed(path: &Path) -> bool {
    packing(path).is_some()
}

/// Returns a number for the format of files with this ending, if it is one whose documents have fields and
/// files with this ending may be read. The ending begins with its dot.
pub(in crate::data) fn format_of(ending: &str) -> Option<u8> {
    let name = PathBuf::from(format!("a{ending}"));
    match named(&without_packing(&name)) {
        Named::JsonLines => Some(JsonLines.tag()),
        Named::Parquet if !is_packed(&name) => Some(Parquet.tag()),
        _ => None,
    }
}

/// Returns the format that a file's ending says, in words; `None` if xrun reads no such files, or the ending
/// says nothing.
pub(in crate::data) fn format_in_words(path: &Path) -> Option<&'static str> {
    match named(&without_packing(path)) {
        Named::Text => Some("text"),
        Named::JsonLines | Named::Json => Some("JSON lines"),
        Named::Parquet if !is_packed(path) => Some("Parquet tables"),
        _ => None,
    }
}

/// Returns the name that a file would have without its packing.
fn without_packing(path: &Path) -> PathBuf {
    if is_packed(path) { path.with_extension("") } else { path.to_owned() }
}

/// Returns the content of a file, unpacked if its ending says that it is packed.
pub(in crate::data) fn unpacked(file: CorpusFile) -> Box<dyn Content> {
    match packing(file.path()) {
        Some(packing) => (packing.open)(file),
        None => Box::new(file),
    }
}

/// Opens a file of documents and finds its format.
///
/// # Errors
/// If the file cannot be read, or is not what its ending says, or is no text.
pub(super) fn open(file: CorpusFile, rules: &Rules) -> Result<TextFile> {
    let path = file.path().to_owned();
    let content = unpacked(file);
    let source = source(content.as_ref(), &path, rules)?;
    Ok(TextFile { content, source })
}

fn source(content: &dyn Content, path: &Path, rules: &Rules) -> Result<&'static dyn Source> {
    let (at, plain) = (path.display(), without_packing(path));
    let refuse = |says: String| Err(Error::usage(format!("{at}{says}")));
    let foreign = |what: &str| match PACKINGS.into_iter().find(|packing| packing.what == what) {
        Some(packing) => refuse(format!(
            " is {what}; rename it to {}.{}, and it is unpacked while it is read",
            path.file_name().unwrap_or_default().display(),
            packing.endings[0]
        )),
        None => refuse(format!(" is {what}; {}", advice(what))),
    };
    let named = match rules.format {
        TextFormat::Auto => named(&plain),
        TextFormat::Text => Named::Text,
        TextFormat::JsonLines => Named::JsonLines,
        TextFormat::Parquet => Named::Parquet,
        TextFormat::Chat | TextFormat::Preference => {
            return refuse(" is read as conversations".to_owned());
        }
    };
    if let Named::Foreign(what) = named {
        return foreign(what);
    }
    if named == Named::Tokens {
        return refuse(
            " holds packed token ids, and token files are read in place; unpack it first".to_owned(),
        );
    }
    if named == Named::Parquet && is_packed(path) {
        return refuse(
            " is a packed table, and the pages of a table are packed by themselves; unpack it first"
                .to_owned(),
        );
    }
    let says = match rules.format {
        TextFormat::Auto => "its ending says".to_owned(),
        _ => format!("{}.format says", rules.table),
    };
    let mut head = vec![0; HEAD_BYTES];
    let read = content.read_at(0, &mut head)?;
    head.truncate(read);
    let found = signature(&head);
    if named == Named::Parquet {
        return match found {
            Some(PARQUET) => Ok(&Parquet),
            _ => refuse(format!(" is no Parquet table, though {says} so: it does not begin with PAR1")),
        };
    }
    if let Some(what) = found {
        return foreign(what);
    }
    let shape = Shape::from_head(&head, read < HEAD_BYTES, &rules.field);
    let field = format!("\"{}\"", shortened(&printable(&rules.field), SHOWN));
    let renamed = plain.with_extension("jsonl");
    let renamed = renamed.file_name().unwrap_or_default().display();
    match (named, shape) {
        (Named::JsonLines, _) | (Named::Json, Shape::Lines | Shape::Nothing) => Ok(&JsonLines),
        (Named::Json, Shape::Array | Shape::Objects) | (Named::Text | Named::Unknown, Shape::Objects)
            if rules.format == TextFormat::Auto =>
        {
            refuse(format!(
                ":1: one JSON array, where xrun reads JSON lines, an object with a string {field} on each line; \
             `jq -c '.[]'` writes the items of an array so: save them as {renamed}"
            ))
        }
        (Named::Json, Shape::Value) => refuse(format!(
            ":1: one JSON value over several lines, where xrun reads JSON lines, an object with a string {field} on \
             each line; `jq -c .` writes it so: save that as {renamed}"
        )),
        (Named::Json, Shape::Text) => {
            refuse(":1: not JSON, though its ending says so; if it is text, rename it to .txt".to_owned())
        }
        (Named::Text, Shape::Lines) if rules.format == TextFormat::Auto => refuse(format!(
            ":1: JSON lines, though its ending says plain text; rename it to {renamed}, and the string {field} of each \
             line becomes a document"
        )),
        (Named::Unknown, Shape::Lines) => Ok(&JsonLines),
        _ => Ok(&PlainText),
    }
}

/// Returns the step that makes a corpus of a file that is none.
fn advice(what: &str) -> &'static str {
    if what == PARQUET {
        "rename it to .parquet"
    } else if what.starts_with("packed") || what.ends_with("archive") {
        "unpack it first"
    } else if what.ends_with("UTF-16") {
        "write it in UTF-8 first: `iconv -f UTF-16 -t UTF-8`"
    } else if what.ends_with("CSV") || what.ends_with("TSV") {
        "write the column with the text as JSON lines, {\"text\": …}; or rename it to .txt to train on the table as it \
         is written"
    } else {
        "write its text as a .txt file, or as JSON lines, {\"text\": …}"
    }
}

/// Names a file by its first bytes if they belong to no text.
fn signature(head: &[u8]) -> Option<&'static str> {
    if head.get(257..262) == Some(b"ustar") && head.contains(&0) {
        return Some("a tar archive");
    }
    let (bytes, what) = SIGNATURES.iter().find(|(bytes, _)| head.starts_with(bytes))?;
    // A text may begin with the letters of a signature.
    let readable = bytes.is_ascii() && *bytes != b"%PDF-" && is_text(head);
    (!readable).then_some(*what)
}

/// Returns true if bytes are UTF-8 without NUL. The last character may be cut off.
fn is_text(head: &[u8]) -> bool {
    let valid = match std::str::from_utf8(head) {
        Ok(_) => true,
        Err(e) => e.error_len().is_none(),
    };
    valid && !head.contains(&0)
}

/// Refuses a token file whose beginning is text or of another format: its bytes would be valid ids.
///
/// # Errors
/// If the file cannot be read, or holds something else.
pub(in crate::data) fn check_tokens(file: &CorpusFile) -> Result<()> {
    let mut head = vec![0; TOKEN_HEAD];
    let read = file.read_at(0, &mut head)?;
    head.truncate(read);
    let at = file.path().display();
    // The first two tokens of real ids may be any; a signature of four bytes or more is none by chance.
    let found = signature(&head).filter(|what| !what.ends_with("UTF-16") && *what != "a picture");
    if let Some(what) = found {
        return Err(Error::usage(format!("token file {at}: it is {what}; {}", advice(what))));
    }
    let is_control = |&byte: &u8| byte < b' ' && !b"\t\n\r".contains(&byte);
    if read >= MIN_READABLE && is_text(&head) && !head.iter().any(is_control) {
        return Err(Error::usage(format!(
            "token file {at}: it holds text, not token ids; rename it to .txt, or .jsonl if it holds JSON lines"
        )));
    }
    Ok(())
}

/// What the beginning of a file looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// White space.
    Nothing,
    /// A JSON object or a JSON array of strings on each line.
    Lines,
    /// One JSON array of objects, by its first two characters.
    Objects,
    /// Another JSON array.
    Array,
    /// One JSON value over several lines.
    Value,
    /// Anything else.
    Text,
}

impl Shape {
    /// Classifies the beginning of a file, whose text a JSON object would have in `field`. `is_whole` is true
    /// if the file ends there.
    fn from_head(head: &[u8], is_whole: bool, field: &str) -> Self {
        let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
        let text = String::from_utf8_lossy(head);
        let mut lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let Some(first) = lines.first().copied() else { return Self::Nothing };
        // The last line may be cut off; a first line that is longer than the head is judged by its start.
        if !is_whole && lines.len() > 1 {
            lines.pop();
        }
        lines.truncate(PROBED_LINES);
        let is_cut = !is_whole && lines.len() == 1;
        let closed = |line: &str, end: char| is_cut || line.ends_with(end);
        let is_object = |line: &str| line == "{}" || begins(line, '{', '"') && closed(line, '}');
        let is_array = |line: &str| begins(line, '[', '"') && closed(line, ']');
        let has_text = first.contains(&format!("\"{field}\"")) && is_object(first);
        match first.chars().next() {
            Some('{')
                if lines.iter().all(|line| is_object(line)) && (lines.len() > 1 || has_text || is_cut) =>
            {
                Self::Lines
            }
            Some('[') if lines.iter().all(|line| is_array(line)) && lines.len() > 1 => Self::Lines,
            Some('[') if begins(text.trim_start(), '[', '{') => Self::Objects,
            Some('[') => Self::Array,
            Some('{') => Self::Value,
            Some('"') if lines.iter().all(|line| closed(line, '"')) => Self::Value,
            _ => Self::Text,
        }
    }
}

/// Returns true if a line begins with two characters, with white space between them or not.
fn begins(line: &str, first: char, second: char) -> bool {
    line.strip_prefix(first).is_some_and(|rest| rest.trim_start().starts_with(second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_tells_json_lines_from_other_text() {
        for (text, shape) in [
            ("", Shape::Nothing),
            (" \n\n", Shape::Nothing),
            ("{\"text\": \"a\"}", Shape::Lines),
            ("{\"a\": 1}\n{\"a\": 2}\n", Shape::Lines),
            ("{\"a\": NaN}\r\n\r\n{ \"a\": 2}", Shape::Lines),
            ("[\"a\"]\n[\"b\"]", Shape::Lines),
            ("{\n  \"text\": \"a\"\n}", Shape::Value),
            ("{\"a\": 1}", Shape::Value),
            ("[{\"text\": \"a\"}]", Shape::Objects),
            ("[\n{\"text\": \"a\"}\n]", Shape::Objects),
            ("[1,\n2]", Shape::Array),
            ("[a link] and\n[another]", Shape::Array),
            ("{\\bf Bold} is TeX\n{\\it so} is this", Shape::Value),
            ("\"a\"\n\"b\"", Shape::Value),
            ("Once upon\n{\"text\": \"a\"}", Shape::Text),
        ] {
            assert_eq!(Shape::from_head(text.as_bytes(), true, "text"), shape, "{text}");
        }
        let long = format!("{{\"text\": \"{}", "a".repeat(100));
        assert_eq!(
            Shape::from_head(long.as_bytes(), false, "text"),
            Shape::Lines,
            "a first line longer than the head"
        );
    }

    /// A format that is named counts instead of the ending, and binary files stay refused.
    #[test]
    fn a_named_format_counts_instead_of_the_ending() {
        let dir = tempfile::tempdir().unwrap();
        let tag = |name: &str, bytes: &[u8], format| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let files = CorpusFile::open_all(vec![path]).unwrap();
            let rules = Rules { format, ..crate::data::Spec::new("", "byte").rules() };
            let opened = files.into_iter().map(|file| open(file, &rules)).next().unwrap();
            opened.map(|opened| opened.source.tag()).map_err(|e| e.message().to_string())
        };
        let (lines, text, table) =
            (b"{\"text\": \"a\"}\n{\"text\": \"b\"}\n", b"a,b\n1,2\n", b"PAR1\x15\0\x15");
        for (name, bytes, format, source) in [
            ("a.jsonl", &lines[..], TextFormat::Auto, JsonLines.tag()),
            ("b.jsonl", lines, TextFormat::Text, PlainText.tag()),
            ("c.txt", lines, TextFormat::JsonLines, JsonLines.tag()),
            ("d.log", text, TextFormat::JsonLines, JsonLines.tag()),
            ("e.csv", text, TextFormat::Text, PlainText.tag()),
            ("f.data", table, TextFormat::Parquet, Parquet.tag()),
        ] {
            assert_eq!(tag(name, bytes, format).unwrap(), source, "{name}");
        }
        for (name, bytes, format, said) in [
            ("a.data", &text[..], TextFormat::Parquet, "though data.format says so"),
            ("b.parquet", table, TextFormat::Text, "is a Parquet table"),
            ("c.csv", text, TextFormat::Auto, "is a table in CSV"),
        ] {
            let error = tag(name, bytes, format).unwrap_err();
            assert!(error.contains(said) && error.contains(name), "{error}");
        }
    }

    #[test]
    fn words_that_begin_like_a_signature_are_text() {
        for text in ["PAR1S is a word", "GIF8 is not", "BZh, said the bee", "Rar!"] {
            assert_eq!(signature(text.as_bytes()), None, "{text}");
        }
        for (bytes, what) in [
            (&b"PAR1\x15\0\x15"[..], "Parquet"),
            (b"PK\x03\x04\x14\0", "zip"),
            (b"%PDF-1.7\n", "PDF"),
            (b"\xff\xfeh\0i\0", "UTF-16"),
            (b"\x1f\x8b\x08\0\0\0", "gzip"),
        ] {
            assert!(signature(bytes).is_some_and(|found| found.contains(what)), "{what}");
        }
    }
}
