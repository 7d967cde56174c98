//! Keeps a sweep: copies the ledger lines of its cells to where reports read them.

use super::table::{CELLS, SweepCell, TABLE};
use crate::error::{Error, IoContext, Result};
use crate::regular;
use crate::results::keep::{Kept, store};
use crate::results::ledger::{Attempt, LEDGER, Ledger, SWEEPS};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Finds the folder of the sweep `name`: its path, its name, or the name of a recipe, which stands for the
/// recipe's sweep with the newest table. The latter two may follow `sweeps/`. `None` if there is no such
/// sweep.
///
/// # Errors
/// If the results folder cannot be read.
pub fn find(results: &Path, name: &str) -> Result<Option<PathBuf>> {
    if Path::new(name).join(TABLE).is_file() {
        return Ok(Some(PathBuf::from(name)));
    }
    let root = results.join(SWEEPS);
    if !root.is_dir() {
        return Ok(None);
    }
    let name = name.strip_prefix(SWEEPS).and_then(|name| name.strip_prefix('/')).unwrap_or(name);
    let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(&root).at("read", &root)? {
        let folder = entry.at("read", &root)?.path();
        let called = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_meant = called == name || called.rsplit_once('-').is_some_and(|(recipe, _)| recipe == name);
        let file = folder.join(TABLE);
        if is_meant && file.is_file() {
            found.push((file.metadata().and_then(|file| file.modified()).at("read", &file)?, folder));
        }
    }
    Ok(found.into_iter().max().map(|(_, folder)| folder))
}

/// Copies the ledger lines of every cell of the sweep in `folder` to `to/sweeps/NAME/ledger.jsonl`. Keeping
/// the same lines again changes nothing.
///
/// # Errors
/// If a cell is not done, the lines were kept before with other content, or a kept file has changed since.
pub fn keep(results: &Path, folder: &Path, to: &Path) -> Result<Kept> {
    let folder = std::path::absolute(folder).at("find", folder)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let cells = cells(&folder)?;
    let ledger = Ledger::read(results)?;
    let done = |cell: &&SweepCell| ledger.last(&cell.key).is_some_and(|line| line.status.is_final());
    let count = cells.iter().filter(done).count();
    if count < cells.len() {
        return Err(Error::failed(format!(
            "{count} of the {} cells of {} are done; run the sweep to its end, then keep it",
            cells.len(),
            folder.display()
        )));
    }
    let mut lines = Vec::new();
    let mut recipe = String::new();
    for cell in &cells {
        let row = ledger.row(&cell.key);
        let is_own =
            |line: &&Attempt| line.key == cell.key && (line.comparison.is_none() || Some(*line) == row);
        for line in ledger.lines().iter().filter(is_own) {
            // Another sweep may have run the cell with other settings that give the same key.
            let line = Attempt { settings: cell.settings.clone(), ..line.clone() };
            serde_json::to_writer(&mut lines, &line)
                .map_err(|e| Error::failed(format!("cannot write a line of {LEDGER}: {e}")))?;
            lines.push(b'\n');
            recipe = line.recipe;
        }
    }
    store(vec![(lines, LEDGER.to_owned())], to, &to.join(SWEEPS), recipe, name)
}

/// Returns the cells of the sweep in a folder.
///
/// # Errors
/// If their list cannot be read.
pub fn cells(folder: &Path) -> Result<Vec<SweepCell>> {
    let list = folder.join(CELLS);
    let bytes = regular::read(&list, regular::MAX_TEXT)?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Error::failed(format!("{}:{}: not a list of cells: {e}", list.display(), e.line())))
}
