//! Attention over packed rows: the flash form that the model records, and the unfused form with its T × T
//! tensors.
//!
//! Rows of the fused query-key-value product are read and written where they lie; nothing is transposed in
//! memory. N = batch·seq_len rows; query head h uses key and value head h / (H/KV).

mod backward;
pub mod flash;
mod forward;
mod gpu;
pub mod layout;
pub(crate) mod reference;
pub(crate) mod rows;
#[cfg(test)]
mod tests;
mod tuning;
pub mod unfused;

pub use flash::{FlashAttention, FlashAttentionGrad};
pub use layout::{Heads, Mask, Visible};
pub use unfused::{Inputs, attention_unfused};

use super::dropout::{Drops, Site, check_counters};
use crate::device::DType;
use crate::ir::{CpuNode, Spec};

/// An attention layer: `softmax(q·kᵀ/√dim)·v` per head, with a soft cap of the scores and dropout on the
/// probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Rows of a sequence.
    pub seq_len: usize,
    /// The keys that a query attends to.
    pub mask: Mask,
    /// Dropout of the probabilities.
    pub dropout: Option<Site>,
    /// The soft cap: a score s = q·k/√dim becomes `cap·tanh(s / cap)` before the softmax (Gemma 2; Gemma Team
    /// 2024).
    pub score_cap: Option<f64>,
    /// The most keys that a query sees, its own included, where the spans of the mask come from
    /// [`WindowSpans`](super::window_spans::WindowSpans). Costs alone depend on it.
    pub window: Option<usize>,
}

/// The inputs of an attention op beyond its tensors: the mask and dropout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extras<'a> {
    pub visible: Visible<'a>,
    pub dropout: Option<Counters<'a>>,
}

/// The generator of dropout, and the counters of sequences and the step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters<'a> {
    pub drops: Drops,
    pub sequences: &'a [u32],
    pub step: u32,
}

impl Attention {
    /// Returns causal attention with neither dropout, cap nor window.
    pub const fn causal(heads: Heads, seq_len: usize) -> Self {
        Self { heads, seq_len, mask: Mask::Causal, dropout: None, score_cap: None, window: None }
    }

    /// Returns the constants for prints.
    fn attributes(&self) -> String {
        let mut text = format!("{} seq_len={} mask={:?}", self.heads, self.seq_len, self.mask).to_lowercase();
        if let Some(window) = self.window {
            text += &format!(" window={window}");
        }
        if let Some(cap) = self.score_cap {
            text += &format!(" score_cap={cap}");
        }
        if let Some(site) = self.dropout {
            text += &format!(" p={} site={}", site.p, site.site);
        }
        text
    }

    /// Returns the number of inputs beyond the tensors.
    fn extra_count(&self) -> usize {
        usize::from(self.mask == Mask::Spans) + 2 * usize::from(self.dropout.is_some())
    }

    /// Checks the packed rows and the inputs `[spans] [sequences step]`.
    fn check(&self, packed: &Spec, extras: &[Spec]) -> Result<(), String> {
        self.heads.check(packed)?;
        if self.seq_len == 0 || !packed.shape[0].is_multiple_of(self.seq_len) {
            return Err(format!("rows come in whole sequences of {}", self.seq_len));
        }
        if self.score_cap.is_some_and(|cap| !(cap > 0.0 && cap.is_finite())) {
            return Err("a cap of scores is positive".into());
        }
        if self.window.is_some_and(|window| window == 0 || self.mask == Mask::Causal) {
            return Err("a window has at least one key, and comes with spans".into());
        }
        if extras.len() != self.extra_count() {
            return Err(format!("takes {} inputs after its tensors", self.extra_count()));
        }
        let (spans, counters) = extras.split_at(usize::from(self.mask == Mask::Spans));
        if spans.iter().any(|s| s.dtype != DType::U32 || s.elements() != 2 * packed.shape[0]) {
            return Err("spans are u32, two per row".into());
        }
        if let [sequences, step] = counters {
            check_counters(sequences, step)?;
            if sequences.elements() != packed.shape[0] / self.seq_len {
                return Err("sequences hold one number per sequence".into());
            }
        }
        Ok(())
    }

    /// Reads the inputs from `first` on.
    fn extras<'a>(&self, cx: &CpuNode<'a>, first: usize) -> Extras<'a> {
        let spans = (self.mask == Mask::Spans).then(|| cx.input_u32(first));
        let next = first + usize::from(spans.is_some());
        Extras {
            visible: Visible { seq_len: self.seq_len, spans },
            dropout: self.dropout.map(|site| Counters {
                drops: site.drops(),
                sequences: cx.input_u32(next),
                step: cx.input_u32(next + 1)[0],
            }),
        }
    }

    /// Returns the floating-point operations of `products` products of T × T by dim, counting the causal
    /// half, or the keys inside the window.
    fn flops(&self, packed: &Spec, products: usize) -> f64 {
        let Heads { query, dim, .. } = self.heads;
        let rows = packed.shape[0] as f64;
        let keys = match self.window {
            None => self.seq_len as f64,
            Some(window) => 2.0 * keys_in_window(window, self.seq_len),
        };
        (products * query * dim) as f64 * rows * keys
    }
}

/// Returns the number of keys that a query of a sequence sees through a window, on average: Σ min(t + 1,
/// window) / T.
pub fn keys_in_window(window: usize, seq_len: usize) -> f64 {
    let (window, seq_len) = (window.min(seq_len) as f64, seq_len as f64);
    window - window * (window - 1.0) / (2.0 * seq_len)
}
