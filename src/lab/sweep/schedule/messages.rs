//! Reports on a sweep's cells before they begin and when the sweep ends.

use super::Schedule;
use crate::error::{Error, ErrorKind, Result};
use crate::forecast::TotalNeeds;
use crate::format::plural;
use crate::results::ledger::CellStatus;
use crate::sweep::work::CellFit;
use std::collections::BTreeMap;
use std::path::Path;

impl Schedule<'_> {
    /// Reports how many cells are to run, and where their rows are.
    pub(super) fn print_heading(&mut self, table: &Path) {
        let open = self.waiting.len() + self.running.len();
        let done = self.done();
        let from_before = match self.running.len() {
            0 => String::new(),
            running => format!(" ({running} of them still running from before)"),
        };
        self.display.note(&format!(
            "{}: {} cell{}, {done} done, {open} to run{from_before}; rows in {}",
            self.policy.name,
            self.cells.len(),
            plural(self.cells.len()),
            table.display()
        ));
    }

    /// Reports what the cells to run need, before they begin.
    pub(super) fn say_needs(&mut self) {
        if let Some(words) = self.design.in_words(self.cells) {
            return self.display.note(&words);
        }
        let mut total = TotalNeeds::default();
        for &at in &self.waiting {
            // A cell that cannot be planned or does not fit reports so when its turn comes.
            if let Ok(work) = &self.cells[at].work
                && let Ok(CellFit { refusal: None, needs, .. }) = work.fit()
            {
                total.add(&needs, 1);
            }
        }
        if let Some(words) = total.in_words() {
            self.display.note(&words);
        }
    }

    /// Reports how the sweep ended.
    pub(super) fn conclude(&mut self, table: &Path, stopped: bool) -> Result<()> {
        let mut counts: BTreeMap<CellStatus, usize> = BTreeMap::new();
        for cell in self.cells {
            if let Some(last) = self.ledger.last(&cell.key) {
                *counts.entry(last.status).or_default() += 1;
            }
        }
        let words: Vec<String> = counts.iter().map(|(status, n)| format!("{n} {status}")).collect();
        let (done, cells) = (self.done(), self.cells.len());
        self.display.finish(&format!(
            "{done} of {cells} cell{} done: {}; {}",
            plural(cells),
            words.join(", "),
            table.display()
        ));
        if stopped {
            return Err(Error::new(
                ErrorKind::Interrupted,
                format!("stopped by a signal with {done} of {cells} cells done; the same command continues"),
            ));
        }
        let bad = [
            CellStatus::Failed,
            CellStatus::Hang,
            CellStatus::Timeout,
            CellStatus::HostOom,
            CellStatus::Killed,
            CellStatus::Preempted,
            CellStatus::TimeLimit,
            CellStatus::NodeFailed,
            CellStatus::Unsaved,
        ];
        let bad: Vec<_> = bad.iter().filter(|status| counts.contains_key(status)).collect();
        if bad.is_empty() {
            return Ok(());
        }
        let words: Vec<String> = bad.iter().map(|status| status.to_string()).collect();
        let command = match bad.iter().any(|status| status.ends_a_whole_run()) {
            true => format!("`--retry {}`", words.join(",")),
            false => "the same command".to_owned(),
        };
        Err(Error::failed(format!("some cells did not end well; {command} runs them again")))
    }
}
