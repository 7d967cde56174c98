//! Checks attention over sequences that are too long to compare every row with the f64 reference.
//!
//! All sequences of a batch have the same inputs, so they must give the same bits, and so must a second run.
//! In the last sequence, whose elements may have indices above 2³¹, sampled rows are compared with the
//! definition of attention in f64: rows of the output and the gradients, for the last key and value head and
//! the query heads that share it.

mod case;
mod definition;

pub use case::LongCase;

use super::errors::{forward_bound, gradient_bound};
use super::{Finding, Target};
use crate::device::DType;
use crate::error::Result;
use crate::exec::{Section, padded_bytes};
use crate::ir::{
    Builder, Destination, Mode, Op, Precision, Program, SlotId, Spec, State, StateBuilder, Upstream,
};
use crate::ops::attention::{Attention, FlashAttention, Mask};
use crate::passes::differentiate;
use definition::Sequence;
use std::sync::Arc;

/// Checks every long case in one format of activations, and passes each finding to `see`.
///
/// # Errors
/// If a case does not fit into memory or cannot be run, or `see` fails.
pub fn check_long_attention(
    cases: &[LongCase],
    dtype: DType,
    target: &Target,
    mut see: impl FnMut(&Finding) -> Result<()>,
) -> Result<()> {
    for case in cases {
        let found =
            check(case, dtype, target).map_err(|e| e.context(format!("attention {}", case.name())))?;
        found.iter().try_for_each(&mut see)?;
    }
    Ok(())
}

/// Checks one case. Findings on equal bits have the error 0 or 1; the others have errors relative to the size
/// of a row's terms.
fn check(case: &LongCase, dtype: DType, target: &Target) -> Result<Vec<Finding>> {
    let precision = Precision::for_act_dtype(dtype);
    let sequence = Sequence::new(case, dtype);
    let first = run(case, &sequence, precision, target)?;
    let again = run(case, &sequence, precision, target)?;
    let finding = |mode, error, bound| Finding {
        act_dtype: dtype,
        op: FlashAttention(case.attention).name().to_owned(),
        case: case.name(),
        mode,
        error,
        bound,
    };
    let unequal = |equal: bool| f64::from(u8::from(!equal));
    let mut findings = vec![finding("same bits", unequal(first == again), 0.0)];
    if case.batch > 1 {
        findings.push(finding("sequences alike", unequal(first.sequences_are_alike(case)), 0.0));
    }
    // The number of terms in the longest sum: over the keys, or over the columns of a head.
    let depth = case.attention.seq_len.max(case.attention.heads.dim);
    let want = sequence.reference(case);
    let have = first.sampled(case);
    let bounds = [forward_bound(precision, depth), gradient_bound(precision, depth)];
    for (at, (mode, (have, want))) in ["sampled outputs", "sampled dq", "sampled dk", "sampled dv"]
        .into_iter()
        .zip(have.iter().zip(&want))
        .enumerate()
    {
        findings.push(finding(mode, want.error_of(have), bounds[at.min(1)]));
    }
    Ok(findings)
}

/// The bytes of the output, and of the gradient of the packed rows (queries, keys and values side by side).
#[derive(PartialEq)]
struct Stored {
    dtype: DType,
    o: Vec<u8>,
    d_packed: Vec<u8>,
}

impl Stored {
    /// Returns true if all sequences of the batch have the same bits.
    fn sequences_are_alike(&self, case: &LongCase) -> bool {
        [&self.o, &self.d_packed].iter().all(|all| {
            let mut sequences = all.chunks_exact(all.len() / case.batch);
            let first = sequences.next();
            sequences.all(|other| Some(other) == first)
        })
    }

    /// Returns sampled rows of the last sequence: output and dq for every query head that shares the last key
    /// and value head, then dk and dv of that head.
    fn sampled(&self, case: &LongCase) -> [Vec<f64>; 4] {
        let Attention { heads, seq_len, .. } = case.attention;
        let (last, sampled) = (heads.kv - 1, case.sampled_rows());
        let rows = |all: &[u8], width: usize, column: usize| -> Vec<f64> {
            let size = self.dtype.size();
            let at = |t: usize| ((case.rows() - seq_len + t) * width + column) * size;
            let bytes: Vec<u8> =
                sampled.iter().flat_map(|&t| all[at(t)..at(t) + heads.dim * size].to_vec()).collect();
            crate::exec::widened_bytes(self.dtype, &bytes)
        };
        let group = last * heads.group()..heads.query;
        let o_width = heads.query * heads.dim;
        [
            group.clone().flat_map(|h| rows(&self.o, o_width, h * heads.dim)).collect(),
            group.flat_map(|h| rows(&self.d_packed, heads.width(), heads.query_at(h))).collect(),
            rows(&self.d_packed, heads.width(), heads.key_at(last)),
            rows(&self.d_packed, heads.width(), heads.value_at(last)),
        ]
    }
}

/// Runs forward and backward for a batch that repeats one sequence.
fn run(case: &LongCase, sequence: &Sequence, precision: Precision, target: &Target) -> Result<Stored> {
    let layout = Layout::new(case, precision);
    let section = Section::new(layout.program(case)?);
    let mut engine = target.engine_for(&section, &layout.state, 3)?;
    let dtype = precision.act_dtype;
    for (slot, values) in [(layout.packed, &sequence.packed), (layout.d_o, &sequence.d_o)] {
        let one = padded_bytes(&Spec::new([values.len()], dtype), values);
        engine.state.write(slot, &one.repeat(case.batch))?;
    }
    if let Some(slot) = layout.spans {
        let one: Vec<u32> = (0..case.attention.seq_len)
            .flat_map(|t| [case.visible(t).start as u32, case.visible(t).end as u32])
            .collect();
        engine.state.write(slot, &one.repeat(case.batch))?;
    }
    engine.run(&section)?;
    let read = |slot| -> Result<Vec<u8>> { Ok(engine.state.read::<u8>(slot)?.into_owned()) };
    Ok(Stored { dtype, o: read(layout.o)?, d_packed: read(layout.d_packed)? })
}

/// The state of a case, and its slots.
struct Layout {
    state: Arc<State>,
    packed: SlotId,
    d_packed: SlotId,
    o: SlotId,
    d_o: SlotId,
    /// The first key that each row sees and the end of its keys, for masks that need them.
    spans: Option<SlotId>,
}

impl Layout {
    fn new(case: &LongCase, precision: Precision) -> Self {
        let Attention { heads, mask, .. } = case.attention;
        let wide = Spec::new([case.rows(), heads.width()], precision.act_dtype);
        let o = Spec::new([case.rows(), heads.query * heads.dim], precision.act_dtype);
        let spans = Spec::new([2 * case.rows()], DType::U32);
        let mut builder = StateBuilder::empty(precision);
        let tensors =
            [("packed", wide.clone()), ("d_packed", wide), ("o", o.clone()), ("do", o), ("spans", spans)];
        let [packed, d_packed, o, d_o, spans] = builder.group("in", tensors);
        builder.watch(packed, d_packed);
        let spans = (mask == Mask::Spans).then_some(spans);
        Self { state: Arc::new(builder.finish()), packed, d_packed, o, d_o, spans }
    }

    /// Records the attention and its gradient.
    fn program(&self, case: &LongCase) -> Result<Program> {
        let mut b = Builder::new("attention", Arc::clone(&self.state));
        let inputs: Vec<_> =
            [self.packed].into_iter().chain(self.spans).map(|slot| b.state_slot(slot)).collect();
        let into = Destination::Into(b.state_slot(self.o), Mode::Write);
        let op = Arc::new(FlashAttention(case.attention));
        let outputs = b.emit_into("o", op, &inputs, &[into, Destination::New])?;
        let upstream = b.state_slot(self.d_o);
        differentiate(b.finish(), &[(outputs[0], Upstream::Tensor(upstream))], true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(case: LongCase, dtype: DType) -> Vec<Finding> {
        let mut found = Vec::new();
        let see = |finding: &Finding| {
            found.push(finding.clone());
            Ok(())
        };
        check_long_attention(&[case], dtype, &Target::Cpu, see).unwrap();
        found
    }

    #[test]
    fn sampled_rows_of_the_cpu_agree_with_the_definition() {
        for case in [
            LongCase::causal(2, 150, (4, 2, 16)),
            LongCase::causal(2, 150, (4, 2, 16)).windowed(40),
            LongCase::causal(2, 150, (2, 1, 128)).valued(64),
            LongCase::causal(2, 1100, (2, 1, 8)).documents(),
            LongCase::causal(2, 1100, (2, 1, 8)).documents().windowed(100).capped(1.5),
        ] {
            for dtype in [DType::F32, DType::Bf16] {
                let found = findings(case, dtype);
                // Equal bits of two runs, equal sequences, and the four sampled tensors.
                assert_eq!(found.len(), 6, "{found:?}");
                for finding in &found {
                    assert!(finding.holds(), "{finding}");
                }
            }
        }
    }

    #[test]
    fn one_wrong_element_of_a_sampled_row_is_found() {
        let case = LongCase::causal(2, 150, (4, 2, 16));
        let precision = Precision::for_act_dtype(DType::F32);
        let sequence = Sequence::new(&case, DType::F32);
        let want = sequence.reference(&case);
        let stored = || run(&case, &sequence, precision, &Target::Cpu).unwrap();
        let error = |stored: &Stored, tensor: usize| want[tensor].error_of(&stored.sampled(&case)[tensor]);
        let heads = case.attention.heads;
        let row = case.rows() - 150 + case.sampled_rows()[5];
        let (o_width, width) = (heads.query * heads.dim, heads.width());
        for (tensor, at) in [
            (0, row * o_width + heads.query_at(3) + 2),
            (1, row * width + heads.query_at(2)),
            (2, row * width + heads.key_at(1) + 7),
            (3, row * width + heads.value_at(1) + 15),
        ] {
            for wrong in [1.5f32, f32::NAN] {
                let mut stored = stored();
                assert!(error(&stored, tensor) < 1e-5);
                let bytes = if tensor == 0 { &mut stored.o } else { &mut stored.d_packed };
                bytes[4 * at..4 * at + 4].copy_from_slice(&wrong.to_ne_bytes());
                let found = error(&stored, tensor);
                assert!(found.is_nan() == wrong.is_nan() && (wrong.is_nan() || found > 1e-3), "{found}");
                assert!(!stored.sequences_are_alike(&case));
            }
        }
    }

    /// Late rows average many keys, so they are small compared to the first rows. A norm over all rows would
    /// hide an error in them; relative to its own size, each row counts as much as any other.
    #[test]
    fn a_last_row_of_zeros_is_found() {
        let case = LongCase::causal(2, 1100, (2, 1, 8));
        let precision = Precision::for_act_dtype(DType::Bf16);
        let sequence = Sequence::new(&case, DType::Bf16);
        let (want, dim) = (sequence.reference(&case), case.attention.heads.dim);
        let have = run(&case, &sequence, precision, &Target::Cpu).unwrap().sampled(&case);
        for (tensor, (have, want)) in have.iter().zip(&want).enumerate() {
            let bound = gradient_bound(precision, 1100);
            let error = want.error_of(have);
            assert!(error < bound, "tensor {tensor}: {error}");
            let mut cut = have.clone();
            let rows = cut.len() / dim;
            cut[(rows - 1) * dim..].fill(0.0);
            let error = want.error_of(&cut);
            assert!(error > 2.0 * bound, "tensor {tensor}: {error}");
        }
    }
}
