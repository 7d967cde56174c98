//! CUDA graphs of sections: captured once, launched as a whole.

use super::{Engine, Section};
use crate::device::cuda::{Gpu, Graph, MemoryCause};
use crate::error::Result;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// CUDA graphs of an engine, by the names of their sections.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    on: bool,
    /// `None` for sections that ran once: the first run is a warm-up without a graph, and its results count.
    known: HashMap<String, Option<Graph>>,
}

impl Engine {
    /// Turns graphs on or off. They apply on a GPU, and need an arena, whose addresses never change.
    pub fn use_graphs(&mut self, on: bool) {
        self.graphs.on = on && self.gpu().is_some();
    }

    /// Runs sections one after the other, from the second time as one graph where graphs are on. Every
    /// `event_set` has its own graphs and events, so that the times of one step can be read while other steps
    /// are in flight.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn run_all(&mut self, sections: &[&Section], event_set: usize) -> Result<()> {
        let Some(gpu) = self.gpu().cloned() else {
            return sections.iter().try_for_each(|section| self.run(section));
        };
        let names: Vec<&str> = sections.iter().map(|s| s.program.name.as_str()).collect();
        let name = format!("{} {event_set}", names.join(" "));
        if !self.graphs.on {
            return self.run_measured(&name, event_set, sections, false);
        }
        match self.graphs.known.get(&name) {
            Some(Some(graph)) => {
                graph.launch()?;
                self.exchange.ran_again(&name, event_set);
            }
            Some(None) => {
                let graph = gpu.capture(|| self.run_measured(&name, event_set, sections, true))?;
                graph.launch()?;
                gpu.attribute_memory(MemoryCause::Graphs);
                self.graphs.known.insert(name, Some(graph));
            }
            None => {
                self.run_measured(&name, event_set, sections, false)?;
                gpu.attribute_memory(MemoryCause::Kernels);
                self.graphs.known.insert(name, None);
            }
        }
        Ok(())
    }

    /// Runs sections and measures the time of their collectives.
    fn run_measured(
        &mut self,
        name: &str,
        event_set: usize,
        sections: &[&Section],
        inside_graph: bool,
    ) -> Result<()> {
        self.exchange.begin(name, inside_graph);
        let ran = sections.iter().try_for_each(|section| self.run(section));
        self.exchange.end(name, event_set);
        ran
    }

    /// Runs a section with an event after every node, and returns the times between them. Uses a graph where
    /// graphs are on, so that launch overhead on the CPU is not measured.
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
