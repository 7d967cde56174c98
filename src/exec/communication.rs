//! Collectives of a GPU with other ranks: their streams and their times.
//!
//! A node whose stream is [`Stream::Communication`] overlaps with the model. It begins after all work issued
//! before it, and the compute stream waits for it at the end of the section, so no later node reads
//! unfinished data. Meanwhile the model reuses memory of the arena for other tensors, so such a node may
//! touch the state only.
//!
//! Events around every collective, and one where the compute stream waits, measure how long collectives took
//! and how much of that was exposed. A graph records its events again at every launch, which discards the
//! earlier times, so steps that are in flight together use separate sets of events.

use crate::device::communicator::Communicator;
use crate::device::cuda::Gpu;
use crate::device::cuda::driver::Event;
use crate::device::gpu::Queue;
use crate::error::{Error, Result};
use crate::ir::{Home, Node, Program, Stream};
use std::collections::HashMap;
use std::time::Duration;

/// Time that the collectives of a step took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommunicationTime {
    /// Total time, waiting for other ranks inside them included.
    pub total: Duration,
    /// Time during which the compute stream was idle because of them.
    pub exposed: Duration,
}

/// Issues an engine's collectives to their streams, and measures them.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    /// True if collectives may overlap with the compute stream.
    overlap: bool,
    /// True if nodes were issued to the communication stream and the compute stream has not waited for them
    /// yet.
    forked: bool,
    /// Events of the sections being issued; `None` if nothing is measured.
    measuring: Option<RecordedEvents>,
    /// Events of all sections issued before, by name.
    known: HashMap<String, RecordedEvents>,
    /// Name of the last sections with collectives, by event set.
    last: HashMap<usize, String>,
}

/// Events of sections that run together, in the order of recording. Running them again reuses the events.
#[derive(Debug, Default)]
struct RecordedEvents {
    inside_graph: bool,
    used: usize,
    events: Vec<Event>,
    /// What lies between two events, by their indices.
    spans: Vec<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// A collective in the compute stream, which is exposed entirely: begin and end.
    Serial(usize, usize),
    /// A collective in the communication stream: begin and end.
    Overlapped(usize, usize),
    /// The compute stream waits for the last overlapping collective: end of the collective, begin of the
    /// wait.
    Wait(usize, usize),
}

impl Exchange {
    /// Sets whether the following collectives may overlap with the compute stream.
    pub(super) fn allow_overlap(&mut self, overlap: bool) {
        self.overlap = overlap;
        self.forked = false;
    }

    /// Issues a collective to its stream.
    pub(super) fn issue(
        &mut self,
        gpu: &Gpu,
        program: &Program,
        node: &Node,
        put: impl FnOnce(&dyn Queue) -> Result<()>,
    ) -> Result<()> {
        let side_stream = match node.stream {
            Stream::Communication if self.overlap => gpu.fork()?,
            _ => None,
        };
        let Some(side_stream) = side_stream else {
            let begin = self.stamp(gpu, |event, inside| gpu.record(event, inside))?;
            put(gpu)?;
            let end = self.stamp(gpu, |event, inside| gpu.record(event, inside))?;
            self.span(begin.zip(end).map(|(begin, end)| Span::Serial(begin, end)));
            return Ok(());
        };
        if !touches_only_state(program, node) {
            return Err(Error::failed(format!(
                "{} overlaps with the model and touches the arena",
                node.op.name()
            )));
        }
        self.forked = true;
        let begin = self.stamp(gpu, |event, inside| side_stream.record(event, inside))?;
        put(&side_stream)?;
        let end = self.stamp(gpu, |event, inside| side_stream.record(event, inside))?;
        self.span(begin.zip(end).map(|(begin, end)| Span::Overlapped(begin, end)));
        Ok(())
    }

    /// Makes the compute stream wait for the communication stream.
    pub(super) fn rejoin(&mut self, gpu: &Gpu) -> Result<()> {
        self.overlap = false;
        if !std::mem::take(&mut self.forked) {
            return Ok(());
        }
        let model = self.stamp(gpu, |event, inside| gpu.record(event, inside))?;
        let spans = self.measuring.as_ref().map(|stamps| stamps.spans.as_slice()).unwrap_or_default();
        let last = spans.iter().rev().find_map(|span| match span {
            Span::Overlapped(_, end) => Some(*end),
            _ => None,
        });
        self.span(last.zip(model).map(|(end, model)| Span::Wait(end, model)));
        gpu.rejoin()
    }

    /// Starts measuring sections of this name.
    pub(super) fn begin(&mut self, name: &str, inside_graph: bool) {
        let stamps = self.known.remove(name).unwrap_or_default();
        self.measuring =
            Some(RecordedEvents { inside_graph, used: 0, events: stamps.events, spans: Vec::new() });
    }

    /// Ends measuring sections of this name, all of which were issued.
    pub(super) fn end(&mut self, name: &str, event_set: usize) {
        let Some(stamps) = self.measuring.take().filter(|stamps| !stamps.spans.is_empty()) else { return };
        self.known.insert(name.to_owned(), stamps);
        self.note_launch(name, event_set);
    }

    /// Notes that sections of this name were launched again.
    pub(super) fn note_launch(&mut self, name: &str, event_set: usize) {
        if self.known.contains_key(name) && self.last.get(&event_set).is_none_or(|last| last != name) {
            self.last.insert(event_set, name.to_owned());
        }
    }

    /// Returns the time of the collectives of the last sections that used an event set; `None` where none
    /// were measured, or where the device already records the events again.
    pub(super) fn times(&self, event_set: usize) -> Option<CommunicationTime> {
        let stamps = self.known.get(self.last.get(&event_set)?)?;
        let since = |from: usize, to: usize| stamps.events[to].since(&stamps.events[from]).ok();
        summed(&stamps.spans, since)
    }

    /// Records the next event and returns its index; `None` if nothing is measured.
    fn stamp(&mut self, gpu: &Gpu, record: impl FnOnce(&Event, bool) -> Result<()>) -> Result<Option<usize>> {
        let Some(stamps) = &mut self.measuring else { return Ok(None) };
        let at = stamps.used;
        if at == stamps.events.len() {
            stamps.events.push(gpu.event()?);
        }
        record(&stamps.events[at], stamps.inside_graph)?;
        stamps.used += 1;
        Ok(Some(at))
    }

    /// Notes what lies between two events.
    fn span(&mut self, span: Option<Span>) {
        if let (Some(stamps), Some(span)) = (&mut self.measuring, span) {
            stamps.spans.push(span);
        }
    }
}

/// Adds up spans; `since` returns milliseconds between two events.
fn summed(spans: &[Span], since: impl Fn(usize, usize) -> Option<f32>) -> Option<CommunicationTime> {
    let (mut total, mut exposed) = (0.0, 0.0);
    for span in spans {
        match *span {
            Span::Serial(begin, end) => {
                // A negative time shows that the next step has begun to record the events again.
                let took = since(begin, end).filter(|took| *took >= 0.0)?;
                total += took;
                exposed += took;
            }
            Span::Overlapped(begin, end) => total += since(begin, end).filter(|took| *took >= 0.0)?,
            Span::Wait(end, model) => exposed += since(model, end)?.max(0.0),
        }
    }
    let duration = |milliseconds: f32| Duration::from_secs_f64(f64::from(milliseconds) / 1e3);
    Some(CommunicationTime { total: duration(total), exposed: duration(exposed) })
}

/// Returns true if a node reads and writes tensors of the state only, none in transient memory.
fn touches_only_state(program: &Program, node: &Node) -> bool {
    let in_state = |id| matches!(program.tensor(program.base(id)).home, Home::State(_));
    node.inputs.iter().chain(&node.outputs).all(|&id| in_state(id))
}

/// Returns an error if the GPU's NCCL communicator has another rank or world size than the engine's: its sums
/// would lack ranks.
pub(super) fn check_communicator(gpu: &Gpu, comm: &dyn Communicator) -> Result<()> {
    let joined = gpu.nccl().map_or((0, 1), |nccl| (nccl.rank(), nccl.world_size()));
    if joined == (comm.rank(), comm.world_size()) {
        return Ok(());
    }
    Err(Error::failed(format!(
        "rank {} of {} would run on a GPU whose NCCL communicator is rank {} of {}",
        comm.rank(),
        comm.world_size(),
        joined.0,
        joined.1
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_collectives_are_exposed_only_where_the_model_waits() {
        // Milliseconds at which events happened.
        let at = [0.0, 2.0, 5.0, 9.0, 8.0, 10.0, 10.5];
        let since = |from: usize, to: usize| Some(at[to] - at[from]);
        let side_stream = [Span::Overlapped(0, 1), Span::Overlapped(2, 3), Span::Wait(3, 4)];
        let ms = |n| Duration::from_micros(n);
        let found = summed(&side_stream, since).unwrap();
        assert_eq!(found, CommunicationTime { total: ms(6000), exposed: ms(1000) });
        let found = summed(&[&side_stream[..], &[Span::Serial(5, 6)]].concat(), since).unwrap();
        assert_eq!(found, CommunicationTime { total: ms(6500), exposed: ms(1500) });
        let hidden = summed(&[Span::Overlapped(0, 1), Span::Wait(1, 4)], since).unwrap();
        assert_eq!(hidden, CommunicationTime { total: ms(2000), exposed: Duration::ZERO });
    }

    #[test]
    fn every_event_set_has_its_own_last_work() {
        let mut exchange = Exchange::default();
        for name in ["step 0", "step 1", "first 1"] {
            exchange.known.insert(name.to_owned(), RecordedEvents::default());
        }
        exchange.note_launch("step 0", 0);
        exchange.note_launch("first 1", 1);
        exchange.note_launch("step 1", 1);
        exchange.note_launch("without collectives 0", 0);
        assert_eq!((&*exchange.last[&0], &*exchange.last[&1]), ("step 0", "step 1"));
    }

    #[test]
    fn times_of_two_steps_are_not_mixed() {
        assert_eq!(summed(&[Span::Overlapped(1, 0)], |from, to| Some(to as f32 - from as f32)), None);
        assert_eq!(summed(&[Span::Serial(0, 1)], |_, _| None), None);
    }
}
