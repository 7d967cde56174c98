//! Records the forward of a decoder as ops, with one function per part of a block.

mod activations;
mod attention;
mod embedding;
mod feed_forward;
mod head;
mod positions;

use crate::error::Result;
use crate::ir::{BatchSlot, Builder, ControlSlot, GenerationSlot, PromptSlot, SlotName, TensorId};
use crate::model::norm;
use crate::model::purpose::Purpose;
use crate::ops::add::Add;
use crate::ops::add_bias::AddBias;
use crate::ops::attention::Heads;
use crate::ops::dropout::{Dropout, Site};
use crate::ops::linear::Linear;
use crate::plan::Plan;
use crate::policy::NormPlacement;
pub use activations::activations;

/// Records the forward of a plan for a purpose.
pub(super) struct Recording<'a> {
    plan: &'a Plan,
    purpose: Purpose,
    heads: Heads,
    /// The keys that rows see through the attention window, if any block has one.
    windows: Option<TensorId>,
}

/// Places of dropout in a block. Their numbers are used in dropout sites.
#[derive(Clone, Copy, Debug)]
enum DropoutPlace {
    /// The attention probabilities.
    AttentionWeights,
    /// The attention output, before it is added to the residual stream.
    Attention,
    /// The feed-forward output, before it is added to the residual stream.
    FeedForward,
}

/// The tensors that pass from block to block.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The residual stream.
    residual: TensorId,
    /// Input of the next sublayer: the stream after the norm before that sublayer or, with norms after
    /// sublayers, the stream itself.
    normed: TensorId,
}

impl<'a> Recording<'a> {
    /// Creates a recording of a plan, and records the tensors that its blocks share.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn new(plan: &'a Plan, purpose: Purpose, b: &mut Builder) -> Result<Self> {
        let mut recording = Self::for_head(plan, purpose);
        recording.windows = recording.window_spans(b)?;
        Ok(recording)
    }

    /// Creates a recording of a plan's head alone.
    pub(super) fn for_head(plan: &'a Plan, purpose: Purpose) -> Self {
        let m = &plan.model;
        let heads = Heads { query: m.n_heads, kv: m.n_kv_heads, dim: m.head_dim };
        Self { plan, purpose, heads, windows: None }
    }

    /// Records the embedding and the blocks. Returns the final normalized rows.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn trunk(&self, b: &mut Builder) -> Result<TensorId> {
        let m = &self.plan.model;
        let residual = self.embedding(b)?;
        let normed = match m.norm_placement {
            NormPlacement::Post => residual,
            NormPlacement::Pre | NormPlacement::Sandwich => b.scoped("embedding", |b| {
                let first = if m.n_layers > 0 { "blocks.0.attention_norm" } else { "final_norm" };
                norm::record(m, first, b, "normed", residual)
            })?,
        };
        let mut stream = Stream { residual, normed };
        for i in 0..m.n_layers {
            stream = b.in_block(i, format!("blocks.{i}"), |b| self.block(b, i, stream))?;
        }
        Ok(stream.normed)
    }

    /// Records one block.
    fn block(&self, b: &mut Builder, i: usize, Stream { residual, normed }: Stream) -> Result<Stream> {
        let m = &self.plan.model;
        let name = |part: &str| format!("blocks.{i}.{part}");
        let last = i + 1 == m.n_layers;
        let next = if last { "final_norm".to_owned() } else { format!("blocks.{}.attention_norm", i + 1) };
        let add = |b: &mut Builder, norm: &str, output: &str, x, y| -> Result<Stream> {
            let (residual, normed) = norm::record_residual(m, norm, b, output, [x, y])?;
            Ok(Stream { residual, normed })
        };
        match m.norm_placement {
            NormPlacement::Pre if m.parallel_blocks => {
                let attended = self.attention(b, i, normed)?;
                let down = self.feed_forward(b, i, normed)?;
                let both = b.emit1("sublayers", Add, &[attended, down])?;
                add(b, &next, "residual", residual, both)
            }
            NormPlacement::Pre | NormPlacement::Sandwich => {
                let sandwich = m.norm_placement == NormPlacement::Sandwich;
                let mut out = self.attention(b, i, normed)?;
                if sandwich {
                    out = norm::record(m, &name("attention_output_norm"), b, "attention_out_normed", out)?;
                }
                let middle = add(b, &name("ffn_norm"), "residual_attention", residual, out)?;
                let mut down = self.feed_forward(b, i, middle.normed)?;
                if sandwich {
                    down = norm::record(m, &name("ffn_output_norm"), b, "ffn_out_normed", down)?;
                }
                add(b, &next, "residual_ffn", middle.residual, down)
            }
            NormPlacement::Post => {
                let out = self.attention(b, i, residual)?;
                let sum = b.emit1("residual_attention", Add, &[residual, out])?;
                let x = norm::record(m, &name("attention_norm"), b, "attention_normed", sum)?;
                let down = self.feed_forward(b, i, x)?;
                let sum = b.emit1("residual_ffn", Add, &[x, down])?;
                let x = norm::record(m, &name("ffn_norm"), b, "ffn_normed", sum)?;
                Ok(Stream { residual: x, normed: x })
            }
        }
    }

    /// Records the product of rows with the weight `part` of block `i`, and adds its bias if there is one.
    fn product(&self, b: &mut Builder, i: usize, part: &str, output: &str, x: TensorId) -> Result<TensorId> {
        let weight = b.param(&format!("blocks.{i}.{part}"))?;
        let y = b.emit1(output, self.linear_op(), &[x, weight])?;
        if !self.plan.model.bias {
            return Ok(y);
        }
        let bias = b.param(&format!("blocks.{i}.{part}_bias"))?;
        b.emit1(&format!("{output}_biased"), AddBias, &[y, bias])
    }

    /// Returns the op of a matrix product.
    fn linear_op(&self) -> Linear {
        Linear { products: self.plan.execution.products }
    }

    /// Returns the index of a dropout in block `i`.
    fn dropout_site(&self, i: usize, place: DropoutPlace) -> u32 {
        (1 + 3 * i + place as usize) as u32
    }

    /// Returns the site of a dropout, if this program uses dropout.
    fn site(&self, site: u32) -> Option<Site> {
        let p = self.plan.model.dropout;
        (p > 0.0 && matches!(self.purpose, Purpose::Train { .. })).then_some(Site {
            p,
            seed: self.plan.seeds.dropout,
            site,
        })
    }

    fn dropout(&self, b: &mut Builder, x: TensorId, site: u32) -> Result<TensorId> {
        let Some(site) = self.site(site) else { return Ok(x) };
        let (sequences, step) = (b.state(BatchSlot::Sequences)?, b.state(ControlSlot::Step)?);
        b.emit1("dropped", Dropout(site), &[x, sequences, step])
    }

    /// Returns the slots of this program's tokens and positions.
    fn inputs(&self) -> [SlotName; 2] {
        match self.purpose {
            Purpose::Train { .. } | Purpose::Evaluate | Purpose::Score(_) => {
                [BatchSlot::Tokens, BatchSlot::Positions].map(SlotName::Batch)
            }
            Purpose::Generate => {
                [GenerationSlot::Tokens, GenerationSlot::Positions].map(SlotName::Generation)
            }
            Purpose::Prefill(shape) => {
                [PromptSlot::Tokens, PromptSlot::Positions].map(|input| shape.slot(input))
            }
        }
    }
}
