//! Converts the single `ledger.jsonl` of earlier versions.

use super::attempt::{Attempt, with_key};
use super::chain::Chain;
use super::writer;
use crate::error::{Error, IoContext, Result};
use crate::results::names::LEDGER;
use crate::results::{atomic, regular};
use std::path::Path;

/// Returns the name and the content of the new file for the lines of an old ledger; `None` if there is no old
/// ledger. The name depends only on the old content, so repeating an interrupted conversion gives the same
/// file.
pub(super) fn read(results: &Path) -> Result<Option<(String, Vec<u8>)>> {
    let path = results.join(LEDGER);
    if !regular::is_file(&path) {
        return Ok(None);
    }
    let old = regular::read(&path, u64::MAX)?;
    let name = format!("converted-{}", &blake3::hash(&old).to_hex()[..16]);
    let mut chain = Chain::default();
    let mut bytes = writer::unowned_head(&mut chain, &name)?;
    // Skip an incomplete last line, which a crash may have left.
    let whole = old.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    for (number, line) in old[..whole].split(|&byte| byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let parsed = serde_json::from_slice::<Attempt>(line).map_err(|e| e.to_string()).and_then(with_key);
        let attempt = parsed.map_err(|e| {
            let place = format!("{}:{}", path.display(), number + 1);
            Error::failed(format!("{place}: not a line of a ledger: {e}; fix or remove the line"))
        })?;
        bytes += &writer::seal(&mut chain, number as u64 + 1, &attempt)?;
    }
    Ok(Some((name, bytes.into_bytes())))
}

/// Moves the lines of an old ledger into the new ledger's folder.
pub(super) fn convert(results: &Path, folder: &Path) -> Result<()> {
    let Some((name, bytes)) = read(results)? else { return Ok(()) };
    std::fs::create_dir_all(folder).at("create", folder)?;
    let path = folder.join(name).with_extension("jsonl");
    if !path.exists() {
        atomic::write(&path, &bytes)?;
    }
    let old = results.join(LEDGER);
    match std::fs::remove_file(&old) {
        // Another process already converted it.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.at("remove", &old),
    }
}
