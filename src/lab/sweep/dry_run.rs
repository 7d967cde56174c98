//! Shows what a sweep would run: its cells in order, each with its plan and its needs.

use super::axes::name_of;
use super::cell::{Cell, headline};
use super::{Request, Sweep};
use crate::error::{Error, Result};
use crate::forecast::{RunNeeds, TotalNeeds};
use crate::format::{Column, Table, binary, wall_time};
use crate::results::configurations::Settings;
use crate::results::ledger::{CellStatus, Ledger};
use crate::results::progress::eprint_line;
use serde::Serialize;

/// A cell and its plan.
#[derive(Serialize)]
struct PlannedRow<'a> {
    key: &'a str,
    settings: &'a Settings,
    /// `to run`, `done: …`, or the status that the cell gets without a run.
    status: String,
    planned_bytes: Option<u64>,
    /// Whether the cell fits in memory; `None` if it has no plan.
    fits: Option<bool>,
    /// Why the cell does not run.
    reason: Option<String>,
    /// Time and disk, if the cell is to run.
    needs: Option<RunNeeds>,
}

/// Returns the cells with their plans, as a table or as JSON lines. Runs and writes nothing.
///
/// # Errors
/// The same as for [`run`](super::run) before anything runs.
pub fn dry_run(request: &Request<'_>, as_json: bool) -> Result<String> {
    let sweep = Sweep::new(request)?;
    sweep.axes.notes.iter().for_each(|note| eprint_line(note));
    let ledger = Ledger::read(request.results)?;
    let is_done = |status| sweep.design.is_done(status) && !request.retry.contains(&status);
    let done = |cell: &Cell| Some(ledger.last(&cell.key)?.status).filter(|&status| is_done(status));
    let rows: Vec<PlannedRow<'_>> =
        sweep.cells.iter().map(|cell| PlannedRow::new(cell, done(cell))).collect();
    if as_json {
        let line = |row: &PlannedRow<'_>| serde_json::to_string(row).map(|line| line + "\n");
        let lines: serde_json::Result<String> = rows.iter().map(line).collect();
        return lines.map_err(|e| Error::failed(format!("cannot write JSON: {e}")));
    }
    let mut total = TotalNeeds::default();
    rows.iter().filter_map(|row| row.needs.as_ref()).for_each(|needs| total.add(needs, 1));
    let needed = sweep.design.in_words(&sweep.cells).or_else(|| total.in_words());
    Ok(table(&sweep.axes.keys, &rows) + &needed.map(|words| format!("{words}\n")).unwrap_or_default())
}

impl<'a> PlannedRow<'a> {
    fn new(cell: &'a Cell, done: Option<CellStatus>) -> Self {
        let fit = cell.work.as_ref().map_err(Error::clone).and_then(|work| work.fit());
        let refusal = fit.as_ref().map_or_else(Some, |fit| fit.refusal.as_ref());
        let reason = refusal.map(|e| headline(e).to_owned());
        let fit = fit.ok();
        let fits = fit.as_ref().map(|fit| fit.refusal.is_none());
        let status = match (done, &cell.work, fits) {
            (Some(done), ..) => format!("done: {done}"),
            (None, Err(_), _) => CellStatus::Skipped.to_string(),
            (None, Ok(_), Some(false)) => CellStatus::PredictedOom.to_string(),
            (None, Ok(_), _) => "to run".to_owned(),
        };
        let planned_bytes = fit.as_ref().map(|fit| fit.planned_bytes);
        let needs = fit.filter(|_| done.is_none() && fits == Some(true)).map(|fit| fit.needs);
        Self { key: &cell.key, settings: &cell.settings, status, planned_bytes, fits, reason, needs }
    }
}

fn table(keys: &[String], rows: &[PlannedRow<'_>]) -> String {
    use Column::{Left, Right};
    let mut table = Table::new(&[Right, Left, Left, Right, Right, Right, Left]);
    table.row(["", "CELL", "STATUS", "MEMORY", "TIME", "DISK", ""]);
    for (at, row) in rows.iter().enumerate() {
        let time = row.needs.as_ref().and_then(|needs| Some(wall_time(needs.time.as_ref()?.total_s)));
        let disk = row.needs.as_ref().map(|needs| binary(needs.disk.total_bytes as usize));
        // The rest of the reason, advice on keys to change, is in the ledger line.
        let reason = row.reason.as_deref().and_then(|reason| reason.split(';').next());
        table.row([
            (at + 1).to_string(),
            name_of(keys, row.settings),
            row.status.clone(),
            row.planned_bytes.map(|bytes| binary(bytes as usize)).unwrap_or_default(),
            time.unwrap_or_default(),
            disk.unwrap_or_default(),
            reason.unwrap_or_default().to_owned(),
        ]);
    }
    table.render(0)
}
