//! Keeps a sweep: copies the ledger's lines of its cells to where reports read them.

use super::table::TABLE;
use crate::error::{Error, IoContext, Result};
use crate::results::keep::{Kept, store};
use crate::results::ledger::{LEDGER, Ledger, SWEEPS};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Returns the folder of the sweep called `name`: its path, its name, or the name of a recipe for that
/// recipe's sweep whose table was written last; the latter two may follow `sweeps/`. `None` if there is no
/// such sweep.
///
/// # Errors
/// When the results folder cannot be read.
pub fn find(results: &Path, name: &str) -> Result<Option<PathBuf>> {
    let table = |folder: &Path| folder.join(TABLE).with_extension("csv");
    if table(Path::new(name)).is_file() {
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
        let file = table(&folder);
        if is_meant && file.is_file() {
            found.push((file.metadata().and_then(|file| file.modified()).at("read", &file)?, folder));
        }
    }
    Ok(found.into_iter().max().map(|(_, folder)| folder))
}

/// Copies the ledger's lines of every cell of the sweep in `folder` to `to/sweeps/NAME/ledger.jsonl`. Keeping
/// the same lines again changes nothing.
///
/// # Errors
/// A cell that is not done; rows that were kept with other content, or a kept file that was changed since.
pub fn keep(results: &Path, folder: &Path, to: &Path) -> Result<Kept> {
    let folder = std::path::absolute(folder).at("find", folder)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let cells = cells(&folder.join(TABLE).with_extension("csv"))?;
    let ledger = Ledger::read(results)?;
    let is_of = |key: &str, cell: &String| key.starts_with(cell.as_str());
    let done = |cell: &&String| {
        ledger.lines().iter().rfind(|line| is_of(&line.key, cell)).is_some_and(|line| line.status.is_final())
    };
    let count = cells.iter().filter(done).count();
    if count < cells.len() {
        return Err(Error::failed(format!(
            "{count} of the {} cells of {} are done; run the sweep to its end, then keep it",
            cells.len(),
            folder.display()
        )));
    }
    let mut lines = Vec::new();
    for line in ledger.lines().iter().filter(|line| cells.iter().any(|cell| is_of(&line.key, cell))) {
        serde_json::to_writer(&mut lines, line)
            .map_err(|e| Error::failed(format!("cannot write a line of {LEDGER}: {e}")))?;
        lines.push(b'\n');
    }
    let recipe = ledger.lines().iter().find(|line| cells.iter().any(|cell| is_of(&line.key, cell)));
    let recipe = recipe.map(|line| line.recipe.clone()).unwrap_or_default();
    store(vec![(lines, LEDGER.to_owned())], to, &to.join(SWEEPS), recipe, name)
}

/// Returns the prefixes of the keys of the cells in a table.
fn cells(table: &Path) -> Result<Vec<String>> {
    let wrong = |e: csv::Error| Error::failed(format!("cannot read {}: {e}", table.display()));
    let mut reader = csv::Reader::from_path(table).map_err(wrong)?;
    let at = reader.headers().map_err(wrong)?.iter().position(|name| name == "cell");
    let at = at.ok_or_else(|| Error::failed(format!("{} has no column `cell`", table.display())))?;
    let mut cells = Vec::new();
    for row in reader.records() {
        cells.push(row.map_err(wrong)?.get(at).unwrap_or_default().to_owned());
    }
    // An empty prefix would match every line of the ledger.
    if cells.is_empty() || cells.iter().any(String::is_empty) {
        return Err(Error::failed(format!("{} does not name its cells", table.display())));
    }
    Ok(cells)
}
