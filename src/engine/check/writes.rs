//! Writes into the state happen before the program that runs next, however busy the device is.

use super::{Finding, Target};
use crate::device::DType;
use crate::error::Result;
use crate::exec::Section;
use crate::ir::{Builder, Destination, Mode, Precision, Program, SlotId, Spec, State, StateBuilder};
use crate::ops::copy::Copy;
use std::sync::Arc;

/// Sizes of a write in bytes. From pageable memory, CUDA's driver may return before a copy has reached the
/// GPU; it handles copies up to 64 KiB differently from larger ones.
const SIZES: [usize; 6] = [64, 4 << 10, 32 << 10, 64 << 10, 128 << 10, 1 << 20];

/// Number of writes of each size.
const WRITES: u32 = 500;

/// Writes a tensor, immediately copies it in a program, and compares the copy; many times, for tensors of
/// several sizes. Passes a finding for each size to `see`: the fraction of copies that differ from what was
/// written.
///
/// # Errors
/// If memory or a kernel is missing, or `see` fails.
pub fn check_writes(target: &Target, mut see: impl FnMut(&Finding) -> Result<()>) -> Result<()> {
    for bytes in SIZES {
        let wrong = wrong_copies(bytes, target, false)?;
        see(&Finding {
            act_dtype: DType::F32,
            op: "state".to_owned(),
            case: format!("{bytes} bytes"),
            mode: "writes come first",
            error: f64::from(wrong) / f64::from(WRITES),
            bound: 0.0,
        })?;
    }
    Ok(())
}

/// Returns how many of [`WRITES`] copies differ from what was written before them. With `backward`, the
/// program copies in the wrong direction.
fn wrong_copies(bytes: usize, target: &Target, backward: bool) -> Result<u32> {
    let tensor = Spec::new([bytes / DType::F32.size()], DType::F32);
    let mut builder = StateBuilder::empty(Precision::for_act_dtype(DType::F32));
    let [x, y] = builder.group("in", [("x", tensor.clone()), ("y", tensor)]);
    let state = Arc::new(builder.finish());
    let (from, to) = if backward { (y, x) } else { (x, y) };
    let section = Section::new(copy(&state, from, to)?);
    let mut engine = target.engine_for(&section, &state, 1)?;
    let mut wrong = 0;
    for number in 1..=WRITES {
        let written = (number as f32).to_ne_bytes().repeat(bytes / DType::F32.size());
        engine.state.write(x, &written)?;
        engine.run(&section)?;
        wrong += u32::from(engine.state.read::<u8>(y)?[..] != written[..]);
    }
    Ok(wrong)
}

fn copy(state: &Arc<State>, from: SlotId, to: SlotId) -> Result<Program> {
    let mut b = Builder::new("copy", Arc::clone(state));
    let (from, into) = (b.state_slot(from), Destination::Into(b.state_slot(to), Mode::Write));
    b.emit_into("copied", Arc::new(Copy), &[from], &[into])?;
    Ok(b.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_finding_that_holds_on_the_cpu() {
        let mut found = Vec::new();
        check_writes(&Target::Cpu, |finding| {
            found.push((finding.case.clone(), finding.holds()));
            Ok(())
        })
        .unwrap();
        assert_eq!(found.len(), SIZES.len());
        assert!(found.iter().all(|(_, holds)| *holds), "{found:?}");
    }

    #[test]
    fn wrong_copies_are_counted() {
        assert_eq!(wrong_copies(64, &Target::Cpu, true).unwrap(), WRITES);
    }
}
