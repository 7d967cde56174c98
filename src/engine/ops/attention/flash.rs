//! Flash attention: no T × T tensor in memory. The backward pass recomputes the probabilities from `lse`.

use super::backward::{Tensors, backward};
use super::forward::forward;
use super::gpu;
use super::reference::AttentionCase;
use super::unfused::{Inputs, record};
use super::{Attention, Mask};
use crate::dispatch_float;
use crate::error::{Error, Result};
use crate::ir::{Builder, Case, Cases, Cost, CpuNode, GpuNode, Op, Precision, Spec, TensorId, Vjp};
use crate::ops::attention_sink::{AttentionSinkGrad, add_sinks};

/// `(packed [N, (H+2·KV)·dim], [spans [N·2] u32], [sequences [B] u32, step [1] u32], [sinks [H]])
/// → (o [N, H·dim], lse [N, H] in the accumulator format)`.
///
/// `spans` is an input unless the [`Mask`] is causal (with branches, it has four numbers per row), the
/// counters with dropout. `lse` is the logarithm of the sum of exponentials of the scaled scores and the
/// sink, before dropout; only the backward pass reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashAttention(pub Attention);

/// `(packed, o, lse, do [N, H·dim], then the other inputs of the forward pass) → (d_packed, scratch)`. Sinks
/// are no input: `o` and `lse` have all that this gradient needs of them.
///
/// Only GPUs use the scratch. It holds one number per row and head, `Σ do∘o`, which the pass over queries
/// leaves for the pass over keys. If a GPU may compute both gradients in one pass for these heads, it holds
/// what that pass needs, mostly the fp32 sums of the queries' gradient. Its size is the same on every device,
/// because the program is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashAttentionGrad(pub Attention);

impl Op for FlashAttention {
    fn name(&self) -> &'static str {
        "flash_attention"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let Some((packed, extras)) = inputs.split_first() else { return Err("takes packed rows".into()) };
        self.0.check(packed, extras)?;
        let (n, heads) = (packed.shape[0], self.0.heads);
        Ok(vec![
            Spec::new([n, heads.query * heads.dim], packed.dtype),
            Spec::new([n, heads.query], packed.dtype.accumulator()),
        ])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        if self.0.mask == Mask::Branches {
            return Err(Error::failed(format!("attention of branches ({}) has no gradient", v.scope())));
        }
        let mut inputs = vec![v.input(0), v.output(0), v.output(1), v.output_grad(0)?];
        let sinks = v.input_count() - usize::from(self.0.sinks);
        inputs.extend((1..sinks).map(|i| v.input(i)));
        if self.0.sinks {
            let of_sinks = [&inputs[1..4], &[v.input(sinks)]].concat();
            v.backward(AttentionSinkGrad { heads: self.0.heads }, &of_sinks, &[sinks])?;
        }
        v.backward(FlashAttentionGrad(Attention { sinks: false, ..self.0 }), &inputs, &[0]).map(drop)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, outputs).with_flops(self.0.flops(&inputs[0], 2))
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        if self.0.mask == Mask::Branches || self.0.sinks {
            return Ok(None);
        }
        let (o, lse) = record(b, self.0, Inputs::from_op_inputs(&self.0, inputs))?;
        Ok(Some(vec![o, lse]))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let extras = self.0.extras(cx, 1);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let sinks = self.0.sinks.then(|| cx.input(cx.inputs.len() - 1).slice(0, self.0.heads.query));
            let outputs = (cx.output(0), cx.output(1));
            forward::<E>(&self.0, cx.pool, cx.input(0), (&extras, sinks), outputs);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        gpu::forward(&self.0, cx)?;
        if self.0.sinks {
            add_sinks(cx, self.0.heads, cx.input(cx.inputs.len() - 1))?;
        }
        Ok(())
    }

    fn cases(precision: Precision) -> Cases {
        let problems = [
            AttentionCase::causal(2, 1, (2, 1, 32)),
            AttentionCase::causal(2, 1, (1, 1, 64)).dropped(0.5),
            AttentionCase::causal(3, 17, (2, 2, 32)),
            AttentionCase::causal(2, 17, (8, 1, 64)).dropped(0.1),
            AttentionCase::causal(2, 33, (4, 2, 96)).spans().dropped(0.2),
            AttentionCase::causal(1, 70, (1, 1, 128)).spans(),
            AttentionCase::causal(1, 129, (2, 1, 32)).dropped(0.1),
            AttentionCase::causal(1, 255, (2, 1, 64)),
            AttentionCase::causal(1, 256, (1, 1, 96)).dropped(0.1),
            AttentionCase::causal(1, 300, (2, 1, 32)).spans().dropped(0.1),
            AttentionCase::causal(1, 1000, (1, 1, 32)),
            AttentionCase::causal(1, 1000, (1, 1, 128)).dropped(0.1),
            // Lengths around tiles, groups, and masks, for the kernels without dropout.
            AttentionCase::causal(3, 17, (2, 2, 32)).scaled(0.4),
            AttentionCase::causal(1, 300, (2, 1, 64)).scaled(0.05).capped(1.5).dropped(0.1),
            AttentionCase::causal(1, 257, (2, 2, 128)).scaled(0.2),
            AttentionCase::causal(2, 390, (2, 1, 64)).scaled(0.3).spans(),
            AttentionCase::causal(2, 1, (2, 1, 128)),
            AttentionCase::causal(3, 17, (4, 1, 64)),
            AttentionCase::causal(1, 256, (8, 1, 64)),
            AttentionCase::causal(2, 257, (2, 2, 128)),
            AttentionCase::causal(1, 257, (2, 1, 96)).spans(),
            AttentionCase::causal(1, 300, (1, 1, 128)).with_blind_queries(),
            AttentionCase::causal(2, 390, (2, 1, 64)).with_blind_queries(),
            AttentionCase::causal(1, 1000, (2, 1, 64)).spans(),
            AttentionCase::causal(1, 1000, (1, 1, 96)),
            AttentionCase::causal(1, 2048, (1, 1, 64)),
            // Caps in every kernel: several heads at a time, in one pass, in two passes.
            AttentionCase::causal(2, 17, (4, 2, 64)).capped(1.5),
            AttentionCase::causal(3, 65, (1, 1, 32)).capped(50.0),
            AttentionCase::causal(2, 256, (2, 2, 32)).capped(1.5),
            AttentionCase::causal(1, 129, (2, 1, 32)).capped(2.0).dropped(0.1),
            AttentionCase::causal(1, 300, (2, 1, 64)).capped(1.5),
            AttentionCase::causal(1, 130, (1, 1, 64)).capped(1.5).dropped(0.1),
            AttentionCase::causal(1, 260, (2, 2, 96)).capped(2.0),
            AttentionCase::causal(1, 100, (2, 1, 96)).capped(2.0).spans().dropped(0.1),
            AttentionCase::causal(1, 257, (1, 1, 128)).capped(1.5),
            AttentionCase::causal(1, 390, (2, 1, 128)).capped(1.5).with_blind_queries(),
            AttentionCase::causal(1, 140, (1, 1, 128)).capped(1.5).dropped(0.2),
            // Windows of one key, around tiles, and inside documents.
            AttentionCase::causal(2, 33, (4, 2, 64)).windowed(1),
            AttentionCase::causal(2, 129, (8, 1, 32)).windowed(17).dropped(0.1),
            AttentionCase::causal(1, 300, (2, 1, 128)).windowed(64),
            AttentionCase::causal(1, 390, (2, 1, 64)).windowed(129).capped(1.5),
            AttentionCase::causal(1, 300, (2, 1, 32)).spans().windowed(40).capped(3.0).dropped(0.1),
            AttentionCase::causal(1, 1000, (1, 1, 96)).windowed(128),
            AttentionCase::causal(1, 1000, (2, 1, 64)).spans().windowed(200),
            // Branches that share a prefix, in every forward kernel.
            AttentionCase::causal(2, 33, (4, 2, 32)).branches(),
            AttentionCase::causal(1, 300, (2, 1, 48)).branches(),
            AttentionCase::causal(1, 700, (1, 1, 64)).branches(),
            AttentionCase::causal(2, 260, (2, 1, 96)).branches().capped(1.5),
            AttentionCase::causal(1, 257, (2, 1, 128)).branches(),
            // Heads of 192, in every kernel: around tiles, short and long, with all masks.
            AttentionCase::causal(2, 1, (2, 1, 192)),
            AttentionCase::causal(3, 17, (4, 2, 192)).dropped(0.1),
            AttentionCase::causal(2, 65, (2, 2, 192)).capped(1.5).dropped(0.2),
            AttentionCase::causal(2, 257, (2, 2, 192)),
            AttentionCase::causal(1, 300, (2, 1, 192)).with_blind_queries(),
            AttentionCase::causal(1, 257, (1, 1, 192)).spans().capped(1.5),
            AttentionCase::causal(1, 300, (2, 1, 192)).windowed(64).scaled(0.05),
            AttentionCase::causal(1, 257, (2, 1, 192)).branches(),
            AttentionCase::causal(1, 140, (1, 1, 192)).spans().dropped(0.1),
            // Values with fewer elements, in every kernel.
            AttentionCase::causal(2, 1, (2, 1, 192)).valued(128),
            AttentionCase::causal(3, 17, (4, 2, 192)).valued(128).dropped(0.1),
            AttentionCase::causal(2, 257, (2, 2, 192)).valued(128),
            AttentionCase::causal(1, 300, (2, 1, 192)).valued(128).with_blind_queries(),
            AttentionCase::causal(2, 390, (2, 1, 192)).valued(128).spans(),
            AttentionCase::causal(1, 260, (2, 2, 192)).valued(128).capped(1.5),
            AttentionCase::causal(1, 300, (2, 1, 192)).valued(128).spans().windowed(40).capped(3.0),
            AttentionCase::causal(1, 257, (2, 1, 192)).valued(128).branches().capped(1.5),
            AttentionCase::causal(1, 1000, (1, 1, 192)).valued(128).scaled(0.05),
            AttentionCase::causal(1, 300, (1, 1, 192)).valued(64),
            AttentionCase::causal(1, 300, (2, 1, 128)).valued(64),
            AttentionCase::causal(2, 33, (2, 1, 128)).valued(64).dropped(0.1),
            AttentionCase::causal(2, 33, (2, 1, 256)).valued(128).spans(),
            // Sinks, also of queries that see no key.
            AttentionCase::causal(2, 17, (4, 2, 32)).with_sinks(),
            AttentionCase::causal(1, 300, (2, 1, 64)).with_blind_queries().with_sinks(),
            AttentionCase::causal(1, 257, (3, 1, 96)).capped(1.5).with_sinks(),
            AttentionCase::causal(1, 300, (6, 6, 128)).windowed(64).with_sinks(),
            AttentionCase::causal(2, 33, (2, 1, 48)).dropped(0.1).with_sinks(),
            AttentionCase::causal(2, 33, (4, 2, 64)).branches().with_sinks(),
        ];
        let case = |problem: AttentionCase| {
            let inputs = [vec![problem.packed(precision)], problem.extras(precision)].concat();
            let op = FlashAttention(problem.attention);
            let case =
                Case::new(problem.name(), op, inputs, move |inputs| problem.solve(&inputs[0], &inputs[1..]))
                    .depth(problem.attention.seq_len.max(problem.attention.heads.dim));
            if problem.attention.mask == Mask::Branches { case.without_gradient() } else { case }
        };
        Cases::Own(problems.into_iter().map(case).collect())
    }
}

impl Op for FlashAttentionGrad {
    fn name(&self) -> &'static str {
        "flash_attention_grad"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [packed, o, lse, d_o, extras @ ..] = inputs else {
            return Err("takes packed rows, o, lse and do".into());
        };
        self.0.check(packed, extras)?;
        let (n, heads) = (packed.shape[0], self.0.heads);
        let o_spec = Spec::new([n, heads.query * heads.dim], packed.dtype);
        if *o != o_spec || *d_o != o_spec || *lse != Spec::new([n, heads.query], packed.dtype.accumulator()) {
            return Err(format!("o and do must be {o_spec}, and lse one number per row and head"));
        }
        Ok(vec![packed.clone(), gpu::grad_scratch(&self.0, packed, lse)])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // The scratch is not part of the work.
        Cost::streaming(inputs, &outputs[..1]).with_flops(self.0.flops(&inputs[0], 5))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let extras = self.0.extras(cx, 4);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let tensors = Tensors::<E> {
                packed: cx.input(0),
                o: cx.input(1),
                lse: cx.input(2),
                d_o: cx.input(3),
                d_packed: cx.output(0),
            };
            backward(&self.0, cx.pool, tensors, &extras);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        gpu::backward(&self.0, cx)
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<FlashAttention>()
    }
}
