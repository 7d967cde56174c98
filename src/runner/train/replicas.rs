//! Compares the parameters of all ranks bit for bit.
//!
//! Ranks have the same initial parameters, add the same gradients in the same order and apply the same
//! update. Their parameters therefore never differ unless memory, a link or a program is wrong. Ranks compare
//! fingerprints of each master, 16 bytes per rank.

use crate::device::communicator::CollectiveResult;
use crate::device::{DType, Elem};
use crate::error::{Error, Result};
use crate::exec::{Engine, Section};
use crate::ir::{FlatBuffer, SlotName, State};
use crate::ranks::named_ranks;
use std::collections::BTreeMap;

/// Size of a fingerprint in bytes.
const BYTES: usize = 16;

/// Computes the fingerprints of this rank's parameters and compares them with the fingerprints of all ranks.
///
/// # Errors
/// If a rank is lost, or parameters differ; this error is the same on every rank. Also if a copy differs from
/// its rounded master. Only the owner of the master sees that, and the others wait until it aborts the run.
pub(super) fn check(engine: &mut Engine, section: &Section, step: u64) -> Result<()> {
    if let Some(name) = first_stale_copy(engine)? {
        return Err(Error::failed(format!(
            "{name} on rank {}, which owns its master, is not the rounded master after step {step}: memory or a device \
             produced wrong bits, or xrun has a bug. `xrun resume` continues from the last checkpoint",
            engine.comm.rank()
        )));
    }
    engine.run(section)?;
    let mine = engine.state.read::<u8>(engine.state.slot(SlotName::Fingerprints)?)?.into_owned();
    let all = engine.comm.gather(&format!("the comparison of replicas after step {step}"), mine)?;
    match first_difference(engine.state.layout(), &all) {
        None => Ok(()),
        Some(difference) => Err(Error::failed(format!(
            "{difference} after step {step}: replicas have drifted apart. Memory, a GPU or a link produced wrong \
             bits, or xrun has a bug. `xrun resume` continues from the last checkpoint, where they were equal; if the \
             same rank drifts again, exclude its device; parallelism.check_interval = 1 finds the first such step"
        ))),
    }
}

/// Returns the first parameter whose copy, which ops read, does not match this rank's master. `None` if all
/// match, or if a rank has all masters.
fn first_stale_copy(engine: &Engine) -> Result<Option<String>> {
    let (state, layout) = (&engine.state, engine.state.layout());
    let Some(shards) = layout.master_shards() else {
        return Ok(None);
    };
    let masters = state.slot(FlatBuffer::Params)?;
    for param in &layout.params {
        let dtype = layout.get(param.read).spec.dtype;
        for range in shards.within(param.flat()).filter(|range| range.rank == engine.comm.rank()) {
            let read = |slot, first: usize, dtype: DType| {
                state.read_bytes(slot, first * dtype.size(), range.len * dtype.size())
            };
            let own = read(masters, range.offset, DType::F32)?;
            let copy = read(param.read, range.start - param.start, dtype)?;
            let alike = match dtype {
                DType::Bf16 => {
                    let masters = own.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
                    let rounded = masters.map(|master| <half::bf16 as Elem>::down(master).to_ne_bytes());
                    rounded.eq(copy.as_chunks::<2>().0.iter().copied())
                }
                _ => own == copy,
            };
            if !alike {
                return Ok(Some(param.name.clone()));
            }
        }
    }
    Ok(None)
}

/// Describes the first parameter that differs between ranks, if any.
fn first_difference(layout: &State, all: &CollectiveResult) -> Option<String> {
    let parts: Vec<&[u8]> = all.parts().collect();
    let of = |rank: usize, row: usize| parts[rank].get(row * BYTES..(row + 1) * BYTES);
    let mut differing =
        (0..layout.params.len()).filter(|&row| (1..parts.len()).any(|rank| of(rank, row) != of(0, row)));
    let first = differing.next()?;
    let more = match differing.count() {
        0 => String::new(),
        1 => " (and one more tensor)".to_owned(),
        more => format!(" (and {more} more tensors)"),
    };
    let mut alike: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for rank in 0..parts.len() {
        alike.entry(of(rank, first)).or_default().push(rank);
    }
    let mut groups: Vec<Vec<usize>> = alike.into_values().collect();
    groups.sort_by_key(|ranks| (std::cmp::Reverse(ranks.len()), ranks[0]));
    let name = &layout.params[first].name;
    // If most ranks agree, the others are wrong; otherwise the wrong ranks are unknown.
    Some(if 2 * groups[0].len() > parts.len() {
        let mut blamed = groups[1..].concat();
        blamed.sort_unstable();
        format!("{name}{more} differs on {} from {}", named_ranks(&blamed), named_ranks(&groups[0]))
    } else {
        let groups: Vec<String> = groups.iter().map(|ranks| named_ranks(ranks)).collect();
        format!("{name}{more} differs between {}", groups.join(" and "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DType;
    use crate::ir::ParamRequest;
    use crate::ir::{Init, Precision, Role, StateBuilder, UpdateOverride};

    /// Returns the error for these fingerprints: one number per parameter for each rank.
    fn difference(ranks: &[[u8; 3]]) -> Option<String> {
        let requests = ["head", "blocks.0.qkv", "embedding"].map(|name| ParamRequest {
            name: name.to_owned(),
            shape: vec![1],
            alloc: vec![1],
            init: Init::Constant(1.0),
            role: Role::Vector,
            update: UpdateOverride::default(),
            stacked: Vec::new(),
            block: None,
        });
        let state = StateBuilder::for_inference(Precision::for_act_dtype(DType::F32), &requests).finish();
        let bytes = |numbers: &[u8; 3]| numbers.iter().flat_map(|&n| [n; BYTES]).collect();
        first_difference(&state, &CollectiveResult::Bytes(ranks.iter().map(bytes).collect()))
    }

    #[test]
    fn the_minority_is_to_blame() {
        let says = |ranks: &[[u8; 3]]| difference(ranks).unwrap_or_default();
        assert_eq!(difference(&[[1, 2, 3]; 4]), None);
        assert_eq!(says(&[[1, 2, 3], [1, 2, 4]]), "embedding differs between rank 0 and rank 1");
        assert_eq!(
            says(&[[1, 2, 3], [1, 9, 3], [1, 2, 3]]),
            "blocks.0.qkv differs on rank 1 from ranks 0, 2"
        );
        assert_eq!(
            says(&[[7, 2, 4], [1, 2, 3], [1, 2, 3]]),
            "head (and one more tensor) differs on rank 0 from ranks 1, 2"
        );
        assert_eq!(
            says(&[[3, 3, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3], [2, 2, 3]]),
            "head (and one more tensor) differs on ranks 0, 4 from ranks 1, 2, 3"
        );
        assert_eq!(
            says(&[[1, 1, 1], [2, 2, 2], [2, 2, 2], [1, 1, 1]]),
            "head (and 2 more tensors) differs between ranks 0, 3 and ranks 1, 2"
        );
        assert_eq!(
            says(&[[1, 2, 3], [2, 2, 3], [3, 2, 3]]),
            "head differs between rank 0 and rank 1 and rank 2"
        );
    }
}
