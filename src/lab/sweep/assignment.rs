//! Assigns devices to cells and sets them in the recipes of their runs.

use super::work::Work;
use crate::error::Result;
use crate::executor::Capacity;

/// The devices of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// The GPUs that the run has to itself; empty on the CPU.
    pub gpus: Vec<usize>,
    /// True if the run sets `engine.devices` to these GPUs, because the recipe does not set it.
    pub sets_devices: bool,
    /// `engine.threads`, if the recipe does not set it and cells share the CPU.
    pub threads: Option<usize>,
}

impl Assignment {
    /// Returns free devices for a cell; `None` if it has to wait. `in_use` has the GPUs of every running
    /// cell, which are empty for a cell on the CPU.
    pub fn find_free(work: &Work, in_use: &[Vec<usize>], capacity: Capacity) -> Option<Self> {
        let Capacity { gpus, cpu_runs: jobs } = capacity;
        let engine = &work.recipe.values().engine;
        let execution = &work.plan.execution;
        let free = |gpu: &usize| !in_use.iter().flatten().any(|used| used == gpu);
        let wanted: Vec<usize> = execution.gpus().collect();
        if wanted.is_empty() {
            let busy = in_use.iter().filter(|gpus| gpus.is_empty()).count();
            let divided = jobs > 1 && engine.threads.is_none();
            let threads = divided.then(|| (execution.threads / jobs).max(1));
            return (busy < jobs).then_some(Self { threads, ..Self::default() });
        }
        if engine.devices.is_some() {
            return wanted.iter().all(free).then_some(Self { gpus: wanted, ..Self::default() });
        }
        let found: Vec<usize> = (0..gpus).filter(free).take(wanted.len()).collect();
        (found.len() == wanted.len()).then_some(Self { gpus: found, sets_devices: true, threads: None })
    }

    /// Returns the hash of the recipe that a run with this assignment has.
    ///
    /// # Errors
    /// If the assignment's arguments are invalid, which they never are.
    pub fn recipe_hash(&self, work: &Work) -> Result<String> {
        work.recipe.hash_with(&self.arguments().collect::<Vec<_>>())
    }

    /// Returns the command-line arguments that set the devices.
    pub fn arguments(&self) -> impl Iterator<Item = String> {
        let devices = self.sets_devices.then(|| format!("engine.devices={:?}", self.gpus));
        devices.into_iter().chain(self.threads.map(|threads| format!("engine.threads={threads}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::plan::{CorpusFacts, Plan};
    use crate::recipe;
    use std::path::Path;

    /// Makes a cell planned for GPUs, or for the CPU with 8 threads.
    fn work(engine: &str, gpus: &[usize]) -> Work {
        let text = format!("[engine]\n{engine}");
        let recipe =
            recipe::load_str(Path::new("r.toml"), &text, &[], std::iter::empty(), &Machine::none()).unwrap();
        let corpus = CorpusFacts {
            vocab_size: 256,
            train_tokens: 1 << 20,
            exact: true,
            validation_tokens: 1 << 12,
            ..CorpusFacts::default()
        };
        let mut plan = Plan::new(&recipe, &corpus, &Machine::none()).unwrap();
        plan.execution.gpu = gpus.first().copied();
        plan.execution.peers = gpus.iter().skip(1).copied().collect();
        plan.execution.threads = 8;
        Work { recipe, plan, machine: Machine::none() }
    }

    fn on(gpus: &[usize], sets_devices: bool) -> Option<Assignment> {
        Some(Assignment { gpus: gpus.to_vec(), sets_devices, threads: None })
    }

    #[test]
    fn every_gpu_has_one_cell_at_a_time() {
        let cell = work("", &[0]);
        assert_eq!(Assignment::find_free(&cell, &[], Capacity { gpus: 2, cpu_runs: 1 }), on(&[0], true));
        assert_eq!(
            Assignment::find_free(&cell, &[vec![0], vec![]], Capacity { gpus: 2, cpu_runs: 1 }),
            on(&[1], true)
        );
        assert_eq!(
            Assignment::find_free(&cell, &[vec![1]], Capacity { gpus: 2, cpu_runs: 1 }),
            on(&[0], true)
        );
        assert_eq!(
            Assignment::find_free(&cell, &[vec![1], vec![0]], Capacity { gpus: 2, cpu_runs: 4 }),
            None
        );
        let bound = work("devices = [1]", &[1]);
        assert_eq!(
            Assignment::find_free(&bound, &[vec![0]], Capacity { gpus: 2, cpu_runs: 1 }),
            on(&[1], false)
        );
        assert_eq!(Assignment::find_free(&bound, &[vec![1]], Capacity { gpus: 2, cpu_runs: 1 }), None);
    }

    #[test]
    fn a_cell_of_several_ranks_waits_for_as_many_gpus() {
        let cell = work("", &[0, 1]);
        assert_eq!(
            Assignment::find_free(&cell, &[vec![0]], Capacity { gpus: 4, cpu_runs: 1 }),
            on(&[1, 2], true)
        );
        assert_eq!(
            Assignment::find_free(&cell, &[vec![0, 2], vec![1]], Capacity { gpus: 4, cpu_runs: 1 }),
            None
        );
        let assignment = on(&[1, 2], true).unwrap();
        assert_eq!(assignment.arguments().collect::<Vec<_>>(), ["engine.devices=[1, 2]"]);
    }

    #[test]
    fn jobs_share_the_threads_of_the_cpu() {
        let threads = |threads| Some(Assignment { threads, ..Assignment::default() });
        let cell = work("", &[]);
        assert_eq!(
            Assignment::find_free(&cell, &[vec![0]], Capacity { gpus: 1, cpu_runs: 1 }),
            threads(None)
        );
        assert_eq!(Assignment::find_free(&cell, &[vec![]], Capacity { gpus: 0, cpu_runs: 1 }), None);
        assert_eq!(
            Assignment::find_free(&cell, &[vec![], vec![]], Capacity { gpus: 0, cpu_runs: 3 }),
            threads(Some(2))
        );
        assert_eq!(Assignment::find_free(&cell, &[], Capacity { gpus: 0, cpu_runs: 100 }), threads(Some(1)));
        assert_eq!(
            Assignment::find_free(&work("threads = 5", &[]), &[vec![]], Capacity { gpus: 0, cpu_runs: 3 }),
            threads(None)
        );
    }
}
