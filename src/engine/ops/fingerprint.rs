//! A 128-bit hash of a tensor's bits, so that ranks can compare tensors without sending them.

use crate::device::DType;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Op, Precision, Spec};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are hashed together.
const WORD: usize = 8;

/// Words that one task sums on the CPU.
const WORDS_PER_TASK: usize = 16_384;

/// Odd constants, the same as in the kernel file: the step between the keys of neighboring words (2⁶⁴ over
/// the golden ratio), and the multipliers of splitmix64 (Steele, Lea and Flood 2014, variant 13 by Stafford)
/// and of MurmurHash3's finalizer (Appleby).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const SHARED_MULTIPLIER: u64 = 0xbf58_476d_1ce4_e5b9;
const FINAL_MULTIPLIERS: [u64; 2] = [0x94d0_49bb_1331_11eb, 0xc4ce_b9fe_1a85_ec53];

/// `x → fingerprint[4]`: hashes each 64-bit word of the memory of `x` with its index in two ways, and sums
/// both hashes modulo 2⁶⁴. The memory includes padding, is read as little-endian, and is zero-filled at the
/// end. The low half of each sum comes first.
///
/// Both hashes are one-to-one in the word, so a change of one word always changes both sums. Changes of
/// several words go unnoticed with a probability of about 2⁻¹²⁸. Integer sums do not depend on their order,
/// so every device and any number of threads give the same fingerprint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fingerprint;

/// Returns the two hashes of the word at index `at`.
#[inline(always)]
fn word_hashes(word: u64, at: u64) -> [u64; 2] {
    let mut z = word ^ at.wrapping_mul(STEP);
    z = (z ^ z >> 32).wrapping_mul(SHARED_MULTIPLIER);
    z ^= z >> 29;
    FINAL_MULTIPLIERS.map(|own| {
        let z = z.wrapping_mul(own);
        z ^ z >> 32
    })
}

/// Returns the two sums over the words in `bytes`; the first word has index `first`.
#[inline(always)]
fn sums(bytes: &[u8], first: usize) -> [u64; 2] {
    let (words, rest) = bytes.as_chunks::<WORD>();
    let mut last = [0; WORD];
    last[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(last);
    let mut sums = [0u64; 2];
    for (at, word) in (first as u64..).zip(words.iter().chain(&last)) {
        let [a, b] = word_hashes(u64::from_le_bytes(*word), at);
        sums = [sums[0].wrapping_add(a), sums[1].wrapping_add(b)];
    }
    sums
}

impl Op for Fingerprint {
    fn name(&self) -> &'static str {
        "fingerprint"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        if inputs.len() == 1 { Ok(vec![Spec::new([4], DType::U32)]) } else { Err("takes one tensor".into()) }
    }

    fn cost(&self, inputs: &[Spec], _outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, &[])
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let bytes = cx.input_bytes(0);
        let totals = [const { AtomicU64::new(0) }; 2];
        cx.pool.chunks(
            bytes.len(),
            WORDS_PER_TASK * WORD,
            #[inline(always)]
            |start, len| {
                let sums = sums(&bytes[start..start + len], start / WORD);
                for (total, sum) in totals.iter().zip(sums) {
                    total.fetch_add(sum, Ordering::Relaxed);
                }
            },
        );
        for (to, total) in cx.output_u32(0).slice(0, 4).chunks_exact_mut(2).zip(totals) {
            let total = total.into_inner();
            to.copy_from_slice(&[total as u32, (total >> 32) as u32]);
        }
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        const THREADS: usize = 256;
        /// 16-byte loads in flight per thread.
        const BATCH: usize = 4;
        const BYTES_PER_BLOCK: usize = THREADS * BATCH * 16;
        /// Blocks that fill an SM.
        const BLOCKS_PER_SM: usize = 4;
        let bytes = cx.input_spec(0).bytes();
        cx.queue.fill(cx.output(0), 0, cx.output_spec(0).bytes())?;
        let max_blocks = BLOCKS_PER_SM * cx.queue.properties().sm_count;
        let grid = Grid::new(bytes.div_ceil(BYTES_PER_BLOCK).clamp(1, max_blocks), THREADS as u32);
        let args = [cx.input(0).into(), cx.output(0).into(), Arg::U64(bytes as u64)];
        let kernel = Kernel::new("fingerprint", "fingerprint").with("THREADS", THREADS).with("BATCH", BATCH);
        cx.queue.launch(kernel, grid, &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |name: &str, spec: Spec, fill: Fill| {
            let of = spec.clone();
            let reference = move |inputs: &[Array]| vec![reference(&of, &inputs[0])];
            Case::new(name, Fingerprint, vec![(spec, fill)], reference).without_gradient()
        };
        let (normal, act_dtype) = (Fill::Normal(0.0, 1.0), precision.act_dtype);
        Cases::Own(vec![
            case("one", Spec::new([1], act_dtype), normal.clone()),
            case("half a word at the end", Spec::new([4099], act_dtype), normal.clone()),
            case("zeros of both signs", Spec::new([3, 5], act_dtype), Fill::Values(vec![0.0, -0.0])),
            case("padded", Spec::padded([30, 17], [64, 24], act_dtype), normal.clone()),
            case("many tasks", Spec::new([70_003], precision.master), normal),
            case("whole numbers", Spec::new([257], DType::U32), Fill::Below(u32::MAX)),
        ])
    }
}

/// Computes the fingerprint by its definition, over the memory of a tensor byte by byte and one sum after the
/// other.
fn reference(spec: &Spec, x: &Array) -> Array {
    let size = spec.dtype.size();
    let mut memory = vec![0; spec.bytes().next_multiple_of(WORD)];
    for (from, at) in spec.logical_indices().enumerate() {
        let value = x.data[from];
        let bytes: &[u8] = match spec.dtype {
            DType::U32 => &(value as u32).to_le_bytes(),
            DType::F64 => &value.to_le_bytes(),
            DType::F32 => &(value as f32).to_le_bytes(),
            DType::Bf16 => &half::bf16::from_f64(value).to_le_bytes(),
            other => unreachable!("no case has {other}"),
        };
        memory[at * size..(at + 1) * size].copy_from_slice(bytes);
    }
    let mut data = Vec::new();
    for which in 0..2 {
        let mut sum = 0u64;
        for at in 0..memory.len() / WORD {
            let word = (0..WORD).map(|byte| u64::from(memory[at * WORD + byte]) << (8 * byte)).sum();
            sum = sum.wrapping_add(word_hashes(word, at as u64)[which]);
        }
        data.extend([f64::from(sum as u32), f64::from((sum >> 32) as u32)]);
    }
    Array { shape: vec![4], data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn fingerprint(values: &[f32]) -> [u64; 2] {
        sums(bytemuck::cast_slice(values), 0)
    }

    proptest! {
        #[test]
        fn every_change_alters_both_sums(
            values in prop::collection::vec(prop_oneof![Just(0.0f32), Just(1.0), any::<f32>()], 2..40),
            (at, other, bit) in (0usize..40, 0usize..40, 0u32..32),
        ) {
            let (at, other) = (at % values.len(), other % values.len());
            let before = fingerprint(&values);
            let changed = |change: &dyn Fn(&mut Vec<f32>)| {
                let mut changed = values.clone();
                change(&mut changed);
                (fingerprint(&changed), changed)
            };
            let (flipped, _) = changed(&|v| v[at] = f32::from_bits(v[at].to_bits() ^ 1 << bit));
            prop_assert!(flipped[0] != before[0] && flipped[1] != before[1], "a bit");
            let (signed, _) = changed(&|v| v[at] = -v[at]);
            prop_assert!(signed[0] != before[0] && signed[1] != before[1], "a sign, that of a zero too");
            let (swapped, after) = changed(&|v| v.swap(at, other));
            let same = after.iter().zip(&values).all(|(a, b)| a.to_bits() == b.to_bits());
            prop_assert_eq!(swapped == before, same, "two elements");
        }

        #[test]
        fn parts_add_up(words in prop::collection::vec(any::<u64>(), 0..50), cut in 0usize..50) {
            let (bytes, cut) = (bytemuck::cast_slice::<u64, u8>(&words), cut.min(words.len()));
            let (a, b) = (sums(&bytes[..cut * WORD], 0), sums(&bytes[cut * WORD..], cut));
            prop_assert_eq!([a[0].wrapping_add(b[0]), a[1].wrapping_add(b[1])], sums(bytes, 0));
        }
    }

    /// Checks tensors that are mostly zero and differ in one or two elements.
    #[test]
    fn sparse_tensors_do_not_collide() {
        let mut seen = BTreeSet::from([fingerprint(&[0.0; 64])]);
        for at in 0..64 {
            for other in 0..at {
                for value in [1.0, -1.0, f32::from_bits(1), -0.0] {
                    let mut values = [0.0f32; 64];
                    (values[at], values[other]) = (value, value);
                    assert!(seen.insert(fingerprint(&values)), "{at} {other} {value}");
                }
            }
        }
    }
}
