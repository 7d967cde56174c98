//! Row files, `metrics.csv` and `timing.csv`: written row by row, resumed after a crash, and read back.

mod columns;
mod unsaved;

use crate::error::{Error, IoContext, Result};
use crate::interrupts::{self, Repeated};
pub use crate::metrics::{MetricsRow, Phase, TimingRow};
use crate::regular;
pub(super) use columns::Columns;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A row type and the header of its file.
pub trait Row: Serialize + DeserializeOwned {
    /// The column names, in order.
    const COLUMNS: &'static [&'static str];

    /// Returns the step that the row belongs to. Steps never decrease within a file.
    fn step(&self) -> u64;

    /// Returns true for a column that only some runs have, after [`Row::COLUMNS`].
    fn is_further_column(_column: &str) -> bool {
        false
    }

    /// Returns the value in a further column; `None` if the cell is blank.
    fn further_value(&self, _column: &str) -> Option<f32> {
        None
    }

    /// Sets the value in a further column.
    fn set_further_value(&mut self, _column: &str, _value: f32) {}

    /// Returns true if the row is about a save. It is written after the checkpoint, which holds a hash of
    /// only the earlier rows.
    fn is_save(&self) -> bool {
        false
    }
}

impl Row for MetricsRow {
    const COLUMNS: &'static [&'static str] = MetricsRow::COLUMNS;

    fn step(&self) -> u64 {
        self.step
    }

    fn is_further_column(column: &str) -> bool {
        MetricsRow::is_further_column(column)
    }

    fn further_value(&self, column: &str) -> Option<f32> {
        self.further.get(column).copied()
    }

    fn set_further_value(&mut self, column: &str, value: f32) {
        self.further.insert(column.to_owned(), value);
    }
}

impl Row for TimingRow {
    const COLUMNS: &'static [&'static str] = TimingRow::COLUMNS;

    fn step(&self) -> u64 {
        self.step
    }

    fn is_save(&self) -> bool {
        matches!(self.phase, Phase::Save | Phase::Snapshot)
    }
}

/// The beginning of a row file, as a checkpoint records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRows {
    /// Number of bytes in the header and all rows when the checkpoint was saved.
    pub bytes: u64,
    /// BLAKE3 of these bytes, in hexadecimal.
    pub blake3: String,
}

impl SavedRows {
    /// Checks that a file begins with these bytes.
    ///
    /// # Errors
    /// If the file begins with other bytes or cannot be read.
    pub fn verify(&self, path: &Path, step: u64) -> Result<()> {
        let bytes = match regular::read_rows(path) {
            Err(_) if regular::is_missing(path) => Vec::new(),
            bytes => bytes?,
        };
        let saved = usize::try_from(self.bytes).ok().and_then(|length| bytes.get(..length));
        if saved.is_some_and(|saved| blake3::hash(saved).to_hex().as_str() == self.blake3) {
            return Ok(());
        }
        Err(Error::failed(format!(
            "{} was changed since the checkpoint of step {step}: its first {} bytes do not match their hash in the \
             checkpoint's manifest. Restore the file, or start a new run from the checkpoint with `xrun resume RUN --fork`",
            path.display(),
            self.bytes
        )))
    }
}

/// The rows that [`RowWriter::resume`] kept and removed.
#[derive(Clone, Debug, PartialEq)]
pub struct ResumedRows<R> {
    /// The last row kept, if any. Its step shows whether the rows reach the checkpoint, and the resumed run's
    /// clock starts at its wall time.
    pub last: Option<R>,
    /// Rows kept.
    pub rows_kept: usize,
    /// Number of complete rows removed.
    pub rows_cut: usize,
    /// The first and the last step among the removed rows.
    pub steps_cut: Option<(u64, u64)>,
    /// Number of bytes removed from the end of the file.
    pub bytes_cut: u64,
    /// The first damage among what was removed, with its line.
    pub damage: Option<String>,
}

/// Appends rows to a CSV file with one `write` per row, so that a killed process loses at most the row it was
/// writing.
#[derive(Debug)]
pub struct RowWriter<R> {
    file: File,
    path: PathBuf,
    /// The columns after those that every file of this row type has.
    further: Vec<String>,
    /// Number of bytes in the file: the header and complete rows.
    written: u64,
    /// Hash of the bytes in the file.
    hasher: blake3::Hasher,
    /// Rows that could not be written yet.
    waiting: Vec<u8>,
    durable: Arc<Durable>,
    /// The last step among rows that a resume removed and that no checkpoint has reached again.
    unsaved_until: Option<u64>,
    row: PhantomData<R>,
}

/// How much of a file is known to be on disk.
#[derive(Debug, Default)]
struct Durable {
    /// Bytes that a sync has made durable.
    bytes: AtomicU64,
    /// True after a sync that failed. The system may have dropped what was written since the last one, and
    /// the next sync succeeds although it is lost.
    failed: AtomicBool,
}

impl Durable {
    /// Makes the first `bytes` of a file durable.
    fn sync(&self, file: &File, path: &Path, bytes: u64) -> Result<()> {
        let synced = interrupts::sync_data(file).at("sync", path);
        match synced {
            Ok(()) => self.bytes.fetch_max(bytes, Ordering::Relaxed),
            Err(_) => u64::from(self.failed.swap(true, Ordering::Relaxed)),
        };
        synced
    }
}

impl<R: Row> RowWriter<R> {
    /// Creates a file with its header.
    ///
    /// # Errors
    /// If the file exists or cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        let mut file = File::options().write(true).create_new(true).open(path).at("create", path)?;
        let header = Columns::fixed(R::COLUMNS).header();
        file.write_all(&header).at("write", path)?;
        Ok(Self::at_end(file, path, &header, Vec::new()))
    }

    /// Creates a writer that appends to a file which holds `bytes`.
    fn at_end(file: File, path: &Path, bytes: &[u8], further: Vec<String>) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(bytes);
        let (path, written, waiting) = (path.to_owned(), bytes.len() as u64, Vec::new());
        let (durable, row) = (Arc::default(), PhantomData);
        Self { file, path, further, written, hasher, waiting, durable, unsaved_until: None, row }
    }

    /// Continues a file after a checkpoint. Removes rows past `step` and an incomplete last row; earlier
    /// bytes do not change. A missing file, or one with an incomplete header, is created again. What is
    /// removed is copied first, except an incomplete last row, and [`RowWriter::saved`] deletes the copy. It
    /// may be damaged, because it is not needed.
    ///
    /// `saved` is the checkpoint's record of the file, and `None` for checkpoints of earlier versions. With
    /// it, rows up to `step` that the checkpoint does not know are removed as well, except the row of its own
    /// save. `further` are the columns, in ascending order, after those that every file has.
    ///
    /// # Errors
    /// If the file does not begin with the bytes that the checkpoint knows, has other columns, or has a
    /// damaged row among those to keep; or if the copy cannot be written.
    pub fn resume(
        path: &Path,
        step: u64,
        saved: Option<&SavedRows>,
        further: &[String],
    ) -> Result<(Self, ResumedRows<R>)> {
        saved.map_or(Ok(()), |saved| saved.verify(path, step))?;
        let keep = |rows: &[Scanned<R>]| {
            let Some(saved) = saved else { return rows.partition_point(|row| row.row.step() <= step) };
            let known = rows.partition_point(|row| row.end as u64 <= saved.bytes);
            let next = rows.get(known).map(|row| &row.row);
            known + usize::from(next.is_some_and(|row| row.step() == step && row.is_save()))
        };
        let needed = |rows: &[Scanned<R>], header: usize| {
            let end = rows.last().map_or(header, |row| row.end);
            // Without a record, the rows must reach the checkpoint's step.
            saved.map_or_else(
                || rows.last().is_none_or(|row| row.row.step() < step),
                |saved| (end as u64) < saved.bytes,
            )
        };
        Self::cut(path, further, keep, needed)
    }

    /// Begins a file again: removes all rows as [`RowWriter::resume`] does, for a run without a checkpoint.
    ///
    /// # Errors
    /// If the file or the copy cannot be written.
    pub fn restart(path: &Path, further: &[String]) -> Result<(Self, ResumedRows<R>)> {
        Self::cut(path, further, |_| 0, |_, _| false)
    }

    /// Removes the rows after the first `keep`, which gets the complete and undamaged rows at the beginning
    /// of the file. `needed` gets them with the length of the header, and returns true if rows to keep are
    /// missing among them.
    fn cut(
        path: &Path,
        further: &[String],
        keep: impl Fn(&[Scanned<R>]) -> usize,
        needed: impl Fn(&[Scanned<R>], usize) -> bool,
    ) -> Result<(Self, ResumedRows<R>)> {
        let mut options = File::options();
        let mut file = regular::open_own(options.read(true).write(true).create(true).truncate(false), path)?;
        let bytes = regular::read_rows(path)?;
        let columns = Columns { fixed: R::COLUMNS, further: further.to_vec() };
        let header = columns.header();
        let mut kept = header.len();
        let mut cut = ResumedRows {
            last: None,
            rows_kept: 0,
            rows_cut: 0,
            steps_cut: None,
            bytes_cut: 0,
            damage: None,
        };
        let is_new = header.starts_with(&bytes) && bytes.len() < header.len();
        if is_new {
            file.set_len(0).at("truncate", path)?;
            file.write_all(&header).at("write", path)?;
        } else {
            let Scan { mut rows, damage } = scan::<R>(path, &bytes, &columns);
            if let Some(damage) = damage {
                if needed(&rows, header.len()) {
                    return Err(damage);
                }
                cut.damage = Some(damage.message().to_owned());
            }
            let dropped = rows.split_off(keep(&rows));
            // A damaged header is copied as well.
            let start = if bytes.starts_with(&header) { header.len() } else { 0 };
            let from = rows.last().map_or(start, |row| row.end);
            let until = match cut.damage {
                Some(_) => bytes.len(),
                None => dropped.last().map_or(from, |row| row.end),
            };
            if until > from {
                unsaved::keep(path, &[&header, &bytes[from..until]].concat())?;
            }
            cut.steps_cut = dropped.first().zip(dropped.last()).map(|(a, b)| (a.row.step(), b.row.step()));
            (cut.rows_kept, cut.rows_cut) = (rows.len(), dropped.len());
            if let Some(last) = rows.pop() {
                kept = last.end;
                cut.last = Some(last.row);
            }
            cut.bytes_cut = bytes.len().saturating_sub(kept) as u64;
            if bytes.starts_with(&header) {
                file.set_len(kept as u64).at("truncate", path)?;
            } else {
                // A damaged header, of which no row is kept.
                file.set_len(0).at("truncate", path)?;
                file.write_all(&header).at("write", path)?;
            }
        }
        file.seek(SeekFrom::Start(kept as u64)).at("seek in", path)?;
        let unsaved_until = unsaved::last_step(path)?;
        let kept = bytes.get(..kept).filter(|kept| kept.starts_with(&header)).unwrap_or(&header);
        Ok((Self { unsaved_until, ..Self::at_end(file, path, kept, columns.further) }, cut))
    }

    /// Appends a row and passes it to the operating system. If it cannot be written, as on a full disk, it
    /// stays in memory and is written with the next one.
    ///
    /// # Errors
    /// If this row or an earlier one cannot be written yet.
    pub fn append(&mut self, row: &R) -> Result<()> {
        let line = encode(row, &self.further)
            .map_err(|e| e.context(format!("cannot write {}", self.path.display())))?;
        self.waiting.extend(line);
        self.flush()
    }

    /// Passes the waiting rows to the operating system.
    fn flush(&mut self) -> Result<()> {
        if let Err(e) = Repeated(&self.file).write_all(&self.waiting) {
            // The next attempt starts where the complete rows end. If truncating fails too, that attempt
            // overwrites the rest.
            let _ = self.file.set_len(self.written);
            self.file.seek(SeekFrom::Start(self.written)).at("seek in", &self.path)?;
            return Err(e).at("write", &self.path);
        }
        self.written += self.waiting.len() as u64;
        self.hasher.update(&self.waiting);
        self.waiting.clear();
        Ok(())
    }

    /// Makes the rows durable. Call it before a checkpoint of their step is committed: a checkpoint must
    /// never be ahead of its metrics.
    ///
    /// # Errors
    /// If a row cannot be written or made durable.
    pub fn sync(&mut self) -> Result<()> {
        self.prepare_sync()?;
        self.durable.sync(&self.file, &self.path, self.written)
    }

    /// Passes all rows to the operating system. After a sync that failed, writes those again that it was to
    /// make durable.
    fn prepare_sync(&mut self) -> Result<()> {
        self.flush()?;
        if self.durable.failed.load(Ordering::Relaxed) {
            let bytes = regular::read_rows(&self.path)?;
            if bytes.len() as u64 != self.written || blake3::hash(&bytes) != self.hasher.finalize() {
                return Err(Error::failed(format!(
                    "the file system lost rows of {} after an error; no checkpoint can follow them",
                    self.path.display()
                )));
            }
            let from = self.durable.bytes.load(Ordering::Relaxed);
            let again = usize::try_from(from).ok().and_then(|from| bytes.get(from..)).unwrap_or(&bytes);
            self.file.seek(SeekFrom::Start(self.written - again.len() as u64)).at("seek in", &self.path)?;
            Repeated(&self.file).write_all(again).at("write", &self.path)?;
            self.durable.failed.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Passes all rows to the operating system without waiting for the disk. The returned function makes them
    /// durable, as [`RowWriter::sync`] does, and may run on any thread.
    ///
    /// # Errors
    /// If a row cannot be written or the file handle cannot be cloned. The returned function fails if the
    /// rows cannot be made durable.
    pub fn deferred_sync(&mut self) -> Result<impl FnOnce() -> Result<()> + Send + use<R>> {
        self.prepare_sync()?;
        let (file, path) = (self.file.try_clone().at("share", &self.path)?, self.path.clone());
        let (durable, written) = (Arc::clone(&self.durable), self.written);
        Ok(move || durable.sync(&file, &path, written))
    }

    /// Returns the content of the file as a checkpoint records it. Waiting rows are not in it.
    pub fn content(&self) -> SavedRows {
        SavedRows { bytes: self.written, blake3: self.hasher.finalize().to_hex().to_string() }
    }

    /// Deletes the copy of the rows that a resume removed, once a checkpoint at `step` has reached them.
    ///
    /// # Errors
    /// If the copy cannot be deleted.
    pub fn saved(&mut self, step: u64) -> Result<()> {
        if self.unsaved_until.is_some_and(|last| last <= step) {
            unsaved::remove(&self.path)?;
            self.unsaved_until = None;
        }
        Ok(())
    }
}

/// Reads all complete rows of a file, and skips an incomplete last row, which a killed run may leave.
/// Versions only append columns, so a file without the last columns is from an older version, and its rows
/// are blank there.
pub fn read<R: Row>(path: &Path) -> Result<Vec<R>> {
    parse(path, &super::stored::read(path)?)
}

/// Parses the content of the file at `path`, as [`read`] does.
pub fn parse<R: Row>(path: &Path, bytes: &[u8]) -> Result<Vec<R>> {
    let columns = header_columns::<R>(path, bytes)?;
    let Scan { rows, damage } = scan::<R>(path, bytes, &columns);
    damage.map_or(Ok(()), Err)?;
    Ok(rows.into_iter().map(|r| r.row).collect())
}

/// A parsed row, and the byte offset of the line after it.
struct Scanned<R> {
    row: R,
    end: usize,
}

/// The rows at the beginning of a file, up to the first damage.
struct Scan<R> {
    rows: Vec<Scanned<R>>,
    /// The error for the first line that is not a row, or that does not follow the row before it.
    damage: Option<Error>,
}

/// Parses the complete lines of a file up to the first damage. Checks the header, and that steps never
/// decrease.
fn scan<R: Row>(path: &Path, bytes: &[u8], columns: &Columns) -> Scan<R> {
    let header = columns.header();
    let mut rows: Vec<Scanned<R>> = Vec::new();
    if !bytes.starts_with(&header) {
        return Scan { rows, damage: Some(wrong_header(path, bytes, &header)) };
    }
    let mut start = header.len();
    while let Some(length) = bytes[start..].iter().position(|b| *b == b'\n') {
        let (line, end) = (&bytes[start..start + length], start + length + 1);
        let number = rows.len() + 2;
        let wrong = match decode::<R>(line, columns) {
            Ok(row) => match rows.last().filter(|last| last.row.step() > row.step()) {
                Some(last) => format!("step {} comes after step {}", row.step(), last.row.step()),
                None => {
                    rows.push(Scanned { row, end });
                    start = end;
                    continue;
                }
            },
            // A power cut can leave a last line that has the right length but wrong bytes.
            Err(_) if end == bytes.len() => break,
            Err(reason) => format!("not a row: {reason}"),
        };
        let damage = Some(Error::failed(format!("{}:{number}: {wrong}", path.display())));
        return Scan { rows, damage };
    }
    Scan { rows, damage: None }
}

/// Returns the error for a file that does not begin with `header`.
fn wrong_header(path: &Path, bytes: &[u8], header: &[u8]) -> Error {
    let first = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
    let shown: String = String::from_utf8_lossy(first).chars().take(120).collect();
    Error::failed(format!(
        "{}:1: the header is `{shown}`, not `{}`: the file was not written by this version of xrun",
        path.display(),
        String::from_utf8_lossy(header).trim_end()
    ))
}

/// Returns the columns of a file from its first line. A file without the last columns of its row type is from
/// an older version.
///
/// # Errors
/// If the line is not a header for this row type.
pub(super) fn header_columns<R: Row>(path: &Path, bytes: &[u8]) -> Result<Columns> {
    Columns::from_header(R::COLUMNS, R::is_further_column, bytes)
        .ok_or_else(|| wrong_header(path, bytes, &Columns::fixed(R::COLUMNS).header()))
}

/// Formats a row as a line. Floats have their shortest form that reads back to the same bits.
fn encode<R: Row>(row: &R, further: &[String]) -> Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    let further: Vec<Option<f32>> = further.iter().map(|column| row.further_value(column)).collect();
    writer.serialize((row, further)).map_err(|e| Error::failed(e.to_string()))?;
    writer.into_inner().map_err(|e| Error::failed(e.to_string()))
}

/// Parses a line without its newline.
///
/// # Errors
/// The reason why the line is not a row.
pub(super) fn decode<R: Row>(line: &[u8], columns: &Columns) -> Result<R, String> {
    let mut record = match plain_fields(line) {
        Some(record) => record,
        None => quoted_fields(line)?,
    };
    let (fixed, all) = (columns.fixed.len(), columns.fixed.len() + columns.further.len());
    if record.len() != all {
        return Err(format!("{} columns, not {all}", record.len()));
    }
    let further: Vec<Option<f32>> = columns
        .further
        .iter()
        .zip(record.iter().skip(fixed))
        .map(|(column, value)| match value {
            "" => Ok(None),
            value => value.parse().map(Some).map_err(|e| format!("{column} is `{value}`: {e}")),
        })
        .collect::<Result<_, String>>()?;
    record.truncate(fixed);
    let names = csv::StringRecord::from(columns.fixed.to_vec());
    let row: Result<R, csv::Error> = record.deserialize(Some(&names));
    let mut row = row.map_err(|e| match e.kind() {
        csv::ErrorKind::Deserialize { err, .. } => {
            match err.field().and_then(|i| Some((i, record.get(i as usize)?))) {
                Some((i, value)) => format!("{} is `{value}`: {}", columns.fixed[i as usize], err.kind()),
                None => err.to_string(),
            }
        }
        _ => e.to_string(),
    })?;
    for (column, value) in columns.further.iter().zip(further) {
        value.into_iter().for_each(|value| row.set_further_value(column, value));
    }
    Ok(row)
}

/// Splits a line at its commas. Returns `None` for what only the csv crate handles (a quote, a carriage
/// return, or the first byte of a byte order mark), and for a line that is empty or not UTF-8. Creating that
/// crate's reader takes longer than reading the row.
fn plain_fields(line: &[u8]) -> Option<csv::StringRecord> {
    if line.is_empty() || line.iter().any(|byte| matches!(byte, b'"' | b'\r' | b'\xef')) {
        return None;
    }
    Some(std::str::from_utf8(line).ok()?.split(',').collect())
}

/// Splits any line, with the csv crate.
fn quoted_fields(line: &[u8]) -> Result<csv::StringRecord, String> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(line);
    let mut record = csv::StringRecord::new();
    reader.read_record(&mut record).map_err(|e| e.to_string())?;
    Ok(record)
}

#[cfg(test)]
mod tests;
