//! Shares cells and GPUs with other processes, and takes over attempts whose process is gone.

use super::{Claim, Schedule};
use crate::device::cuda::Gpu;
use crate::error::Result;
use crate::executor::batch_system::TaskEnd;
use crate::results::ledger::{Attempt, CellStatus, Ledger, machine_claim};
use crate::sweep::attempt::{AttemptResult, ENDED_WITH_SWEEP, RunningAttempt, output_name};
use crate::sweep::cell::Cell;
use jiff::Timestamp;
use std::collections::HashSet;
use std::time::{Duration, Instant};

impl Schedule<'_> {
    /// Reads what other processes wrote, and takes over attempts that dead processes left behind.
    pub(super) fn refresh(&mut self) -> Result<()> {
        self.refreshed = Some(Instant::now());
        self.ledger.refresh()?;
        let claimed = self.ledger.claimed_by_others()?;
        let is_used = |gpu: &usize| claimed.contains(&gpu_claim(*gpu));
        self.gpus_elsewhere = (0..self.executor.capacity().gpus).filter(is_used).collect();
        // Those cells may now be free, or done.
        self.waiting.extend(self.elsewhere.drain(..));
        self.take_over_dead()?;
        self.poll_running()
    }

    /// Shows and writes what other processes did with the cells of this sweep.
    pub(super) fn show_news(&mut self) -> Result<()> {
        let news = self.ledger.news();
        if news.is_empty() {
            return Ok(());
        }
        let keys: HashSet<&str> = self.cells.iter().map(|cell| cell.key.as_str()).collect();
        for line in news.iter().filter(|line| keys.contains(line.key.as_str())) {
            self.display.line(line, self.done(), None);
        }
        self.output.write(self.cells, &self.ledger)
    }

    /// Takes over every unfinished attempt whose process is gone: attaches to its run, or records that it
    /// died. Returns the number of runs found.
    fn take_over_dead(&mut self) -> Result<usize> {
        let mut found = 0;
        for open in self.ledger.open_attempts() {
            if self.running.iter().any(|(attempt, _)| attempt.key == open.key)
                || !self.ledger.claim(&open.key)?
            {
                continue;
            }
            if self.ledger.last(&open.key) != Some(&open) {
                self.ledger.release(&open.key);
            } else if self.attach(&open)? {
                found += 1;
            }
        }
        Ok(found)
    }

    /// Attaches to the run of an attempt. If the run is gone, records that and returns false.
    fn attach(&mut self, open: &Attempt) -> Result<bool> {
        let began: Option<Timestamp> = open.at.parse().ok();
        let ago = began.and_then(|at| Duration::try_from(at.duration_until(crate::format::now())).ok());
        let name = output_name(&open.key, open.attempt);
        // The lock on the output is only meaningful on the machine that made it.
        let owner_ended = self.end_of_owner(&open.key);
        let run = if self.ledger.was_written_here(&open.key) {
            RunningAttempt::reattach(self.executor, &name, ago.unwrap_or_default(), &owner_ended)?
        } else {
            None
        };
        let Some(run) = run else {
            let (status, reason) = owner_ended;
            let result = AttemptResult::without_run(status, &reason);
            return self.end(open, result, None, &[]).map(|()| false);
        };
        for &gpu in &run.header.gpus {
            // If another process has taken the GPU meanwhile, it is shared; nothing can be done about that.
            self.ledger.claim(&gpu_claim(gpu))?;
        }
        self.display.line(open, self.done(), None);
        self.running.push((open.clone(), run));
        Ok(true)
    }

    /// Returns how an attempt ended whose process is gone, as far as its batch system knows, and the reason.
    fn end_of_owner(&self, key: &str) -> (CellStatus, String) {
        let Some((task, id)) = self.policy.task.zip(self.ledger.task_of(key)) else {
            return (CellStatus::Killed, ENDED_WITH_SWEEP.to_owned());
        };
        let (status, end) = match task.system.end_of_task(id) {
            Some(TaskEnd::Preempted) => {
                (CellStatus::Preempted, "which was preempted, queued again or canceled")
            }
            Some(TaskEnd::NodeFailed) => (CellStatus::NodeFailed, "whose node failed"),
            Some(TaskEnd::TimeLimit) => (CellStatus::TimeLimit, "whose time ended"),
            Some(TaskEnd::OutOfMemory) => (CellStatus::HostOom, "which needed more host memory than it had"),
            None => (CellStatus::Killed, "which left no word, as after a preemption or when a node fails"),
        };
        (status, format!("ended with the task {id}, {end}"))
    }

    /// Claims a cell and GPUs for it.
    pub(super) fn claim(&mut self, cell: usize, gpus: &[usize]) -> Result<Claim> {
        let key = &self.cells[cell].key;
        if !self.ledger.claim(key)? {
            return Ok(Claim::Elsewhere);
        }
        for &gpu in gpus {
            if !self.ledger.claim(&gpu_claim(gpu))? {
                self.gpus_elsewhere.push(gpu);
                self.release_cell(key, gpus);
                return Ok(Claim::NoDevice);
            }
        }
        // A process that died since the last check may have left a run of this cell, or one on these GPUs.
        let found = self.take_over_dead()?;
        if self.is_running(&self.cells[cell]) {
            self.release_gpus(gpus);
            return Ok(Claim::Done);
        }
        // If an attempt at the cell was found dead, recording that released the claim.
        if found > 0 || !self.ledger.claim(key)? {
            self.release_cell(key, gpus);
            return Ok(Claim::NoDevice);
        }
        if !self.is_wanted(cell) {
            self.release_cell(key, gpus);
            return Ok(Claim::Done);
        }
        Ok(Claim::Free)
    }

    /// Releases a cell and its GPUs.
    pub(super) fn release_cell(&mut self, key: &str, gpus: &[usize]) {
        self.release_gpus(gpus);
        self.ledger.release(key);
    }

    /// Releases the GPUs that no running attempt uses.
    fn release_gpus(&mut self, gpus: &[usize]) {
        let is_used = |gpu: &&usize| self.running.iter().any(|(_, run)| run.header.gpus.contains(gpu));
        let free: Vec<String> = gpus.iter().filter(|gpu| !is_used(gpu)).map(|gpu| gpu_claim(*gpu)).collect();
        free.iter().for_each(|gpu| self.ledger.release(gpu));
    }

    /// Records that a cell is skipped, unless another process does so.
    pub(super) fn skip(&mut self, cell: &Cell, why: &str) -> Result<()> {
        let is_known =
            |ledger: &Ledger| ledger.last(&cell.key).is_some_and(|last| last.status == CellStatus::Skipped);
        if is_known(&self.ledger) || !self.ledger.claim(&cell.key)? {
            return Ok(());
        }
        if !is_known(&self.ledger) {
            let line = self.next_attempt(cell, CellStatus::Skipped, Some(why.to_owned()));
            self.ledger.append(line.clone())?;
            self.display.line(&line, self.done(), None);
        }
        self.ledger.release(&cell.key);
        Ok(())
    }
}

/// Names the claim of a GPU on this machine, by its UUID if the driver reports one: tasks of a batch system, or
/// processes with different `CUDA_VISIBLE_DEVICES`, see different GPUs under the same number.
fn gpu_claim(gpu: usize) -> String {
    machine_claim(&format!("gpu{}", Gpu::uuid_of(gpu).unwrap_or_else(|| gpu.to_string())))
}
