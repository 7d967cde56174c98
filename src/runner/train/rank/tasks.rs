//! Scores the items of tasks with the weights that training has. Ranks share the items.

use super::Rank;
use super::task_share::{Scoring, decode, encode, joined, share_of_items};
use crate::device::communicator::{Communicator, RankPhase};
use crate::error::{Error, Result};
use crate::scoring::Scorer;
use crate::task_evaluation::{TaskScores, score_items};
use crate::tasks::{Prepared, PreparedItem};
use std::sync::Arc;

/// The status that a rank reports while it scores items of tasks.
const SCORES: RankPhase = RankPhase::working("scores tasks");

/// The scores of all tasks with one set of weights.
#[derive(Clone, Debug)]
pub struct ScoredWeights {
    /// True for the moving average of the weights.
    pub is_average: bool,
    /// The tasks, in order.
    pub tasks: Vec<TaskScores>,
}

impl Rank {
    /// Prepares to score these tasks: allocates a batch and its scores. Does nothing without tasks.
    ///
    /// # Errors
    /// If memory cannot be allocated, or the plan has no programs that score.
    pub(in crate::train) fn prepare_tasks(&mut self, tasks: &Arc<Vec<Prepared>>) -> Result<()> {
        if tasks.is_empty() {
            return Ok(());
        }
        let programs = self.programs.scoring.clone();
        let programs = programs.ok_or_else(|| Error::failed("the plan has no programs that score tasks"))?;
        let engine = self.engine.beside(&programs.state)?;
        let scorer = Scorer::new(engine, programs, self.plan.model.vocab_size);
        self.scoring = Some(Scoring { tasks: Arc::clone(tasks), scorer });
        Ok(())
    }

    /// Returns the bytes of the state on this rank: of training and of scoring.
    pub(in crate::train) fn state_bytes(&self) -> usize {
        let scoring = self.scoring.as_ref().map_or(0, |scoring| scoring.scorer.state_bytes());
        self.engine.state.bytes() + scoring
    }

    /// Scores all tasks with the weights and then, if the plan evaluates it, with their moving average. Ranks
    /// share the items; rank 0 gets the scores of all, which have the same bits whatever the number of ranks.
    /// The other ranks get none. Calls `on_batch` with the number of requests that this rank has scored, and
    /// of all that it scores. Every rank must call this at the same step.
    ///
    /// # Errors
    /// If a rank is lost, the engine fails, or a score is not finite.
    pub fn evaluate_tasks(&mut self, mut on_batch: impl FnMut(usize, usize)) -> Result<Vec<ScoredWeights>> {
        let Some(mut scoring) = self.scoring.take() else { return Ok(Vec::new()) };
        let times = self.plan.evaluated_weight_sets();
        self.gather_parameters()?;
        let weights = self.score_tasks(&mut scoring, &mut |done, of| on_batch(done, times * of))?;
        let mut all = vec![ScoredWeights { is_average: false, tasks: weights }];
        let programs = Arc::clone(&self.programs);
        if let Some(swap) = &programs.swap_ema {
            self.swap_ema(swap)?;
            // An error ends the run, so nothing needs to be restored, and no further collective may start.
            let average = self.score_tasks(&mut scoring, &mut |done, of| on_batch(of + done, times * of))?;
            self.swap_ema(swap)?;
            all.push(ScoredWeights { is_average: true, tasks: average });
        }
        self.scoring = Some(scoring);
        Ok(if self.comm.rank() == 0 { all } else { Vec::new() })
    }

    /// Scores this rank's items of every task, and returns the scores of all ranks on rank 0.
    fn score_tasks(
        &mut self,
        scoring: &mut Scoring,
        on_batch: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<TaskScores>> {
        let Scoring { tasks, scorer } = scoring;
        let (rank, world) = (self.comm.rank(), self.comm.world_size());
        let share = |task| share_of_items(task, rank, world);
        let of: usize = tasks.iter().flat_map(share).map(|item| item.asked.count()).sum();
        let (mut before, mut scored) = (0, Vec::new());
        for task in tasks.iter() {
            let (comm, done_steps) = (Arc::clone(&self.comm), self.done);
            let own: Vec<&PreparedItem> = share(task).collect();
            let (answers, usage) = scorer.with_weights_of(&mut self.engine, |scorer| {
                score_items(task, &own, scorer, |done| {
                    comm.set_status(done_steps, SCORES);
                    on_batch(before + done, of);
                    Ok(())
                })
            })?;
            before += own.iter().map(|item| item.asked.count()).sum::<usize>();
            let name = format!("the scores of {}", task.definition().name);
            let parts = self.comm.gather(&name, encode(&answers, usage))?;
            if rank == 0 {
                let (answers, usage) = joined(task, parts.parts().map(decode))
                    .ok_or_else(|| Error::failed(format!("{name}: a rank has sent others than asked for")))?;
                scored.push(TaskScores {
                    result: task.result(&answers)?,
                    usage,
                    algorithms: scorer.algorithms(),
                    cut_items: task.cut_items(),
                });
            }
        }
        Ok(scored)
    }
}
