//! Times attention alone, the way kernel authors compare it with other libraries: inputs alternate, so that
//! they come from memory and not from the L2 cache, and all calls are in one CUDA graph.

use super::numbers::Numbers;
use crate::device::communicator::SingleRank;
use crate::device::cpu::Pool;
use crate::device::cuda::Gpu;
use crate::device::{DType, Device};
use crate::error::{Error, Result};
use crate::exec::{Engine, Section, prepare};
use crate::ir::{Builder, Destination, Mode, Precision, SlotId, Spec, State, StateBuilder, TensorId};
use crate::ops::attention::{Attention, FlashAttention, FlashAttentionGrad, Heads};
use crate::ops::qk_norm_rope::{HeadRotation, QkNorm, QkNormRope, QkNormRopeGrad};
use crate::ops::rotary::Rotary;
use crate::policy::Placement;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Smallest total size in bytes of the alternating inputs: several times any L2 cache.
const TURNS_BYTES: usize = 512 << 20;

/// Largest number of alternating inputs.
const MAX_TURNS: usize = 32;

/// Numbers of warm-up runs and of timed runs. The first warm-up run does not use a graph.
const LAUNCHES: (usize, usize) = (3, 10);

/// The dimensions of an attention over causal sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Number of sequences.
    pub batch: usize,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// Query heads, key heads and the width of a head.
    pub heads: Heads,
}

impl FromStr for AttentionShape {
    type Err = Error;

    /// Parses `batch,tokens,query heads,key heads,width of a head`.
    fn from_str(text: &str) -> Result<Self> {
        let numbers: Option<Vec<usize>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
        let wrong = || {
            Error::usage(format!(
                "{text:?} is not an attention shape; write batch,tokens,heads,kv_heads,head_dim, \
                 such as 16,1024,12,12,64"
            ))
        };
        let Some([batch, seq_len, query, kv, dim]) =
            numbers.as_deref().and_then(|n| <[usize; 5]>::try_from(n).ok())
        else {
            return Err(wrong());
        };
        let product = [batch, seq_len, query.saturating_add(2usize.saturating_mul(kv)), dim]
            .into_iter()
            .try_fold(1usize, usize::checked_mul);
        let fits = product.is_some_and(|elements| (1..1 << 34).contains(&elements));
        if !fits || kv == 0 || query == 0 || !query.is_multiple_of(kv) || !dim.is_multiple_of(2) {
            return Err(wrong());
        }
        Ok(Self { batch, seq_len, heads: Heads { query, kv, dim } })
    }
}

impl fmt::Display for AttentionShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Heads { query, kv, dim } = self.heads;
        write!(f, "{},{},{query},{kv},{dim}", self.batch, self.seq_len)
    }
}

/// Mean times of one attention call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionTime {
    /// Time of the forward.
    pub forward: Duration,
    /// Time of the backward.
    pub backward: Duration,
}

/// Times attention in bf16: alone, or together with the norm and rotation of queries and keys and their
/// gradients.
///
/// # Errors
/// If it does not fit into memory, or the driver reports an error.
pub fn time_attention(gpu: &Arc<Gpu>, shape: AttentionShape, with_norm: bool) -> Result<AttentionTime> {
    let device = Device::Cuda(Arc::clone(gpu), Arc::new(Pool::new(1)?));
    let programs = Programs::record(shape, with_norm)?;
    prepare(&device, 0, [&programs.forward, &programs.backward], &|_| {})?;
    let arena = programs.forward.memory.arena_bytes.max(programs.backward.memory.arena_bytes);
    let mut engine =
        Engine::new(device, &programs.state, Arc::new(SingleRank), Placement::Arena, arena, false)?;
    programs.fill(&mut engine)?;
    engine.use_graphs(true);
    let mut time = |section: &Section| -> Result<Duration> {
        for _ in 0..LAUNCHES.0 {
            engine.run_all(&[section], 0)?;
        }
        let launches = || (0..LAUNCHES.1).try_for_each(|_| engine.run_all(&[section], 0));
        let milliseconds = f64::from(gpu.stream.milliseconds(launches)?);
        let milliseconds = milliseconds / (LAUNCHES.1 * programs.turns.len()) as f64;
        Ok(Duration::from_secs_f64(milliseconds / 1e3))
    };
    Ok(AttentionTime { forward: time(&programs.forward)?, backward: time(&programs.backward)? })
}

/// Forward and backward for every alternating input, over one state.
struct Programs {
    state: Arc<State>,
    shared: Shared,
    turns: Vec<Turn>,
    forward: Section,
    backward: Section,
}

/// Tensors read for every input, and the gradients of weights, which every input overwrites.
struct Shared {
    positions: SlotId,
    weights: [SlotId; 2],
    d_weights: [SlotId; 2],
}

/// The tensors of one input.
struct Turn {
    qkv: SlotId,
    packed: SlotId,
    o: SlotId,
    lse: SlotId,
    d_o: SlotId,
    d_packed: SlotId,
    d_qkv: SlotId,
}

/// The ops to time.
struct Ops {
    attention: Attention,
    /// Norm and rotation of queries and keys, if they are timed too.
    norm: Option<QkNormRope>,
}

impl Shared {
    fn lay_out(layout: &mut StateBuilder, rows: usize, dim: usize, precision: Precision) -> Self {
        let weight = Spec::new([dim], precision.master);
        let mut tensors = ["positions", "wq", "wk", "dwq", "dwk"].map(|name| (name, weight.clone()));
        tensors[0].1 = Spec::new([rows], DType::U32);
        let [positions, wq, wk, dwq, dwk] = layout.group("shared", tensors);
        Self { positions, weights: [wq, wk], d_weights: [dwq, dwk] }
    }
}

impl Turn {
    fn lay_out(layout: &mut StateBuilder, turn: usize, packed: &Spec, o: &Spec, lse: &Spec) -> Self {
        let tensors = [
            ("qkv", packed),
            ("packed", packed),
            ("o", o),
            ("lse", lse),
            ("do", o),
            ("d_packed", packed),
            ("d_qkv", packed),
        ];
        let tensors = tensors.map(|(name, spec)| (name, spec.clone()));
        let [qkv, packed, o, lse, d_o, d_packed, d_qkv] = layout.group(&format!("turn{turn}"), tensors);
        Self { qkv, packed, o, lse, d_o, d_packed, d_qkv }
    }

    /// Returns the inputs of the norm.
    fn norm_inputs(&self, b: &mut Builder, shared: &Shared) -> Vec<TensorId> {
        let [wq, wk] = shared.weights;
        [self.qkv, wq, wk, shared.positions].map(|slot| b.state_slot(slot)).to_vec()
    }

    fn record_forward(&self, b: &mut Builder, shared: &Shared, ops: &Ops) -> Result<()> {
        let from = b.state_slot(if ops.norm.is_some() { self.packed } else { self.qkv });
        if let Some(norm) = ops.norm {
            let inputs = self.norm_inputs(b, shared);
            b.emit_into("packed", Arc::new(norm), &inputs, &[into(from)])?;
        }
        let outputs = [self.o, self.lse].map(|slot| into(b.state_slot(slot)));
        b.emit_into("o", Arc::new(FlashAttention(ops.attention)), &[from], &outputs)?;
        Ok(())
    }

    fn record_backward(&self, b: &mut Builder, shared: &Shared, ops: &Ops) -> Result<()> {
        let from = if ops.norm.is_some() { self.packed } else { self.qkv };
        let inputs = [from, self.o, self.lse, self.d_o].map(|slot| b.state_slot(slot));
        let d_packed = b.state_slot(self.d_packed);
        let outputs = [into(d_packed), Destination::New];
        b.emit_into("d_packed", Arc::new(FlashAttentionGrad(ops.attention)), &inputs, &outputs)?;
        if let Some(norm) = ops.norm {
            let inputs = [self.norm_inputs(b, shared), vec![d_packed]].concat();
            let [dwq, dwk] = shared.d_weights;
            let [d_qkv, dwq, dwk] = [self.d_qkv, dwq, dwk].map(|slot| into(b.state_slot(slot)));
            let outputs = [d_qkv, dwq, dwk, Destination::New];
            b.emit_into("d_qkv", Arc::new(QkNormRopeGrad(norm)), &inputs, &outputs)?;
        }
        Ok(())
    }
}

fn into(id: TensorId) -> Destination {
    Destination::Into(id, Mode::Write)
}

impl Programs {
    fn record(shape: AttentionShape, with_norm: bool) -> Result<Self> {
        let AttentionShape { batch, seq_len, heads } = shape;
        let (rows, precision) = (batch * seq_len, Precision::for_act_dtype(DType::Bf16));
        let packed = Spec::new([rows, heads.width()], precision.act_dtype);
        let o = Spec::new([rows, heads.query * heads.dim], precision.act_dtype);
        let lse = Spec::new([rows, heads.query], precision.master);
        let turns = TURNS_BYTES.div_ceil(packed.bytes()).clamp(2, MAX_TURNS);
        let mut layout = StateBuilder::empty(precision);
        let shared = Shared::lay_out(&mut layout, rows, heads.dim, precision);
        let turns: Vec<_> =
            (0..turns).map(|turn| Turn::lay_out(&mut layout, turn, &packed, &o, &lse)).collect();
        let state = Arc::new(layout.finish());
        let norm = QkNormRope {
            values_apart: false,
            norm: QkNorm { heads, eps: 1e-6, weighted: true, weight_offset: 0.0 },
            rotation: Some(HeadRotation {
                rotary: Rotary::with_whole_heads(heads.dim, 10_000.0),
                first: false,
            }),
        };
        let ops = Ops { attention: Attention::causal(heads, seq_len), norm: with_norm.then_some(norm) };
        let mut forward = Builder::new("forward", Arc::clone(&state));
        let mut backward = Builder::new("backward", Arc::clone(&state));
        for turn in &turns {
            turn.record_forward(&mut forward, &shared, &ops)?;
            turn.record_backward(&mut backward, &shared, &ops)?;
        }
        let (forward, backward) = (Section::new(forward.finish()), Section::new(backward.finish()));
        Ok(Self { state, shared, turns, forward, backward })
    }

    /// Fills inputs with random numbers, because products of zeros take less power.
    fn fill(&self, engine: &mut Engine) -> Result<()> {
        let numbers = Numbers::new("attention");
        let number = |at| half::bf16::from_f64(numbers.near_normal(0, at)).to_bits();
        let pattern: Vec<u16> = (0..1 << 16).map(number).collect();
        for (at, turn) in self.turns.iter().enumerate() {
            for slot in [turn.qkv, turn.packed, turn.d_o] {
                let count = self.state.get(slot).spec.elements();
                let numbers: Vec<u16> = pattern.iter().copied().cycle().skip(at).take(count).collect();
                engine.state.write(slot, &numbers)?;
            }
        }
        for slot in self.shared.weights {
            engine.state.write(slot, &vec![1f32; self.state.get(slot).spec.elements()])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_reads_as_it_is_written_and_others_are_refused() {
        let shape: AttentionShape = "16,1024,12,4,64".parse().unwrap();
        assert_eq!(shape.heads, Heads { query: 12, kv: 4, dim: 64 });
        assert_eq!(shape.to_string().parse::<AttentionShape>().unwrap(), shape);
        for wrong in [
            "",
            "16,1024,12,12",
            "16,1024,12,12,64,1",
            "16,1024,12,5,64",
            "16,1024,12,0,64",
            "0,1024,12,12,64",
            "16,-1,12,12,64",
            "16,1024,12,12,63",
            "99999999999,99999999999,12,12,64",
            "16,1024,12,12,NaN",
        ] {
            let error = wrong.parse::<AttentionShape>().unwrap_err();
            assert!(error.message().contains("16,1024,12,12,64"), "{error}");
        }
    }

    /// Checks that the programs contain what is timed, and that they run; here on the CPU.
    #[test]
    fn forward_and_backward_run_for_every_input() {
        let shape = AttentionShape { batch: 1, seq_len: 8, heads: Heads { query: 2, kv: 1, dim: 4 } };
        for with_norm in [false, true] {
            let programs = Programs::record(shape, with_norm).unwrap();
            assert_eq!(programs.turns.len(), MAX_TURNS);
            let each = if with_norm { 2 } else { 1 };
            for section in [&programs.forward, &programs.backward] {
                assert_eq!(section.program.nodes.len(), each * MAX_TURNS);
            }
            let pool = Arc::new(Pool::new(1).unwrap());
            let arena = programs.forward.memory.arena_bytes.max(programs.backward.memory.arena_bytes);
            let mut engine =
                Engine::new(pool, &programs.state, Arc::new(SingleRank), Placement::Arena, arena, true)
                    .unwrap();
            programs.fill(&mut engine).unwrap();
            engine.run(&programs.forward).unwrap();
            engine.run(&programs.backward).unwrap();
            for turn in [&programs.turns[0], &programs.turns[MAX_TURNS - 1]] {
                let slot = if with_norm { turn.d_qkv } else { turn.d_packed };
                let values = engine.state.values(slot).unwrap();
                assert!(values.iter().all(|v| v.is_finite()) && values.iter().any(|v| *v != 0.0));
            }
        }
    }
}
