//! Decides where a cell starts: at step 0, where it was stopped, or where it leaves its trunk.

use super::Schedule;
use crate::checkpoint::folder_name;
use crate::results::folder::CHECKPOINT;
use crate::results::ledger::Attempt;
use crate::sweep::trunk::StartPoint;

impl Schedule<'_> {
    /// Returns where a cell starts, according to the ledger, the running attempts and their checkpoints.
    pub(super) fn beginning(&self, cell: usize) -> StartPoint {
        if let Some(run) = self.stopped_run(&self.cells[cell].key) {
            return StartPoint::Stopped(run);
        }
        let Some(trunks) = self.design.trunks() else { return StartPoint::Start };
        let Some(step) = trunks.step(cell) else { return StartPoint::Start };
        if let Some(run) = trunks.longer(cell).find_map(|longer| self.saved_run(longer, step)) {
            return StartPoint::Trunk { run, step };
        }
        let is_pending = |longer: usize| {
            self.waiting.contains(&longer)
                || self.elsewhere.contains(&longer)
                || self.is_running(&self.cells[longer])
        };
        if trunks.longer(cell).any(is_pending) { StartPoint::Later } else { StartPoint::Start }
    }

    /// Returns a run of a cell that has saved its state after a step.
    fn saved_run(&self, cell: usize, step: u64) -> Option<String> {
        let key = &self.cells[cell].key;
        let running = self.running.iter().filter(|(attempt, _)| attempt.key == *key);
        let running = running.filter_map(|(_, child)| child.run.clone());
        let ended = self.cell_lines(key).rev().filter_map(|line| line.run.clone());
        let mut runs = running.chain(ended);
        let place = |run: &String| self.policy.results.join(run).join(CHECKPOINT).join(folder_name(step));
        runs.find(|run| place(run).is_dir())
    }

    /// Returns the last line of every cell on a cell's trunk, or an empty list if any has no line yet. `None`
    /// if the cell has no trunk.
    pub(super) fn trunk_lines(&self, key: &str) -> Option<Vec<Attempt>> {
        let trunks = self.design.trunks()?;
        let cell = self.cells.iter().position(|cell| cell.key == key)?;
        trunks.step(cell)?;
        let lines = trunks.on_same_trunk(cell).map(|(at, _)| self.ledger.last(&self.cells[at].key).cloned());
        Some(lines.collect::<Option<Vec<Attempt>>>().unwrap_or_default())
    }
}
