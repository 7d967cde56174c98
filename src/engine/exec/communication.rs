//! Collectives between GPUs of several ranks: their streams and their times.
//!
//! A node on [`Stream::Communication`] overlaps with the model. It begins after all work issued before it. A
//! later node waits for it if it reads what that node writes, or writes what that node touches. The compute
//! stream waits for all such nodes at the end of a section, so no node reads unfinished data. Only a section
//! that consists of such nodes alone overlaps with the next section. Meanwhile the model reuses arena memory
//! for other tensors, so a node on this stream may touch only the state.
//!
//! Events around every collective, and wherever the compute stream waits, measure how long collectives took
//! and how much of that was exposed. They are recorded on side streams, which the model and the collectives
//! do not wait for. Each launch of a graph records the graph's events again and discards the earlier times,
//! so steps in flight at the same time use separate sets of events.

use super::issued::{Issued, TouchedMemory};
use crate::device::cuda::driver::Event;
use crate::device::cuda::{Gpu, Lane};
use crate::device::gpu::Queue;
use crate::error::{Error, Result};
use crate::ir::Stream;
use std::collections::HashMap;
use std::time::Duration;

/// Time that the collectives of a step took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommunicationTime {
    /// Total time, including the wait for other ranks inside the collectives.
    pub total: Duration,
    /// Time during which the compute stream idled because of collectives.
    pub exposed: Duration,
}

/// Issues an engine's collectives to their streams and measures them.
#[derive(Debug, Default)]
pub(super) struct CollectiveIssuer {
    /// True if the following collectives may overlap with the compute stream.
    pub(super) overlap: bool,
    /// Nodes on the communication stream that the compute stream has not waited for, in order.
    outstanding: Vec<Outstanding>,
    /// Events at the ends of these nodes, by the same indices.
    ends: Vec<Event>,
    /// Events of the sections being issued; `None` if nothing is measured.
    measuring: Option<RecordedEvents>,
    /// Events of all sections issued so far, by name.
    known: HashMap<String, RecordedEvents>,
    /// Name of the last sections with collectives, by event set.
    last: HashMap<usize, String>,
}

/// A node on the communication stream.
#[derive(Debug)]
struct Outstanding {
    /// The memory that it reads and writes.
    memory: TouchedMemory,
    /// The event at the node's end that measures its time; `None` if nothing is measured.
    measured: Option<usize>,
}

/// Events of sections that run together, in the order of recording. Another run reuses the events.
#[derive(Debug, Default)]
struct RecordedEvents {
    inside_graph: bool,
    used: usize,
    /// Whether any event was recorded beside the model's stream, and beside the collectives' stream.
    beside: [bool; 2],
    events: Vec<Event>,
    /// What the time between two events means, by the events' indices.
    spans: Vec<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// A collective in the compute stream, exposed entirely: begin and end.
    Serial(usize, usize),
    /// A collective in the communication stream: begin and end.
    Overlapped(usize, usize),
    /// The compute stream waits for the last overlapping collective: end of the collective, begin of the
    /// wait.
    Wait(usize, usize),
}

impl CollectiveIssuer {
    /// Issues a collective to its stream.
    pub(super) fn issue(
        &mut self,
        gpu: &Gpu,
        issued: &Issued<'_>,
        put: impl FnOnce(&dyn Queue) -> Result<()>,
    ) -> Result<()> {
        let node = issued.node;
        let side_stream = match node.stream {
            Stream::Communication if self.overlap => gpu.fork()?,
            _ => None,
        };
        let Some(side_stream) = side_stream else {
            self.wait_for_inputs(gpu, issued)?;
            let begin = self.stamp(gpu, Lane::Model)?;
            put(gpu)?;
            let end = self.stamp(gpu, Lane::Model)?;
            self.span(begin.zip(end).map(|(begin, end)| Span::Serial(begin, end)));
            return Ok(());
        };
        if !issued.touches_only_state() {
            return Err(Error::failed(format!(
                "{} overlaps with the model, so it may touch only the state, but it touches the arena",
                node.op.name()
            )));
        }
        let begin = self.stamp(gpu, Lane::Collectives)?;
        put(&side_stream)?;
        let measured = self.stamp(gpu, Lane::Collectives)?;
        self.span(begin.zip(measured).map(|(begin, end)| Span::Overlapped(begin, end)));
        let at = self.outstanding.len();
        if at == self.ends.len() {
            self.ends.push(gpu.event()?);
        }
        side_stream.record(&self.ends[at])?;
        self.outstanding.push(Outstanding { memory: issued.memory(gpu.rank()), measured });
        Ok(())
    }

    /// Makes the compute stream wait for nodes on the communication stream that write what `issued` touches
    /// or touch what it writes.
    pub(super) fn wait_for_inputs(&mut self, gpu: &Gpu, issued: &Issued<'_>) -> Result<()> {
        if self.outstanding.is_empty() {
            return Ok(());
        }
        let memory = issued.memory(gpu.rank());
        let conflicts = |other: &Outstanding| other.memory.conflicts_with(&memory);
        match self.outstanding.iter().rposition(conflicts) {
            Some(last) => self.wait_for(gpu, last),
            None => Ok(()),
        }
    }

    /// Makes the compute stream wait for all of the communication stream.
    pub(super) fn rejoin(&mut self, gpu: &Gpu) -> Result<()> {
        self.overlap = false;
        match self.outstanding.len() {
            0 => Ok(()),
            count => self.wait_for(gpu, count - 1),
        }
    }

    /// Makes the compute stream wait for an outstanding node, and so for all before it.
    fn wait_for(&mut self, gpu: &Gpu, last: usize) -> Result<()> {
        let model = self.stamp(gpu, Lane::Model)?;
        self.span(self.outstanding[last].measured.zip(model).map(|(end, model)| Span::Wait(end, model)));
        gpu.stream.wait(&self.ends[last])?;
        self.outstanding.drain(..=last);
        // The events of the remaining nodes keep their order.
        self.ends.rotate_left(last + 1);
        Ok(())
    }

    /// Starts measuring the sections with this joint name.
    pub(super) fn begin(&mut self, name: &str, inside_graph: bool) {
        let recorded = self.known.remove(name).unwrap_or_default();
        self.measuring = Some(RecordedEvents { inside_graph, events: recorded.events, ..Default::default() });
    }

    /// Ends measuring the sections with this joint name, which have all been issued.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub(super) fn end(&mut self, gpu: &Gpu, name: &str, event_set: usize) -> Result<()> {
        let Some(recorded) = self.measuring.take() else { return Ok(()) };
        for lane in [Lane::Model, Lane::Collectives] {
            if recorded.beside[lane as usize] {
                gpu.join_events(lane)?;
            }
        }
        if !recorded.spans.is_empty() {
            self.known.insert(name.to_owned(), recorded);
            self.note_launch(name, event_set);
        }
        Ok(())
    }

    /// Notes that the sections with this joint name were launched again.
    pub(super) fn note_launch(&mut self, name: &str, event_set: usize) {
        if self.known.contains_key(name) && self.last.get(&event_set).is_none_or(|last| last != name) {
            self.last.insert(event_set, name.to_owned());
        }
    }

    /// Returns the time of the collectives in the last sections that used an event set. `None` if none were
    /// measured, or if the device is already recording the events again.
    pub(super) fn times(&self, event_set: usize) -> Option<CommunicationTime> {
        let recorded = self.known.get(self.last.get(&event_set)?)?;
        let since = |from: usize, to: usize| recorded.events[to].since(&recorded.events[from]).ok();
        summed(&recorded.spans, since)
    }

    /// Records the next event after a stream's queued work and returns its index; `None` if nothing is
    /// measured.
    fn stamp(&mut self, gpu: &Gpu, lane: Lane) -> Result<Option<usize>> {
        let Some(recorded) = &mut self.measuring else { return Ok(None) };
        let at = recorded.used;
        if at == recorded.events.len() {
            recorded.events.push(gpu.event()?);
        }
        gpu.record_beside(lane, &recorded.events[at], recorded.inside_graph)?;
        recorded.beside[lane as usize] = true;
        recorded.used += 1;
        Ok(Some(at))
    }

    /// Notes what the time between two events means.
    fn span(&mut self, span: Option<Span>) {
        if let (Some(recorded), Some(span)) = (&mut self.measuring, span) {
            recorded.spans.push(span);
        }
    }
}

/// Adds up spans; `since` returns the milliseconds between two events.
fn summed(spans: &[Span], since: impl Fn(usize, usize) -> Option<f32>) -> Option<CommunicationTime> {
    let (mut total, mut exposed) = (0.0, 0.0);
    for span in spans {
        match *span {
            Span::Serial(begin, end) => {
                // A negative time means that the next step has begun to record the events again.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_collectives_are_exposed_only_where_the_model_waits() {
        // Times of the events in milliseconds.
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
        let mut exchange = CollectiveIssuer::default();
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
