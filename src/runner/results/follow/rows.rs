//! Reads the rows that were appended to a row file since the last poll.

use super::lines::{AppendedLines, NewLines};
use crate::error::{Error, Result};
use crate::results::rows::{Columns, Row, decode, header_columns, read};
use crate::results::stored::MANIFEST;
use std::marker::PhantomData;
use std::path::Path;

/// Reads the rows of `metrics.csv` or `timing.csv` as they are appended.
#[derive(Debug)]
pub struct RowFollower<R> {
    lines: AppendedLines,
    source: ReadMode,
    /// The columns in the header; `None` until it was read.
    columns: Option<Columns>,
    /// Number of the last parsed line, and the step of its row.
    last: (usize, u64),
    /// A complete last line that is not a row. A power cut can leave one, which a resume removes.
    invalid_last_line: Vec<u8>,
    /// True if rows that were already returned will be read again by the next poll.
    must_void_rows: bool,
    row: PhantomData<R>,
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadMode {
    /// The run's file grows.
    Growing,
    /// The run is kept: its file may be compressed and never changes, so it is read once.
    Kept,
    /// The run is kept, and its file was read.
    Ended,
}

/// Rows that were appended to a file since the last poll.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRows<R> {
    /// The rows, in the order of the file.
    pub rows: Vec<R>,
    /// True if the file was cut back, as a resume does. All earlier rows are then void, and these start at
    /// the file's beginning.
    pub is_restarted: bool,
    /// True if unread rows are left for the next poll.
    pub has_more: bool,
}

impl<R> NewRows<R> {
    /// Returns true if there is anything new.
    pub fn is_any(&self) -> bool {
        self.is_restarted || !self.rows.is_empty()
    }

    /// Appends these rows to the known ones. If the file was cut back, it first drops the known ones.
    pub fn add_to(self, known: &mut Vec<R>) {
        if self.is_restarted {
            known.clear();
        }
        known.extend(self.rows);
    }
}

impl<R: Row> RowFollower<R> {
    /// Creates a follower for a file that need not exist yet. If the run is kept, the first poll reads the
    /// whole file.
    pub fn new(path: &Path) -> Self {
        let is_kept = path.parent().is_some_and(|run| run.join(MANIFEST).is_file());
        Self {
            lines: AppendedLines::new(path),
            source: if is_kept { ReadMode::Kept } else { ReadMode::Growing },
            columns: None,
            last: (1, 0),
            invalid_last_line: Vec::new(),
            must_void_rows: false,
            row: PhantomData,
        }
    }

    /// Returns the new rows, from at most [`MAX_READ`](super::MAX_READ) bytes.
    ///
    /// # Errors
    /// If the file is a link, cannot be read, has another header, or has a line before its last that is not a
    /// row. The next poll then reads the whole file again, because a file that is cut back and written to
    /// while it is read looks damaged once.
    pub fn poll(&mut self) -> Result<NewRows<R>> {
        if self.source != ReadMode::Growing {
            let rows = if self.source == ReadMode::Kept { read(self.lines.path())? } else { Vec::new() };
            self.source = ReadMode::Ended;
            let is_restarted = std::mem::take(&mut self.must_void_rows);
            return Ok(NewRows { rows, is_restarted, has_more: false });
        }
        match self.lines.poll().and_then(|new| self.parse(&new)) {
            Ok(mut found) => {
                found.is_restarted |= std::mem::take(&mut self.must_void_rows);
                Ok(found)
            }
            Err(error) => {
                self.restart();
                Err(error)
            }
        }
    }

    /// Makes the next poll read the whole file and report that all earlier rows are void.
    pub(super) fn restart(&mut self) {
        match self.source {
            ReadMode::Growing => self.must_void_rows |= self.lines.restart().is_restarted,
            ReadMode::Kept => {}
            ReadMode::Ended => (self.source, self.must_void_rows) = (ReadMode::Kept, true),
        }
        self.forget();
    }

    fn forget(&mut self) {
        (self.columns, self.last) = (None, (1, 0));
        self.invalid_last_line.clear();
    }

    fn parse(&mut self, new: &NewLines) -> Result<NewRows<R>> {
        if new.is_restarted {
            self.forget();
        }
        let mut found = NewRows { rows: Vec::new(), is_restarted: new.is_restarted, has_more: new.has_more };
        if new.bytes.is_empty() {
            return Ok(found);
        }
        let bytes = [std::mem::take(&mut self.invalid_last_line).as_slice(), &new.bytes].concat();
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').peekable();
        while let Some(line) = lines.next() {
            let Some(known) = &self.columns else {
                self.columns = Some(header_columns::<R>(self.lines.path(), line)?);
                continue;
            };
            let (number, step) = (self.last.0 + 1, self.last.1);
            match decode::<R>(&line[..line.len() - 1], known) {
                Ok(row) if row.step() < step => {
                    return Err(self.wrong(number, &format!("step {} comes after step {step}", row.step())));
                }
                Ok(row) => {
                    self.last = (number, row.step());
                    found.rows.push(row);
                }
                Err(_) if lines.peek().is_none() && !new.has_more => self.invalid_last_line = line.to_vec(),
                Err(reason) => return Err(self.wrong(number, &format!("not a row: {reason}"))),
            }
        }
        Ok(found)
    }

    fn wrong(&self, line: usize, what: &str) -> Error {
        Error::failed(format!("{}:{line}: {what}", self.lines.path().display()))
    }
}
