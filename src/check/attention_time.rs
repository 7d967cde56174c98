//! Times of attention alone, as a kernel's author compares them with other libraries': inputs in turn, so
//! that they come from memory and not from the L2 cache, and all calls in one CUDA graph.

use super::numbers::near_normal;
use crate::device::communicator::SingleRank;
use crate::device::cpu::Pool;
use crate::device::cuda::Gpu;
use crate::device::{DType, Device};
use crate::error::{Error, Result};
use crate::exec::{Engine, Section, prepare};
use crate::ir::{Builder, Destination, Mode, Precision, Spec, State, StateBuilder, TensorId};
use crate::ops::attention::{Attention, FlashAttention, FlashAttentionGrad, Heads};
use crate::ops::qk_norm_rope::{QkNorm, QkNormRope, QkNormRopeGrad};
use crate::ops::rotary::Rotary;
use crate::policy::Placement;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that the inputs in turn take together, at least: several times any L2 cache.
const TURNS_BYTES: usize = 512 << 20;

/// Most inputs in turn.
const MOST_TURNS: usize = 32;

/// Runs before those that are timed, of which the first is no graph, and timed ones.
const LAUNCHES: (usize, usize) = (3, 10);

/// The dimensions of an attention over causal sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Tokens of a sequence.
    pub seq_len: usize,
    /// Query heads, key heads and the width of a head.
    pub heads: Heads,
}

impl FromStr for AttentionShape {
    type Err = Error;

    /// Reads `batch,tokens,query heads,key heads,width of a head`.
    fn from_str(text: &str) -> Result<Self> {
        let numbers: Option<Vec<usize>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
        let wrong = || {
            Error::usage(format!(
                "{text:?} is no shape of attention; write batch,tokens,heads,kv_heads,head_dim, \
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

/// Mean times of one attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionTime {
    /// The forward.
    pub forward: Duration,
    /// The backward.
    pub backward: Duration,
}

/// Times attention alone in bf16, or with the norm and rotation of queries and keys and their gradients.
///
/// # Errors
/// When it does not fit into memory, or the driver reports an error.
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
        let (start, end) = (gpu.event()?, gpu.event()?);
        gpu.record(&start, false)?;
        for _ in 0..LAUNCHES.1 {
            engine.run_all(&[section], 0)?;
        }
        gpu.record(&end, false)?;
        end.wait()?;
        let milliseconds = f64::from(end.since(&start)?) / (LAUNCHES.1 * programs.turns) as f64;
        Ok(Duration::from_secs_f64(milliseconds / 1e3))
    };
    Ok(AttentionTime { forward: time(&programs.forward)?, backward: time(&programs.backward)? })
}

/// Forward and backward of every input in turn, over one state.
struct Programs {
    state: Arc<State>,
    turns: usize,
    forward: Section,
    backward: Section,
}

impl Programs {
    fn record(shape: AttentionShape, with_norm: bool) -> Result<Self> {
        let AttentionShape { batch, seq_len, heads } = shape;
        let (rows, precision) = (batch * seq_len, Precision::for_act_dtype(DType::Bf16));
        let packed = Spec::new([rows, heads.width()], precision.act_dtype);
        let o = Spec::new([rows, heads.query * heads.dim], precision.act_dtype);
        let turns = TURNS_BYTES.div_ceil(packed.bytes()).clamp(2, MOST_TURNS);
        let mut layout = StateBuilder::empty(precision);
        let weight = Spec::new([heads.dim], precision.master);
        let mut shared = vec![("positions", Spec::new([rows], DType::U32))];
        shared.extend(["wq", "wk", "dwq", "dwk"].map(|name| (name, weight.clone())));
        layout.group("shared", &shared);
        let groups: Vec<String> = (0..turns).map(|turn| format!("turn{turn}")).collect();
        for group in &groups {
            layout.group(
                group,
                &[
                    ("qkv", packed.clone()),
                    ("packed", packed.clone()),
                    ("o", o.clone()),
                    ("lse", Spec::new([rows, heads.query], precision.master)),
                    ("do", o.clone()),
                    ("d_packed", packed.clone()),
                    ("d_qkv", packed.clone()),
                ],
            );
        }
        let state = Arc::new(layout.finish());
        let attention = Attention::causal(heads, seq_len);
        let norm = QkNormRope {
            norm: QkNorm { heads, eps: 1e-6, weighted: true },
            rotary: Rotary::of_whole_heads(heads.dim, 10_000.0),
            rotates_first: false,
        };
        let mut forward = Builder::new("forward", Arc::clone(&state));
        let mut backward = Builder::new("backward", Arc::clone(&state));
        for group in &groups {
            let b = &mut forward;
            let of = |b: &mut Builder, name: &str| b.state(&format!("{group}.{name}"));
            let into = |id| Destination::Into(id, Mode::Write);
            let norm_inputs = |b: &mut Builder| -> Result<Vec<TensorId>> {
                let shared = ["wq", "wk", "positions"].map(|name| format!("shared.{name}"));
                let names = [format!("{group}.qkv")].into_iter().chain(shared);
                names.map(|name| b.state(&name)).collect()
            };
            let from = of(b, if with_norm { "packed" } else { "qkv" })?;
            if with_norm {
                let inputs = norm_inputs(b)?;
                b.emit_into("packed", Arc::new(norm), &inputs, &[into(from)])?;
            }
            let outputs = [into(of(b, "o")?), into(of(b, "lse")?)];
            b.emit_into("o", Arc::new(FlashAttention(attention)), &[from], &outputs)?;

            let b = &mut backward;
            let from = of(b, if with_norm { "packed" } else { "qkv" })?;
            let inputs = [from, of(b, "o")?, of(b, "lse")?, of(b, "do")?];
            let d_packed = of(b, "d_packed")?;
            b.emit_into(
                "d_packed",
                Arc::new(FlashAttentionGrad(attention)),
                &inputs,
                &[into(d_packed), Destination::New],
            )?;
            if with_norm {
                let inputs = [norm_inputs(b)?, vec![d_packed]].concat();
                let outputs = [
                    into(of(b, "d_qkv")?),
                    into(b.state("shared.dwq")?),
                    into(b.state("shared.dwk")?),
                    Destination::New,
                ];
                b.emit_into("d_qkv", Arc::new(QkNormRopeGrad(norm)), &inputs, &outputs)?;
            }
        }
        let (forward, backward) = (Section::new(forward.finish()), Section::new(backward.finish()));
        Ok(Self { state, turns, forward, backward })
    }

    /// Fills inputs with random numbers: products of zeros take less power.
    fn fill(&self, engine: &mut Engine) -> Result<()> {
        let number = |at| half::bf16::from_f64(near_normal("attention", 0, at)).to_bits();
        let pattern: Vec<u16> = (0..1 << 16).map(number).collect();
        for turn in 0..self.turns {
            for name in ["qkv", "packed", "do"] {
                let slot = engine.state.slot(&format!("turn{turn}.{name}"))?;
                let count = self.state.get(slot).spec.elements();
                let numbers: Vec<u16> = pattern.iter().copied().cycle().skip(turn).take(count).collect();
                engine.state.write(slot, &numbers)?;
            }
        }
        for name in ["wq", "wk"] {
            let slot = engine.state.slot(&format!("shared.{name}"))?;
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

    /// The programs hold what is timed, and run: here on the CPU.
    #[test]
    fn forward_and_backward_run_for_every_input() {
        let shape = AttentionShape { batch: 1, seq_len: 8, heads: Heads { query: 2, kv: 1, dim: 4 } };
        for with_norm in [false, true] {
            let programs = Programs::record(shape, with_norm).unwrap();
            assert_eq!(programs.turns, MOST_TURNS);
            let each = if with_norm { 2 } else { 1 };
            for section in [&programs.forward, &programs.backward] {
                assert_eq!(section.program.nodes.len(), each * MOST_TURNS);
            }
            let pool = Arc::new(Pool::new(1).unwrap());
            let arena = programs.forward.memory.arena_bytes.max(programs.backward.memory.arena_bytes);
            let mut engine =
                Engine::new(pool, &programs.state, Arc::new(SingleRank), Placement::Arena, arena, true)
                    .unwrap();
            programs.fill(&mut engine).unwrap();
            engine.run(&programs.forward).unwrap();
            engine.run(&programs.backward).unwrap();
            for turn in [0, MOST_TURNS - 1] {
                let name = if with_norm { "d_qkv" } else { "d_packed" };
                let slot = engine.state.slot(&format!("turn{turn}.{name}")).unwrap();
                let values = engine.state.values(slot).unwrap();
                assert!(values.iter().all(|v| v.is_finite()) && values.iter().any(|v| *v != 0.0));
            }
        }
    }
}
