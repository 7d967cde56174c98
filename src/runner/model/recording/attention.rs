//! Attention: norms and rotation of heads, masks, and the cache of generation.

use super::step::{HeadNorm, PackedAttention, Rotation, Step};
use super::{Recording, Tensors, index_of};
use crate::error::{Error, Result};
use crate::ir::{BatchSlot, Builder, ControlSlot, Destination, GenerationSlot, Mode, SlotName, TensorId};
use crate::model::purpose::{PromptShape, Purpose};
use crate::model::window::effective_window;
use crate::model_text::Operation;
use crate::ops::arrange::{Arrange, Piece};
use crate::ops::attention::unfused::Inputs;
use crate::ops::attention::{Attention, FlashAttention, Heads, Mask, attention_unfused};
use crate::ops::cached_attention::CachedAttention;
use crate::ops::kv_cache::CacheFill;
use crate::ops::qk_norm_rope::{HeadRotation, QkNorm, QkNormRope};
use crate::ops::rope::Rope;
use crate::ops::rotary::{Rotary, Scaling};
use crate::ops::window_spans::WindowSpans;
use crate::plan::Model;
use crate::policy::{self, RopeScaling};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Recording<'_> {
    /// Records which keys rows see through attention windows. Returns them by the size of the window.
    ///
    /// # Errors
    /// If the plan's numbers do not fit the op.
    pub(super) fn window_spans(&self, b: &mut Builder) -> Result<BTreeMap<usize, TensorId>> {
        let (rows, seq_len, mask) = match self.purpose {
            Purpose::Generate => return Ok(BTreeMap::new()),
            Purpose::Prefill(shape) => (shape.prompts * shape.rows, shape.rows, Mask::Causal),
            Purpose::Train { .. } | Purpose::Evaluate | Purpose::Score(_) => {
                (self.plan.batch.rows(), self.plan.batch.seq_len, self.mask())
            }
        };
        let windows = self.plan.graph.nodes.iter().filter_map(|node| match node.operation {
            Operation::Attention { window, .. } => effective_window(window, seq_len),
            _ => None,
        });
        let windows: BTreeSet<usize> = windows.collect();
        let mut spans = BTreeMap::new();
        for window in windows {
            let inputs: Vec<TensorId> = match mask {
                Mask::Causal => Vec::new(),
                Mask::Spans | Mask::Branches => vec![b.state(BatchSlot::Spans)?],
            };
            let op = WindowSpans { rows, seq_len, window, mask };
            spans.insert(window, b.scoped("window", |b| b.emit1("spans", op, &inputs))?);
        }
        Ok(spans)
    }

    /// Returns which keys rows see without a window.
    fn mask(&self) -> Mask {
        match self.purpose {
            Purpose::Score(mask) => mask,
            _ if self.plan.cross_documents => Mask::Causal,
            _ => Mask::Spans,
        }
    }

    /// Records the norms and the rotation of queries and keys in `rows`, if there are any. The rows are
    /// packed; or, with norms, they may be queries and keys, and values. Returns packed rows.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn changed_heads(
        &self,
        b: &mut Builder,
        attention: &PackedAttention,
        rows: &[TensorId],
        name: &str,
        positions: SlotName,
    ) -> Result<TensorId> {
        let heads = attention.heads;
        let rotation = match attention.rotation {
            Some(rotation) => Some((rotary(&self.plan.model, rotation)?, b.state(positions)?)),
            None => None,
        };
        let mut inputs = rows.to_vec();
        if let Some(HeadNorm { weights: Some(weights), .. }) = attention.norm {
            for weight in weights {
                inputs.push(self.param(b, weight)?);
            }
        }
        inputs.extend(rotation.map(|(_, positions)| positions));
        let changed = match (attention.norm, rotation) {
            (Some(HeadNorm { eps, weights, weight_offset }), rotation) => {
                let norm = QkNorm { heads, eps, weighted: weights.is_some(), weight_offset };
                let first = attention.rotates_first;
                let rotation = rotation.map(|(rotary, _)| HeadRotation { rotary, first });
                let values_apart = rows.len() > 1;
                b.emit1("packed", QkNormRope { norm, rotation, values_apart }, &inputs)?
            }
            (None, Some((rotary, _))) => {
                b.emit1("packed", Rope { heads, rotary, inverse: false }, &inputs)?
            }
            (None, None) => return Ok(rows[0]),
        };
        b.rename(changed, format!("{name}:packed"));
        Ok(changed)
    }

    /// Returns the op that rotates heads.
    ///
    /// # Errors
    /// If the recipe's scaling lacks a number.
    pub(super) fn rotation(&self, rotation: Rotation, heads: Heads) -> Result<Rope> {
        Ok(Rope { heads, rotary: rotary(&self.plan.model, rotation)?, inverse: false })
    }

    /// Records attention from queries, keys and values that are tensors of their own. They are packed first;
    /// narrower heads are padded with zeros, which change no score.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn unpacked_attention(
        &self,
        b: &mut Builder,
        step: &Step,
        (attention, widths): (&PackedAttention, [usize; 2]),
        tensors: &mut Tensors,
    ) -> Result<Vec<TensorId>> {
        let (heads, name) = (attention.heads, &self.names[step.outputs[0]]);
        let [of_keys, of_values] = widths;
        let parts = [(heads.query, of_keys), (heads.kv, of_keys), (heads.kv, of_values)];
        let (mut inputs, mut pieces): (Vec<TensorId>, Vec<Piece>) = (Vec::new(), Vec::new());
        for (&node, (heads_of_part, width)) in step.inputs.iter().zip(parts) {
            let (tensor, view) = self.place(b, tensors, node)?;
            let (tensor, from) = if width == heads.dim && view.is_contiguous() {
                (tensor, view.from)
            } else {
                let zeros = Piece { input: None, from: 0, stride: 0, width: heads.dim - width };
                let pieces = [view.piece(0), zeros].into_iter().filter(|piece| piece.width > 0);
                let padded = Arrange { heads: heads_of_part, pieces: pieces.collect() };
                (b.emit1("padded", padded, &[tensor])?, 0)
            };
            let input = index_of(&mut inputs, tensor);
            let width = heads_of_part * heads.dim;
            match pieces.last_mut() {
                // Parts that follow each other in one tensor are one piece.
                Some(Piece { input: Some(last), from: start, width: own, .. })
                    if *last == input && *start + *own == from =>
                {
                    *own += width;
                }
                _ => pieces.push(Piece { input: Some(input), from, stride: 0, width }),
            }
        }
        let widths = [heads.value_at(0), heads.width() - heads.value_at(0)];
        let is_whole = |(index, &tensor): (usize, &TensorId)| {
            let whole = Piece { input: Some(index), from: 0, stride: 0, width: widths[index] };
            let spec = b.spec(tensor);
            pieces[index] == whole && spec.shape.len() == 2 && spec.width() == widths[index]
        };
        let values_apart = attention.norm.is_some()
            && (inputs.len(), pieces.len()) == (2, 2)
            && inputs.iter().enumerate().all(is_whole);
        let rows = if values_apart {
            inputs
        } else {
            let joined = b.emit1("joined", Arrange { heads: 1, pieces }, &inputs)?;
            b.rename(joined, format!("{name}:joined"));
            vec![joined]
        };
        let [_, positions] = self.inputs();
        let packed = self.changed_heads(b, attention, &rows, name, positions)?;
        let cache = tensors.attentions;
        tensors.attentions += 1;
        let attended = self.attend(b, attention, packed, cache, &tensors.windows)?;
        let result = if of_values == heads.dim {
            attended
        } else {
            let own = Piece { input: Some(0), from: 0, stride: heads.dim, width: of_values };
            b.emit1("values", Arrange { heads: heads.query, pieces: vec![own] }, &[attended])?
        };
        b.rename(result, name.clone());
        Ok(vec![result])
    }

    /// Records the attention of every row to the rows before it or inside the window, from packed rows.
    /// `index` counts the attentions of the model, and `windows` has the keys that rows see by window.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn attend(
        &self,
        b: &mut Builder,
        of: &PackedAttention,
        packed: TensorId,
        index: usize,
        windows: &BTreeMap<usize, TensorId>,
    ) -> Result<TensorId> {
        let (rows_of_sequence, mask) = match self.purpose {
            Purpose::Generate => return self.attend_to_cache(b, of, packed, index),
            Purpose::Prefill(shape) => {
                self.fill_cache(b, of.heads, packed, index, shape)?;
                (shape.rows, Mask::Causal)
            }
            Purpose::Train { .. } | Purpose::Evaluate | Purpose::Score(_) => {
                (self.plan.batch.seq_len, self.mask())
            }
        };
        let window = effective_window(of.window, rows_of_sequence);
        let spans = match (window, mask) {
            (Some(window), _) => windows.get(&window).copied(),
            (None, Mask::Spans | Mask::Branches) => Some(b.state(BatchSlot::Spans)?),
            (None, Mask::Causal) => None,
        };
        let attention = Attention {
            heads: of.heads,
            value_dim: of.value_dim,
            seq_len: rows_of_sequence,
            mask: if window.is_some() { Mask::Spans } else { mask },
            dropout: of.dropout.and_then(|(p, site)| self.site(p, site)),
            score_scale: of.scale,
            score_cap: of.cap,
            window,
            sinks: of.sinks.is_some(),
        };
        let counters = match attention.dropout {
            Some(_) => Some([b.state(BatchSlot::Sequences)?, b.state(ControlSlot::Step)?]),
            None => None,
        };
        let inputs = Inputs { packed, spans, counters };
        let sinks = of.sinks.map(|sinks| self.param(b, sinks)).transpose()?;
        match self.plan.execution.attention {
            policy::Attention::Flash => {
                let inputs: Vec<TensorId> = inputs.list().into_iter().chain(sinks).collect();
                Ok(b.emit("attended", FlashAttention(attention), &inputs)?[0])
            }
            policy::Attention::Unfused if attention.sinks => Err(Error::usage(
                "attention with sinks has no unfused form: set engine.attention = \"flash\"",
            )),
            policy::Attention::Unfused => attention_unfused(b, attention, inputs),
        }
    }

    /// Records the attention of one row per sample to itself and to the rows before it, which are in the
    /// cache.
    fn attend_to_cache(
        &self,
        b: &mut Builder,
        of: &PackedAttention,
        packed: TensorId,
        index: usize,
    ) -> Result<TensorId> {
        let capacity = self.plan.batch.seq_len;
        let window = effective_window(of.window, capacity);
        let (heads, score_scale) = (of.heads, of.scale);
        let sinks = of.sinks.map(|sinks| self.param(b, sinks)).transpose()?;
        let attention = CachedAttention {
            heads,
            score_scale,
            score_cap: of.cap,
            window,
            sinks: sinks.is_some(),
            capacity,
        };
        let positions = b.state(GenerationSlot::Positions)?;
        let cache = Destination::Into(b.state(SlotName::Cache(index))?, Mode::Add);
        let arrivals = Destination::Into(b.state(SlotName::Arrivals(of.heads.query))?, Mode::Add);
        let outs = [Destination::New, cache, arrivals];
        let inputs: Vec<TensorId> = [packed, positions].into_iter().chain(sinks).collect();
        Ok(b.emit_into("attended", Arc::new(attention), &inputs, &outs)?[0])
    }

    /// Records the writing of the prompts' keys and values into the cache.
    fn fill_cache(
        &self,
        b: &mut Builder,
        heads: Heads,
        packed: TensorId,
        index: usize,
        shape: PromptShape,
    ) -> Result<()> {
        let fill = CacheFill {
            heads,
            samples: self.plan.generation.samples,
            prompts: shape.prompts,
            capacity: self.plan.batch.seq_len,
        };
        let cache = Destination::Into(b.state(SlotName::Cache(index))?, Mode::Add);
        b.emit_into("cache", Arc::new(fill), &[packed], &[cache])?;
        Ok(())
    }
}

/// Returns a rotation of the first `width` elements of heads, scaled as the model's keys say.
///
/// # Errors
/// If a scaling lacks a number. Recipes with that error are rejected earlier.
pub(in crate::model) fn rotary_of(m: &Model, theta: f64, width: usize, reversed: bool) -> Result<Rotary> {
    rotary(m, Rotation { theta, width, reversed })
}

/// Returns a rotation of heads, scaled as the model's keys say.
///
/// # Errors
/// If a scaling lacks a number. Recipes with that error are rejected earlier.
fn rotary(m: &Model, Rotation { theta, width, reversed }: Rotation) -> Result<Rotary> {
    let rope = &m.rope;
    let lacks = |key: &str| Error::usage(format!("model.rope_scaling = \"{}\" needs {key}", rope.scaling));
    let factor = || rope.factor.ok_or_else(|| lacks("model.rope_factor"));
    let context = || rope.original_context.ok_or_else(|| lacks("model.rope_original_context"));
    let scaling = match rope.scaling {
        RopeScaling::None => Scaling::None,
        RopeScaling::Linear => Scaling::Linear { factor: factor()? },
        RopeScaling::Yarn => Scaling::Yarn {
            factor: factor()?,
            original_context: context()?,
            beta_fast: rope.beta_fast,
            beta_slow: rope.beta_slow,
            attention_factor: match rope.attention_factor {
                Some(set) => set,
                None => Scaling::yarn_attention_factor(factor()?),
            },
        },
        RopeScaling::Llama3 => Scaling::Llama3 {
            factor: factor()?,
            original_context: context()?,
            low_freq_factor: rope.low_freq_factor,
            high_freq_factor: rope.high_freq_factor,
        },
    };
    Ok(Rotary { theta, rotated_dim: width, reversed, scaling })
}
