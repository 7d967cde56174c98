//! Which device a cell gets, and what its recipe is told of it.

use super::cell::Work;

/// Where a cell is run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The GPUs that it has to itself; none on the CPU.
    pub gpus: Vec<usize>,
    /// Whether they are its `engine.devices`: where the recipe leaves those open.
    pub told: bool,
    /// `engine.threads`, where the recipe leaves it open and cells share the CPU.
    pub threads: Option<usize>,
}

impl Place {
    /// Where a cell can run now; `None` while it has to wait. `taken` has the GPUs of every run under way, none for one on
    /// the CPU.
    pub fn find(work: &Work, taken: &[Vec<usize>], gpus: usize, jobs: usize) -> Option<Self> {
        let engine = &work.resolved.values().engine;
        let execution = &work.plan.execution;
        let free = |gpu: &usize| !taken.iter().flatten().any(|taken| taken == gpu);
        let wanted: Vec<usize> = execution.gpus().collect();
        if wanted.is_empty() {
            let busy = taken.iter().filter(|gpus| gpus.is_empty()).count();
            let divided = jobs > 1 && engine.threads.is_none();
            let threads = divided.then(|| (execution.threads / jobs).max(1));
            return (busy < jobs).then_some(Self { threads, ..Self::default() });
        }
        if engine.devices.is_some() {
            return wanted.iter().all(free).then_some(Self { gpus: wanted, ..Self::default() });
        }
        let found: Vec<usize> = (0..gpus).filter(free).take(wanted.len()).collect();
        (found.len() == wanted.len()).then_some(Self { gpus: found, told: true, threads: None })
    }

    /// What the recipe is told.
    pub fn arguments(&self) -> impl Iterator<Item = String> {
        let devices = self.told.then(|| format!("engine.devices={:?}", self.gpus));
        devices.into_iter().chain(self.threads.map(|threads| format!("engine.threads={threads}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::plan::{Corpus, Plan};
    use crate::recipe;
    use std::path::Path;

    /// A cell that is planned for GPUs, or for the CPU with 8 threads.
    fn work(engine: &str, gpus: &[usize]) -> Work {
        let text = format!("[engine]\n{engine}");
        let resolved =
            recipe::load_str(Path::new("r.toml"), &text, &[], std::iter::empty(), &Machine::none()).unwrap();
        let corpus = Corpus {
            vocab_size: 256,
            train_tokens: 1 << 20,
            exact: true,
            validation_tokens: 1 << 12,
            floor: None,
        };
        let mut plan = Plan::new(&resolved, &corpus, &Machine::none()).unwrap();
        plan.execution.gpu = gpus.first().copied();
        plan.execution.peers = gpus.iter().skip(1).copied().collect();
        plan.execution.threads = 8;
        Work { resolved, plan, machine: Machine::none() }
    }

    fn on(gpus: &[usize], told: bool) -> Option<Place> {
        Some(Place { gpus: gpus.to_vec(), told, threads: None })
    }

    #[test]
    fn every_gpu_has_one_cell_at_a_time() {
        let cell = work("", &[0]);
        assert_eq!(Place::find(&cell, &[], 2, 1), on(&[0], true));
        assert_eq!(Place::find(&cell, &[vec![0], vec![]], 2, 1), on(&[1], true));
        assert_eq!(Place::find(&cell, &[vec![1]], 2, 1), on(&[0], true));
        assert_eq!(Place::find(&cell, &[vec![1], vec![0]], 2, 4), None);
        let bound = work("devices = [1]", &[1]);
        assert_eq!(Place::find(&bound, &[vec![0]], 2, 1), on(&[1], false));
        assert_eq!(Place::find(&bound, &[vec![1]], 2, 1), None);
    }

    #[test]
    fn a_cell_of_several_ranks_waits_for_as_many_gpus() {
        let cell = work("", &[0, 1]);
        assert_eq!(Place::find(&cell, &[vec![0]], 4, 1), on(&[1, 2], true));
        assert_eq!(Place::find(&cell, &[vec![0, 2], vec![1]], 4, 1), None);
        let place = on(&[1, 2], true).unwrap();
        assert_eq!(place.arguments().collect::<Vec<_>>(), ["engine.devices=[1, 2]"]);
    }

    #[test]
    fn jobs_share_the_threads_of_the_cpu() {
        let threads = |threads| Some(Place { threads, ..Place::default() });
        let cell = work("", &[]);
        assert_eq!(Place::find(&cell, &[vec![0]], 1, 1), threads(None));
        assert_eq!(Place::find(&cell, &[vec![]], 0, 1), None);
        assert_eq!(Place::find(&cell, &[vec![], vec![]], 0, 3), threads(Some(2)));
        assert_eq!(Place::find(&cell, &[], 0, 100), threads(Some(1)));
        assert_eq!(Place::find(&work("threads = 5", &[]), &[vec![]], 0, 3), threads(None));
    }
}
