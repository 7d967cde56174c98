//! Sections as CUDA graphs: captured once, launched as a whole.

use super::{Engine, Section};
use crate::device::cuda::{Gpu, Graph, MemoryCause};
use crate::error::Result;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The graphs of an engine by the names of their sections.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    on: bool,
    /// `None` for what ran once: the first run warms up, and its work counts like any other.
    known: HashMap<String, Option<Graph>>,
}

impl Engine {
    /// Runs sections from now on as graphs, where they run on a GPU from an arena, whose addresses never change.
    pub fn use_graphs(&mut self, on: bool) {
        self.graphs.on = on && self.gpu().is_some();
    }

    /// Runs sections one after the other: as one graph where graphs are on, from the second time. Every `turn` has graphs and
    /// events of its own, so that what one of them measured can be read while others are under way.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn run_all(&mut self, sections: &[&Section], turn: usize) -> Result<()> {
        let Some(gpu) = self.gpu().cloned() else {
            return sections.iter().try_for_each(|section| self.run(section));
        };
        let names: Vec<&str> = sections.iter().map(|s| s.program.name.as_str()).collect();
        let name = format!("{} {turn}", names.join(" "));
        if !self.graphs.on {
            return self.run_measured(&name, turn, sections, false);
        }
        match self.graphs.known.get(&name) {
            Some(Some(graph)) => {
                graph.launch()?;
                self.exchange.ran_again(&name, turn);
            }
            Some(None) => {
                let graph = gpu.capture(|| self.run_measured(&name, turn, sections, true))?;
                graph.launch()?;
                gpu.attribute_memory(MemoryCause::Graphs);
                self.graphs.known.insert(name, Some(graph));
            }
            None => {
                self.run_measured(&name, turn, sections, false)?;
                gpu.attribute_memory(MemoryCause::Kernels);
                self.graphs.known.insert(name, None);
            }
        }
        Ok(())
    }

    /// Runs sections with the time of their collectives measured.
    fn run_measured(
        &mut self,
        name: &str,
        turn: usize,
        sections: &[&Section],
        inside_graph: bool,
    ) -> Result<()> {
        self.exchange.begin(name, inside_graph);
        let ran = sections.iter().try_for_each(|section| self.run(section));
        self.exchange.end(name, turn);
        ran
    }

    /// Runs a section with an event after every node, and reads the times between them. Inside a graph, where the
    /// placement allows one, so that the CPU's speed does not show.
    pub(super) fn time_on(&mut self, gpu: &Arc<Gpu>, section: &Section) -> Result<Vec<Duration>> {
        let count = section.program.nodes.len() + 1;
        let events = (0..count).map(|_| gpu.event()).collect::<Result<Vec<_>>>()?;
        let inside = self.graphs.on;
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
