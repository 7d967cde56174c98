//! The end of a run's log.

use crate::error::{IoContext, Result};
use crate::format::printable;
use crate::regular;
use crate::results::names::LOG;
use crate::view::table::TableRun;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Number of lines by default, and the most that may be requested.
pub const USUAL_LINES: usize = 200;
pub const MAX_LINES: usize = 2000;

/// Bytes at the end of the file that are read.
const TAIL: u64 = 1 << 20;

/// Returns the document `log` of a run: its last lines, at most `count`.
///
/// # Errors
/// If the log exists and cannot be read.
pub fn document(run: &TableRun, count: usize) -> Result<Value> {
    let path = run.path.join(LOG);
    let (bytes, is_whole) = match path.symlink_metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => (Vec::new(), true),
        _ => tail(regular::open(&path)?, &path)?,
    };
    let text = String::from_utf8_lossy(&bytes);
    // If the file is not read whole, the first line may be cut off.
    let lines: Vec<String> =
        text.lines().skip(usize::from(!is_whole)).map(|line| printable(line).into_owned()).collect();
    let from = lines.len().saturating_sub(count.min(MAX_LINES));
    let more = !is_whole || from > 0;
    Ok(json!({"id": run.id, "version": run.version, "lines": lines[from..], "more": more}))
}

/// Returns the last bytes of a file, and whether they are the whole file.
fn tail(mut file: File, path: &Path) -> Result<(Vec<u8>, bool)> {
    let length = file.metadata().at("read", path)?.len();
    let from = length.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from)).at("seek in", path)?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).at("read", path)?;
    Ok((bytes, from == 0))
}
