//! Collectives of a GPU with other ranks: which stream they go to, and what they take.
//!
//! A node whose stream is [`Stream::Communication`] runs beside the model. It begins after what was issued before it, and
//! the model waits for it at the end of the section, so nothing that a later node reads is still under way. Meanwhile the
//! model goes on, and gives memory of the arena to other tensors: so such a node touches the state alone.
//!
//! Events around every collective, and one where the model comes to wait, tell how long they took and how much of that the
//! model felt. A graph records them again at every launch, and from then on the driver tells nothing of the time before: so
//! steps that are under way together take turns with events of their own.

use super::Engine;
use crate::device::communicator::Communicator;
use crate::device::cuda::Gpu;
use crate::device::cuda::driver::Event;
use crate::device::gpu::{DevicePtr, Queue};
use crate::error::{Error, Result};
use crate::ir::{Home, Node, Program, SlotId, Stream};
use std::collections::HashMap;
use std::time::Duration;

/// What the collectives of a step took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Communicated {
    /// All of them, waiting for other ranks inside them included.
    pub total: Duration,
    /// How long the model did nothing because of them.
    pub exposed: Duration,
}

/// The collectives of an engine.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    /// Whether nodes may run beside the model.
    apart: bool,
    /// Whether some do.
    forked: bool,
    /// The events of what is being run; `None` where nothing is measured.
    measuring: Option<Stamps>,
    /// The events of everything that was run, by name.
    known: HashMap<String, Stamps>,
    /// What was run last that had collectives, by turns.
    last: HashMap<usize, String>,
}

/// Events of a piece of work, in the order in which it needs them. Running it again uses them again.
#[derive(Debug, Default)]
struct Stamps {
    inside_graph: bool,
    used: usize,
    events: Vec<Event>,
    /// What the events mean, as indices.
    spans: Vec<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// A collective in the model's own stream: the model does nothing else.
    InModel(usize, usize),
    /// A collective beside it.
    Beside(usize, usize),
    /// Where the model comes to wait for the end of the last collective beside it: its end, and the model.
    Wait(usize, usize),
}

impl Exchange {
    /// Whether nodes from here on may run beside the model.
    pub(super) fn apart(&mut self, apart: bool) {
        self.apart = apart;
        self.forked = false;
    }

    /// Puts a collective into the stream that it goes to.
    pub(super) fn put(
        &mut self,
        gpu: &Gpu,
        program: &Program,
        node: &Node,
        put: impl FnOnce(&dyn Queue) -> Result<()>,
    ) -> Result<()> {
        let beside = match node.stream {
            Stream::Communication if self.apart => gpu.fork()?,
            _ => None,
        };
        let Some(beside) = beside else {
            let begin = self.stamp(gpu, |event, inside| gpu.record(event, inside))?;
            put(gpu)?;
            let end = self.stamp(gpu, |event, inside| gpu.record(event, inside))?;
            self.span(begin.zip(end).map(|(begin, end)| Span::InModel(begin, end)));
            return Ok(());
        };
        if !touches_state_alone(program, node) {
            return Err(Error::failed(format!("{} beside the model touches the arena", node.op.name())));
        }
        self.forked = true;
        let begin = self.stamp(gpu, |event, inside| beside.record(event, inside))?;
        put(&beside)?;
        let end = self.stamp(gpu, |event, inside| beside.record(event, inside))?;
        self.span(begin.zip(end).map(|(begin, end)| Span::Beside(begin, end)));
        Ok(())
    }

    /// Lets the model's stream go on after what runs beside it.
    pub(super) fn rejoin(&mut self, gpu: &Gpu) -> Result<()> {
        self.apart = false;
        if !std::mem::take(&mut self.forked) {
            return Ok(());
        }
        let model = self.stamp(gpu, |event, inside| gpu.record(event, inside))?;
        let spans = self.measuring.as_ref().map(|stamps| stamps.spans.as_slice()).unwrap_or_default();
        let last = spans.iter().rev().find_map(|span| match span {
            Span::Beside(_, end) => Some(*end),
            _ => None,
        });
        self.span(last.zip(model).map(|(end, model)| Span::Wait(end, model)));
        gpu.rejoin()
    }

    /// From here on, work of this name is measured.
    pub(super) fn begin(&mut self, name: &str, inside_graph: bool) {
        let stamps = self.known.remove(name).unwrap_or_default();
        self.measuring = Some(Stamps { inside_graph, used: 0, events: stamps.events, spans: Vec::new() });
    }

    /// The work of this name was issued.
    pub(super) fn end(&mut self, name: &str, turn: usize) {
        let Some(stamps) = self.measuring.take().filter(|stamps| !stamps.spans.is_empty()) else { return };
        self.known.insert(name.to_owned(), stamps);
        self.ran_again(name, turn);
    }

    /// The work of this name was launched again.
    pub(super) fn ran_again(&mut self, name: &str, turn: usize) {
        if self.known.contains_key(name) && self.last.get(&turn).is_none_or(|last| last != name) {
            self.last.insert(turn, name.to_owned());
        }
    }

    /// Records the next event; `None` where nothing is measured.
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

    fn span(&mut self, span: Option<Span>) {
        if let (Some(stamps), Some(span)) = (&mut self.measuring, span) {
            stamps.spans.push(span);
        }
    }
}

impl Engine {
    /// Replaces a tensor of the state by that of rank 0, from GPU to GPU; false on the CPU, where nothing is done.
    ///
    /// # Errors
    /// When a rank is lost, or NCCL refuses.
    pub fn broadcast_from_rank_0(&self, slot: SlotId) -> Result<bool> {
        let Some(gpu) = self.gpu() else { return Ok(false) };
        let bytes = self.state.layout().get(slot).spec.bytes();
        gpu.broadcast_from_rank_0(self.state.address(slot).addr() as DevicePtr, bytes)?;
        Ok(true)
    }

    /// What the collectives of the last step of a turn took; `None` for a rank alone and on the CPU, and where the device is
    /// already at those of the turn's next step.
    pub fn communication(&self, turn: usize) -> Option<Communicated> {
        let stamps = self.exchange.known.get(self.exchange.last.get(&turn)?)?;
        let since = |from: usize, to: usize| stamps.events[to].since(&stamps.events[from]).ok();
        summed(&stamps.spans, since)
    }
}

/// Adds up spans; `since` gives milliseconds between two events.
fn summed(spans: &[Span], since: impl Fn(usize, usize) -> Option<f32>) -> Option<Communicated> {
    let (mut total, mut exposed) = (0.0, 0.0);
    for span in spans {
        match *span {
            Span::InModel(begin, end) => {
                // Of events in order: a negative time says that the next step has begun to record them again.
                let took = since(begin, end).filter(|took| *took >= 0.0)?;
                total += took;
                exposed += took;
            }
            Span::Beside(begin, end) => total += since(begin, end).filter(|took| *took >= 0.0)?,
            Span::Wait(end, model) => exposed += since(model, end)?.max(0.0),
        }
    }
    let duration = |milliseconds: f32| Duration::from_secs_f64(f64::from(milliseconds) / 1e3);
    Some(Communicated { total: duration(total), exposed: duration(exposed) })
}

/// Whether a node reads and writes nothing that the memory plan places.
fn touches_state_alone(program: &Program, node: &Node) -> bool {
    let in_state = |id| matches!(program.tensor(program.base(id)).home, Home::State(_));
    node.inputs.iter().chain(&node.outputs).all(|&id| in_state(id))
}

/// Refuses an engine on a GPU that has not met the ranks it would exchange with: its sums would be its own.
pub(super) fn check_met(gpu: &Gpu, comm: &dyn Communicator) -> Result<()> {
    let met = gpu.nccl().map_or((0, 1), |nccl| (nccl.rank(), nccl.world()));
    if met == (comm.rank(), comm.world()) {
        return Ok(());
    }
    Err(Error::failed(format!(
        "rank {} of {} would run on a GPU that met the others as rank {} of {}",
        comm.rank(),
        comm.world(),
        met.0,
        met.1
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_beside_the_model_is_felt_only_where_the_model_waits() {
        // Milliseconds at which events happened.
        let at = [0.0, 2.0, 5.0, 9.0, 8.0, 10.0, 10.5];
        let since = |from: usize, to: usize| Some(at[to] - at[from]);
        let beside = [Span::Beside(0, 1), Span::Beside(2, 3), Span::Wait(3, 4)];
        let ms = |n| Duration::from_micros(n);
        let found = summed(&beside, since).unwrap();
        assert_eq!(found, Communicated { total: ms(6000), exposed: ms(1000) });
        let found = summed(&[&beside[..], &[Span::InModel(5, 6)]].concat(), since).unwrap();
        assert_eq!(found, Communicated { total: ms(6500), exposed: ms(1500) });
        let hidden = summed(&[Span::Beside(0, 1), Span::Wait(1, 4)], since).unwrap();
        assert_eq!(hidden, Communicated { total: ms(2000), exposed: Duration::ZERO });
    }

    #[test]
    fn every_turn_has_its_own_last_work() {
        let mut exchange = Exchange::default();
        for name in ["step 0", "step 1", "first 1"] {
            exchange.known.insert(name.to_owned(), Stamps::default());
        }
        exchange.ran_again("step 0", 0);
        exchange.ran_again("first 1", 1);
        exchange.ran_again("step 1", 1);
        exchange.ran_again("without collectives 0", 0);
        assert_eq!((&*exchange.last[&0], &*exchange.last[&1]), ("step 0", "step 1"));
    }

    #[test]
    fn times_of_two_steps_are_not_mixed() {
        assert_eq!(summed(&[Span::Beside(1, 0)], |from, to| Some(to as f32 - from as f32)), None);
        assert_eq!(summed(&[Span::InModel(0, 1)], |_, _| None), None);
    }
}
