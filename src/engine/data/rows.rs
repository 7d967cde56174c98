//! Files of rows with fields: JSON lines, a JSON array of objects, or a Parquet table, packed or not. Unlike
//! the documents of a corpus, rows are read whole, with their nested fields, so their number and size are
//! limited.

use super::file::CorpusFile;
use super::row::{Row, RowBudget};
use super::source::{self, Content};
use super::text::{BLOCK_BYTES, TextReader};
use crate::error::{Error, Result};
use crate::format::{printable, shortened};
use crate::liveness::report_progress;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Characters of a value that a message shows.
const SHOWN: usize = 60;

/// Memory that a byte of JSON takes as values, on average.
const JSON_FACTOR: u64 = 4;

/// The rows of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct RowFile {
    /// Path of the file.
    pub path: PathBuf,
    /// BLAKE3 of the file's bytes, in hexadecimal.
    pub hash: String,
    /// The rows, in order.
    pub rows: Vec<Row>,
}

impl RowFile {
    /// Reads a file. What it holds is told by its first bytes, and whether it is packed by its ending.
    ///
    /// # Errors
    /// If the file cannot be read or changes meanwhile, does not consist of rows, or has more of them than
    /// the budget allows. The message has file and line.
    pub fn read(path: &Path, budget: &mut RowBudget) -> Result<Self> {
        let file = open(path)?;
        let hash = hash(&file)?;
        let mut rows = Vec::new();
        read(file, budget, &mut |_, more| {
            rows.extend(more);
            Ok(())
        })?;
        Ok(Self { path: path.to_owned(), hash, rows })
    }
}

/// Hands the rows of a file to `sink` in groups, so that a file of lines may be longer than the memory.
///
/// # Errors
/// Those of [`RowFile::read`], but for the number of lines, and those of `sink`.
pub(super) fn read_in_groups(path: &Path, sink: &mut dyn FnMut(Vec<Row>) -> Result<()>) -> Result<()> {
    let mut budget = RowBudget::new();
    read(open(path)?, &mut budget, &mut |budget, rows| {
        *budget = RowBudget::new();
        sink(rows)
    })
}

fn open(path: &Path) -> Result<CorpusFile> {
    let mut opened = CorpusFile::open_all(vec![path.to_owned()])?;
    opened.pop().ok_or_else(|| Error::failed(format!("cannot open {}", path.display())))
}

/// Receives rows of a file, and what may still be read.
type Sink<'s> = dyn FnMut(&mut RowBudget, Vec<Row>) -> Result<()> + 's;

fn read(file: CorpusFile, budget: &mut RowBudget, sink: &mut Sink<'_>) -> Result<()> {
    let content = source::unpacked(file);
    let mut head = [0; 512];
    let read = content.read_at(0, &mut head)?;
    let head = head[..read].strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head[..read]);
    let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
    match first {
        _ if head.starts_with(b"PAR1") => {
            let rows = source::table_rows(content.file(), budget)?;
            sink(budget, rows)?;
        }
        Some(b'[') => {
            let rows = array(content.as_ref(), budget)?;
            sink(budget, rows)?;
        }
        Some(b'{') | None => lines(content.as_ref(), budget, sink)?,
        Some(_) => {
            return Err(Error::usage(format!(
                "{}: neither JSON lines nor a Parquet table; xrun reads such files in the layouts of the HuggingFace hub: \
                 convert it, such as with `datasets`' to_json",
                content.file().path().display()
            )));
        }
    }
    content.file().check()
}

/// Returns the BLAKE3 hash of a file's bytes.
fn hash(file: &CorpusFile) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; (file.bytes() as usize).min(BLOCK_BYTES)];
    let mut at = 0;
    while at < file.bytes() {
        let read = file.read_at(at, &mut block)?;
        hasher.update(&block[..read]);
        at += read as u64;
        report_progress();
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn lines(content: &dyn Content, budget: &mut RowBudget, sink: &mut Sink<'_>) -> Result<()> {
    let path = content.file().path();
    let mut reader = TextReader::whole(content)?;
    let (mut line, mut text) = (0, String::new());
    loop {
        // A line longer than the block: read as much again.
        let (block, before) = (BLOCK_BYTES.max(text.len()), text.len());
        let more = reader.append(&mut text, block)?;
        budget.take(path, 0, JSON_FACTOR * (text.len() - before) as u64)?;
        let whole = if more { text.rfind('\n').map_or(0, |end| end + 1) } else { text.len() };
        let mut rows = Vec::new();
        for part in text[..whole].split_inclusive('\n') {
            line += 1;
            if !part.trim().is_empty() {
                budget.take(path, 1, 0)?;
                let parsed = serde_json::from_str(part.trim());
                let value: Value = parsed.map_err(|e| not_json(path, line, &e))?;
                rows.push(row(path, line, value)?);
            }
        }
        text.drain(..whole);
        sink(budget, rows)?;
        if !more {
            return Ok(());
        }
    }
}

fn array(content: &dyn Content, budget: &mut RowBudget) -> Result<Vec<Row>> {
    let path = content.file().path();
    let mut reader = TextReader::whole(content)?;
    let mut text = String::new();
    loop {
        let before = text.len();
        let more = reader.append(&mut text, BLOCK_BYTES)?;
        budget.take(path, 0, JSON_FACTOR * (text.len() - before) as u64)?;
        if !more {
            break;
        }
    }
    let values: Vec<Value> = serde_json::from_str(&text).map_err(|e| not_json(path, e.line(), &e))?;
    budget.take(path, values.len(), 0)?;
    values.into_iter().enumerate().map(|(i, value)| row(path, i + 1, value)).collect()
}

fn row(path: &Path, line: usize, value: Value) -> Result<Row> {
    match value {
        Value::Object(fields) => Ok(Row { line, fields }),
        other => Err(Error::usage(format!(
            "{}:{line}: a row is an object with fields, and this one is {}",
            path.display(),
            shortened(&printable(&other.to_string()), SHOWN)
        ))),
    }
}

fn not_json(path: &Path, line: usize, e: &serde_json::Error) -> Error {
    let reason = e.to_string();
    let reason = reason.split(" at line ").next().unwrap_or_default();
    let reason = shortened(&printable(reason), SHOWN);
    Error::usage(format!(
        "{}:{line}: not JSON: {reason} in column {}; each line is an object with the fields of an item",
        path.display(),
        e.column()
    ))
}
