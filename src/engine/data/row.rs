//! A row of a file, and what may be read of them.

use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// What may still be read of rows: counts down over several files.
#[derive(Clone, Copy, Debug)]
pub struct RowBudget {
    /// Rows.
    pub rows: usize,
    /// Estimated bytes of memory.
    pub bytes: u64,
}

impl RowBudget {
    /// Limits that the tasks in use stay far below: the largest has 40,000 rows and 60 MB.
    pub fn new() -> Self {
        Self { rows: 1 << 20, bytes: 1 << 30 }
    }

    /// Takes rows and bytes from what is left.
    ///
    /// # Errors
    /// If less is left.
    pub(in crate::data) fn take(&mut self, path: &Path, rows: usize, bytes: u64) -> Result<()> {
        let left = self.rows.checked_sub(rows).zip(self.bytes.checked_sub(bytes));
        let Some((rows, bytes)) = left else {
            let Self { rows, bytes } = Self::new();
            return Err(Error::usage(format!(
                "{}: a split may have {rows} rows and take {} MiB of memory, and this one takes more; divide the file",
                path.display(),
                bytes >> 20
            )));
        };
        *self = Self { rows, bytes };
        Ok(())
    }
}

impl Default for RowBudget {
    fn default() -> Self {
        Self::new()
    }
}

/// A row of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Line of the row in a file of lines; else its number, from 1.
    pub line: usize,
    /// The fields.
    pub fields: Map<String, Value>,
}
