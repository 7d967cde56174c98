//! Attention over packed rows: the flash form that models record, and the unfused form with its T × T
//! tensors.
//!
//! Ops read and write rows of the fused query-key-value product in place, so nothing is transposed in memory.
//! There are N = batch·seq_len rows; query head h uses key and value head h / (H/KV).

mod backward;
mod documents;
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

pub use documents::document_step;
pub use flash::{FlashAttention, FlashAttentionGrad};
pub use layout::{Heads, Mask, Visible};
pub use unfused::{Inputs, attention_unfused};

use super::dropout::{DropoutFactors, Site, check_counters};
use crate::device::DType;
use crate::ir::{CpuNode, Spec};

/// An attention layer: `softmax(scale·q·kᵀ)·v` per head, with an optional soft cap of the scores and dropout
/// of the probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Elements of the heads of values that may differ from zero; those behind them are zeros. It is `dim`,
    /// or smaller if both are multiples of 64. Elements of values and of the output's gradient behind it are
    /// not read, and those of the output and of the values' gradient are zeros. (Only the unfused form reads
    /// them.)
    pub value_dim: usize,
    /// Rows in a sequence.
    pub seq_len: usize,
    /// The keys that a query attends to.
    pub mask: Mask,
    /// Dropout of the probabilities.
    pub dropout: Option<Site>,
    /// The factor of scores; 1/√dim (Vaswani et al., 2017) unless a model has its own.
    pub score_scale: f64,
    /// The soft cap: a score s = scale·q·k becomes `cap·tanh(s / cap)` before the softmax (Gemma 2; Gemma
    /// Team 2024).
    pub score_cap: Option<f64>,
    /// The most keys that a query sees, including its own, if the spans come from
    /// [`WindowSpans`](super::window_spans::WindowSpans). Only costs depend on it.
    pub window: Option<usize>,
    /// True if every query head has a [sink](super::attention_sink), which is the last input.
    pub sinks: bool,
}

/// The inputs of an attention op after its tensors: mask and dropout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extras<'a> {
    pub visible: Visible<'a>,
    pub dropout: Option<Counters<'a>>,
}

/// The dropout generator, and the counters of sequences and step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters<'a> {
    pub drops: DropoutFactors,
    pub sequences: &'a [u32],
    pub step: u32,
}

impl Attention {
    /// Returns causal attention without dropout, cap, window and sinks, and with the usual scale.
    pub fn causal(heads: Heads, seq_len: usize) -> Self {
        Self {
            heads,
            value_dim: heads.dim,
            seq_len,
            mask: Mask::Causal,
            dropout: None,
            score_scale: heads.score_scale(),
            score_cap: None,
            window: None,
            sinks: false,
        }
    }

    /// Returns the parameters for printing.
    fn attributes(&self) -> String {
        let mut text = format!("{} seq_len={} mask={:?}", self.heads, self.seq_len, self.mask).to_lowercase();
        if self.value_dim != self.heads.dim {
            text += &format!(" value_dim={}", self.value_dim);
        }
        if let Some(window) = self.window {
            text += &format!(" window={window}");
        }
        text += &self.heads.scale_attribute(self.score_scale);
        if let Some(cap) = self.score_cap {
            text += &format!(" score_cap={cap}");
        }
        if let Some(site) = self.dropout {
            text += &format!(" p={} site={}", site.p, site.site);
        }
        if self.sinks {
            text += " sinks";
        }
        text
    }

    /// Returns the number of inputs after the tensors.
    fn extra_count(&self) -> usize {
        let counters = 2 * usize::from(self.dropout.is_some());
        usize::from(self.mask != Mask::Causal) + counters + usize::from(self.sinks)
    }

    /// Checks the packed rows and the inputs `[spans] [sequences step] [sinks]`.
    fn check(&self, packed: &Spec, extras: &[Spec]) -> Result<(), String> {
        self.heads.check(packed)?;
        if self.seq_len == 0 || !packed.shape[0].is_multiple_of(self.seq_len) {
            return Err(format!("rows must be whole sequences of {}", self.seq_len));
        }
        let value_dim = self.value_dim;
        if value_dim == 0 || value_dim > self.heads.dim || self.heads.value_dim(value_dim) != value_dim {
            return Err("value_dim must be head_dim, or smaller with both multiples of 64".into());
        }
        if !self.score_scale.is_finite() {
            return Err("the factor of scores must be finite".into());
        }
        if self.score_cap.is_some_and(|cap| !(cap > 0.0 && cap.is_finite())) {
            return Err("the score cap must be positive and finite".into());
        }
        if self.window.is_some_and(|window| window == 0 || self.mask == Mask::Causal) {
            return Err("a window needs at least one key, and the spans mask".into());
        }
        if extras.len() != self.extra_count() {
            return Err(format!("takes {} inputs after its tensors", self.extra_count()));
        }
        let (extras, sinks) = extras.split_at(extras.len() - usize::from(self.sinks));
        let of_sinks = Spec::new([self.heads.query], packed.dtype.accumulator());
        if sinks.iter().any(|spec| *spec != of_sinks) {
            return Err(format!("sinks must be {of_sinks}"));
        }
        let (spans, counters) = extras.split_at(usize::from(self.mask != Mask::Causal));
        let numbers = self.mask.numbers();
        if spans.iter().any(|s| s.dtype != DType::U32 || s.elements() != numbers * packed.shape[0]) {
            return Err(format!("spans must be u32, {numbers} per row"));
        }
        if let [sequences, step] = counters {
            check_counters(sequences, step)?;
            if sequences.elements() != packed.shape[0] / self.seq_len {
                return Err("the sequences input must have one number per sequence".into());
            }
        }
        Ok(())
    }

    /// Reads the inputs from `first` on.
    fn extras<'a>(&self, cx: &CpuNode<'a>, first: usize) -> Extras<'a> {
        let spans = (self.mask != Mask::Causal).then(|| cx.input_u32(first));
        let next = first + usize::from(spans.is_some());
        Extras {
            visible: Visible { seq_len: self.seq_len, spans, numbers: self.mask.numbers() },
            dropout: self.dropout.map(|site| Counters {
                drops: site.drops(),
                sequences: cx.input_u32(next),
                step: cx.input_u32(next + 1)[0],
            }),
        }
    }

    /// Returns the floating-point operations of `products` products of T × T by dim. Only the causal half
    /// counts, or the keys inside the window.
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

/// Returns the average number of keys that a query of a sequence sees through a window: Σ min(t + 1, window)
/// / T.
pub fn keys_in_window(window: usize, seq_len: usize) -> f64 {
    let (window, seq_len) = (window.min(seq_len) as f64, seq_len as f64);
    window - window * (window - 1.0) / (2.0 * seq_len)
}
