//! Gathers updated parameters if each rank updates only the ones that it owns.

use super::layout::{self, GatheredPart};
use crate::error::Result;
use crate::ir::{Builder, Destination, FlatBuffer, Mode, OwnedRange, Phase, Program, Shards, State, Stream};
use crate::ops::all_gather::{AllGather, Part};
use crate::plan::Plan;
use std::ops::Range;
use std::sync::Arc;

/// Records the gather of the parts that begin in the range `updated` of the flat buffers, inside the program
/// that updates them. With `wait`, it first waits until no rank reads them any more.
pub(super) fn gather_updated(plan: &Plan, b: &mut Builder, updated: &Range<usize>, wait: bool) -> Result<()> {
    gather(plan, b, wait, |part| updated.contains(&part.start))
}

/// Records the program that gathers all other parts. On a GPU it overlaps with the forward, which waits for
/// the parts that it reads.
pub(super) fn gather_rest(plan: &Plan, state: &Arc<State>) -> Result<Program> {
    let mut b = Builder::new("gather", Arc::clone(state));
    let first = layout::updated_first_from(plan, state);
    gather(plan, &mut b, true, |part| part.start < first)?;
    Ok(b.finish())
}

/// Records the gather of parts of the flat buffers in the order of the forward, starting with the last one.
/// With `wait`, ranks first wait for each other.
fn gather(plan: &Plan, b: &mut Builder, wait: bool, is_due: impl Fn(&GatheredPart) -> bool) -> Result<()> {
    let state = Arc::clone(&b.program.state);
    let Some(shards) = &state.shards else { return Ok(()) };
    b.phase = Phase::Communication;
    b.stream = if plan.execution.overlap { Stream::Communication } else { Stream::Main };
    let parts = layout::gathered_parts(plan, &state);
    for (at, part) in parts.iter().rev().filter(|part| is_due(part)).enumerate() {
        gather_part(b, shards, part, wait && at == 0)?;
    }
    b.stream = Stream::Main;
    Ok(())
}

/// Records the gather of one part: the compute copy and the masters of vectors, or all masters if products
/// read masters.
fn gather_part(b: &mut Builder, shards: &Shards, gathered: &GatheredPart, wait: bool) -> Result<()> {
    let in_place = |r: OwnedRange| {
        let to = r.start - gathered.start;
        Part { rank: r.rank, tensor: 0, to, from: None, len: r.len }
    };
    let flat = gathered.start..gathered.start + gathered.len;
    let mut parts: Vec<Part> = shards.within(flat).map(in_place).collect();
    let (mut inputs, mut outputs) = (Vec::new(), vec![b.state(gathered.slot.clone())?]);
    if let Some(vectors) = &gathered.vectors {
        inputs.push(b.state(FlatBuffer::Params)?);
        outputs.push(b.state(vectors.slot.clone())?);
        for (flat, to) in &vectors.params {
            parts.extend(shards.within(flat.clone()).map(|r| {
                let to = to + r.start - flat.start;
                Part { rank: r.rank, tensor: 1, to, from: Some(r.offset), len: r.len }
            }));
        }
    }
    let like = outputs.iter().map(|&output| b.spec(output).clone()).collect();
    let into: Vec<_> = outputs.iter().map(|&output| Destination::Into(output, Mode::Add)).collect();
    b.emit_into("parameters", Arc::new(AllGather { like, parts, wait }), &inputs, &into)?;
    Ok(())
}
