//! CUDA graphs of sections: captured once, then launched as a whole.

use super::{Engine, Section};
use crate::device::cuda::{Gpu, MemoryCause};
use crate::error::Result;

impl Engine {
    /// Turns graphs on or off. They only apply on a GPU, and need an arena, whose addresses never change.
    pub fn use_graphs(&mut self, on: bool) {
        self.graphs_on = on && self.gpu().is_some();
    }

    /// Runs sections one after the other; from the second time on as one graph, if graphs are on. Every
    /// `event_set` has its own graphs and events, so that the times of one step can be read while other steps
    /// are in flight.
    ///
    /// # Errors
    /// If memory cannot be allocated, or a rank is lost.
    pub fn run_all(&mut self, sections: &[&Section], event_set: usize) -> Result<()> {
        let Some(gpu) = self.gpu().cloned() else {
            return sections.iter().try_for_each(|section| self.run(section));
        };
        let names: Vec<&str> = sections.iter().map(|s| s.program.name.as_str()).collect();
        let name = format!("{} {event_set}", names.join(" "));
        if !self.graphs_on {
            return self.run_measured(&gpu, &name, event_set, sections, false);
        }
        match self.graphs.get(&name) {
            Some(Some(graph)) => {
                graph.launch()?;
                self.exchange.note_launch(&name, event_set);
            }
            Some(None) => {
                let graph = gpu.capture(|| self.run_measured(&gpu, &name, event_set, sections, true))?;
                graph.launch()?;
                gpu.attribute_memory(MemoryCause::Graphs);
                self.graphs.insert(name, Some(graph));
            }
            None => {
                self.run_measured(&gpu, &name, event_set, sections, false)?;
                gpu.attribute_memory(MemoryCause::Kernels);
                self.graphs.insert(name, None);
            }
        }
        Ok(())
    }

    /// Runs sections and measures the time of their collectives.
    fn run_measured(
        &mut self,
        gpu: &Gpu,
        name: &str,
        event_set: usize,
        sections: &[&Section],
        inside_graph: bool,
    ) -> Result<()> {
        self.exchange.begin(name, inside_graph);
        let mut following = sections.iter().skip(1);
        let ran = sections.iter().try_for_each(|section| self.run_before(section, following.next().copied()));
        let ended = self.exchange.end(gpu, name, event_set);
        ran.and(ended)
    }
}
