//! Times of single nodes.

use super::issued::Issued;
use super::{Engine, Section};
use crate::device::cuda::{Gpu, PowerMeter, SETTLING};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a node is measured under load: several periods of the driver's energy counter.
const MEASURE_TIME: Duration = Duration::from_millis(500);

/// Duration of one graph of repeats: short compared to [`MEASURE_TIME`], long compared to a launch.
const GRAPH_TIME: Duration = Duration::from_millis(5);

/// Largest number of repeats in a graph.
const MAX_REPEATS: usize = 2_000;

/// Measurement of a node that was repeated until the GPU's clock had settled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnderLoad {
    /// Time of the node.
    pub time: Duration,
    /// Power of the whole board during that time, in watts.
    pub watts: f64,
}

impl Engine {
    /// Runs a section and measures every node: on the CPU by the clock, on a GPU by events inside a graph.
    ///
    /// # Errors
    /// If memory cannot be allocated, or a rank is lost.
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

    /// Runs a section with an event after every node and returns the times between the events. If graphs are
    /// on, it uses one, so that launch overhead on the CPU is not measured.
    fn time_on(&mut self, gpu: &Arc<Gpu>, section: &Section) -> Result<Vec<Duration>> {
        let count = section.program.nodes.len() + 1;
        let events = (0..count).map(|_| gpu.event()).collect::<Result<Vec<_>>>()?;
        let inside = self.graphs_on;
        let run = |engine: &mut Self| {
            gpu.stream.record(&events[0], inside)?;
            engine.walk(section, |ran| gpu.stream.record(&events[ran.at + 1], inside))
        };
        let graph = if inside { Some(gpu.capture(|| run(self))?) } else { None };
        // Allocate and free nothing while they are occupied: that would wait until they are released.
        let held = gpu.hold_multiprocessors(self.occupied_multiprocessors)?;
        match &graph {
            Some(graph) => graph.launch()?,
            None => run(self)?,
        }
        gpu.synchronize()?;
        drop(held);
        let between = events.windows(2).map(|pair| pair[1].since(&pair[0]));
        between.map(|ms| Ok(Duration::from_secs_f64(f64::from(ms?.max(0.0)) / 1e3))).collect()
    }

    /// Runs a section on a GPU once for each of `nodes`, and repeats that node for most of a second. Repeats
    /// write the section's tensors and state again and again, so both are meaningless afterwards.
    ///
    /// # Errors
    /// If there is no GPU or no counter of its energy, memory cannot be allocated, or a rank is lost.
    pub fn time_under_load(&mut self, section: &Section, nodes: &[usize]) -> Result<Vec<UnderLoad>> {
        let Some(gpu) = self.gpu().cloned() else {
            return Err(Error::usage("energy is measured on a GPU, and this plan is for the CPU"));
        };
        let meter = gpu.initial.power_meter().ok_or_else(|| {
            Error::failed("the driver does not report the energy of this GPU, so it cannot be measured")
        })?;
        let mut found = Vec::with_capacity(nodes.len());
        for &node in nodes {
            let issue = |engine: &mut Self, issued: &Issued<'_>| {
                engine.issue(issued)?;
                if issued.at == node {
                    found.push(engine.repeat(&gpu, &meter, issued)?);
                }
                Ok(())
            };
            self.walk_and_issue(section, issue, |_| Ok(()))?;
            gpu.synchronize()?;
        }
        Ok(found)
    }

    /// Repeats a node that was issued until the GPU's clock has settled, then measures it.
    fn repeat(&mut self, gpu: &Arc<Gpu>, meter: &PowerMeter, issued: &Issued<'_>) -> Result<UnderLoad> {
        let once = gpu.stream.milliseconds(|| self.issue(issued))?;
        let once = f64::from(once.max(1e-3)) / 1e3;
        let repeats = ((GRAPH_TIME.as_secs_f64() / once).ceil() as usize).min(MAX_REPEATS);
        let graph = gpu.capture(|| (0..repeats).try_for_each(|_| self.issue(issued)))?;
        // While one graph runs, the next is launched; the host waits for the previous one. So the meter is
        // read close to the work it measures.
        let ends = [gpu.event()?, gpu.event()?];
        let mut launches = 0usize;
        let work = |count: &mut usize| -> Result<()> {
            graph.launch()?;
            gpu.stream.record(&ends[*count % 2], false)?;
            *count += 1;
            if *count > 1 { ends[*count % 2].wait() } else { Ok(()) }
        };
        let settled = Instant::now() + SETTLING;
        while Instant::now() < settled {
            work(&mut launches)?;
        }
        let before = launches;
        let mut watts = 0.0;
        let milliseconds = gpu.stream.milliseconds(|| {
            watts = meter.watts_during(MEASURE_TIME, || work(&mut launches))?;
            Ok(())
        })?;
        let count = ((launches - before) * repeats) as f64;
        Ok(UnderLoad { time: Duration::from_secs_f64(f64::from(milliseconds) / 1e3 / count), watts })
    }
}
