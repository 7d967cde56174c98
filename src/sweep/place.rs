//! Which device a cell gets, and what its recipe is told of it.

use super::cell::Work;

/// Where a cell is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The GPU that it has to itself; `None` on the CPU.
    pub gpu: Option<usize>,
    /// `engine.devices`, where the recipe leaves it open.
    pub device: Option<usize>,
    /// `engine.threads`, where the recipe leaves it open and cells share the CPU.
    pub threads: Option<usize>,
}

impl Place {
    /// Where a cell can run now; `None` while it has to wait. `taken` has the GPU of every run under way, `None` for one
    /// on the CPU.
    pub fn find(work: &Work, taken: &[Option<usize>], gpus: usize, jobs: usize) -> Option<Self> {
        let engine = &work.resolved.recipe.engine;
        let free = |gpu: &usize| !taken.contains(&Some(*gpu));
        match work.plan.execution.gpu {
            Some(gpu) if engine.devices.is_some() => {
                free(&gpu).then_some(Self { gpu: Some(gpu), ..Self::default() })
            }
            Some(_) => {
                let gpu = (0..gpus).find(free);
                gpu.map(|_| Self { gpu, device: gpu, threads: None })
            }
            None => {
                let busy = taken.iter().filter(|gpu| gpu.is_none()).count();
                let divided = jobs > 1 && engine.threads.is_none();
                let threads = divided.then(|| (work.plan.execution.threads / jobs).max(1));
                (busy < jobs).then_some(Self { threads, ..Self::default() })
            }
        }
    }

    /// What the recipe is told.
    pub fn arguments(self) -> impl Iterator<Item = String> {
        let device = self.device.map(|device| format!("engine.devices=[{device}]"));
        device.into_iter().chain(self.threads.map(|threads| format!("engine.threads={threads}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Corpus, Plan};
    use crate::recipe;
    use std::path::Path;

    /// A cell that is planned for GPU `gpu`, or for the CPU with 8 threads.
    fn work(engine: &str, gpu: Option<usize>) -> Work {
        let text = format!("[engine]\n{engine}");
        let resolved = recipe::load_str(Path::new("r.toml"), &text, &[], std::iter::empty()).unwrap();
        let corpus = Corpus {
            vocab_size: 256,
            train_tokens: 1 << 20,
            exact: true,
            validation_tokens: 1 << 12,
            floor: None,
        };
        let mut plan = Plan::anywhere(&resolved, corpus).unwrap();
        plan.execution.gpu = gpu;
        plan.execution.threads = 8;
        Work { resolved, plan }
    }

    fn on(gpu: usize, told: bool) -> Option<Place> {
        Some(Place { gpu: Some(gpu), device: told.then_some(gpu), threads: None })
    }

    #[test]
    fn every_gpu_has_one_cell_at_a_time() {
        let cell = work("", Some(0));
        assert_eq!(Place::find(&cell, &[], 2, 1), on(0, true));
        assert_eq!(Place::find(&cell, &[Some(0), None], 2, 1), on(1, true));
        assert_eq!(Place::find(&cell, &[Some(1)], 2, 1), on(0, true));
        assert_eq!(Place::find(&cell, &[Some(1), Some(0)], 2, 4), None);
        let bound = work("devices = [1]", Some(1));
        assert_eq!(Place::find(&bound, &[Some(0)], 2, 1), on(1, false));
        assert_eq!(Place::find(&bound, &[Some(1)], 2, 1), None);
    }

    #[test]
    fn jobs_share_the_threads_of_the_cpu() {
        let threads = |threads| Some(Place { threads, ..Place::default() });
        let cell = work("", None);
        assert_eq!(Place::find(&cell, &[Some(0)], 1, 1), threads(None));
        assert_eq!(Place::find(&cell, &[None], 0, 1), None);
        assert_eq!(Place::find(&cell, &[None, None], 0, 3), threads(Some(2)));
        assert_eq!(Place::find(&cell, &[], 0, 100), threads(Some(1)));
        assert_eq!(Place::find(&work("threads = 5", None), &[None], 0, 3), threads(None));
    }
}
