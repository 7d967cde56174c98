//! Times of single nodes.

use super::{Engine, Section};
use crate::device::cuda::Gpu;
use crate::error::Result;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Engine {
    /// Runs a section and measures every node: on the CPU by the clock, on a GPU by events inside a graph.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn time(&mut self, section: &Section) -> Result<Vec<Duration>> {
        if let Some(gpu) = self.gpu().cloned() {
            return self.time_on(&gpu, section);
        }
        let mut times = Vec::with_capacity(section.program.nodes.len());
        let mut started = Instant::now();
        self.walk(section, |_| {
            times.push(started.elapsed());
            started = Instant::now();
            Ok(())
        })?;
        Ok(times)
    }

    /// Runs a section with an event after every node, and returns the times between them. Uses a graph where
    /// graphs are on, so that launch overhead on the CPU is not measured.
    fn time_on(&mut self, gpu: &Arc<Gpu>, section: &Section) -> Result<Vec<Duration>> {
        let count = section.program.nodes.len() + 1;
        let events = (0..count).map(|_| gpu.event()).collect::<Result<Vec<_>>>()?;
        let inside = self.graphs_on;
        let run = |engine: &mut Self| {
            gpu.record(&events[0], inside)?;
            engine.walk(section, |ran| gpu.record(&events[ran.at + 1], inside))
        };
        if inside {
            gpu.capture(|| run(self))?.launch()?;
        } else {
            run(self)?;
        }
        gpu.synchronize()?;
        let between = events.windows(2).map(|pair| pair[1].since(&pair[0]));
        between.map(|ms| Ok(Duration::from_secs_f64(f64::from(ms?.max(0.0)) / 1e3))).collect()
    }
}
