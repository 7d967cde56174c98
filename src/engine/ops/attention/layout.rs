//! The layout of heads in a row of the fused product, and the keys that each query attends to.

use crate::device::DType;
use crate::ir::Spec;
use std::fmt;
use std::ops::Range;

/// Heads side by side in a row: all queries, then all keys, then all values, each `dim` wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Number of query heads.
    pub query: usize,
    /// Number of key heads, which is also the number of value heads; divides `query`.
    pub kv: usize,
    /// Width of a head.
    pub dim: usize,
}

impl Heads {
    /// Returns the width of a row.
    pub fn width(self) -> usize {
        (self.query + 2 * self.kv) * self.dim
    }

    /// Returns the first column of query head `h`.
    pub fn query_at(self, h: usize) -> usize {
        h * self.dim
    }

    /// Returns the first column of key head `g`.
    pub fn key_at(self, g: usize) -> usize {
        (self.query + g) * self.dim
    }

    /// Returns the first column of value head `g`.
    pub fn value_at(self, g: usize) -> usize {
        (self.query + self.kv + g) * self.dim
    }

    /// Returns the number of query heads that share one key and value head. Those that share head `g` start
    /// at `g·group`.
    pub fn group(self) -> usize {
        self.query / self.kv
    }

    /// Returns the [`value_dim`](super::Attention::value_dim) for values whose elements from `used` on are
    /// zeros: the width itself, rounded up to what kernels tell apart.
    pub fn value_dim(self, used: usize) -> usize {
        /// Columns that kernels copy at once.
        const PANEL: usize = 64;
        if self.dim.is_multiple_of(PANEL) { used.next_multiple_of(PANEL).min(self.dim) } else { self.dim }
    }

    /// Returns the attribute of a factor of scores other than the usual one, for prints.
    pub(crate) fn scale_attribute(self, scale: f64) -> String {
        if scale == self.score_scale() { String::new() } else { format!(" scale={scale}") }
    }

    /// Returns the usual factor of scores: 1/√dim.
    pub fn score_scale(self) -> f64 {
        1.0 / (self.dim as f64).sqrt()
    }

    /// Checks that `packed` is `[N, (H + 2·KV)·dim]` in a float format, without padding.
    ///
    /// # Errors
    /// If the heads or the packed rows do not match; the error names what does not.
    pub fn check(self, packed: &Spec) -> Result<(), String> {
        if self.kv == 0 || self.dim == 0 || self.query == 0 || !self.query.is_multiple_of(self.kv) {
            return Err(format!("{self}: kv_heads must divide heads, and none of the three may be 0"));
        }
        self.check_width(packed)
    }

    /// Checks that `packed` has rows of the heads' width in a float format, without padding. The heads may
    /// have no keys and values.
    ///
    /// # Errors
    /// The same as [`check`](Self::check).
    pub fn check_width(self, packed: &Spec) -> Result<(), String> {
        let fits = packed.shape.len() == 2 && packed.shape[1] == self.width() && packed.alloc == packed.shape;
        if !fits || packed.dtype == DType::U32 {
            return Err(format!(
                "packed rows must be {} wide for {self}, in a float format and without padding",
                self.width()
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "heads={} kv_heads={} head_dim={}", self.query, self.kv, self.dim)
    }
}

/// The keys of its own sequence that a query attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Query `t` attends to keys `0..=t`.
    Causal,
    /// Each query attends to its own range: an input `spans [N·2] u32` of (first, end) per row, counted
    /// within the sequence.
    Spans,
    /// Each query attends to its own range with a gap in it: an input `spans [N·4] u32` of (first, end, first
    /// of the gap, end of the gap) per row. So branches that follow each other in a sequence share the prefix
    /// in front of them, and do not see each other. There is no gradient.
    Branches,
}

impl Mask {
    /// Returns the numbers per row of the input `spans`; 0 if there is no such input.
    pub const fn numbers(self) -> usize {
        match self {
            Self::Causal => 0,
            Self::Spans => 2,
            Self::Branches => 4,
        }
    }
}

/// The keys that each query of a batch attends to.
#[derive(Clone, Copy, Debug)]
pub struct Visible<'a> {
    /// Number of queries, and of keys, in a sequence.
    pub seq_len: usize,
    /// The input of the mask, or `None` for the causal mask.
    pub spans: Option<&'a [u32]>,
    /// Numbers per row of `spans`, [`Mask::numbers`].
    pub numbers: usize,
}

impl Visible<'_> {
    /// Returns the keys that query `t` of sequence `b` of this batch attends to, and those in the gap between
    /// them. An end beyond the sequence is cut off.
    #[inline(always)]
    pub fn keys(&self, b: usize, t: usize) -> Range<usize> {
        match self.spans {
            None => 0..t + 1,
            Some(spans) => {
                let at = self.numbers * (b * self.seq_len + t);
                let end = (spans[at + 1] as usize).min(self.seq_len);
                (spans[at] as usize).min(end)..end
            }
        }
    }

    /// Returns the gap in the keys of query `t` of sequence `b`; empty if there is none.
    #[inline(always)]
    pub fn gap(&self, b: usize, t: usize) -> Range<usize> {
        match self.spans {
            Some(spans) if self.numbers == Mask::Branches.numbers() => {
                let at = self.numbers * (b * self.seq_len + t) + 2;
                let end = (spans[at + 1] as usize).min(self.seq_len);
                (spans[at] as usize).min(end)..end
            }
            _ => 0..0,
        }
    }

    /// Returns the smallest range that contains the keys of all these queries.
    pub fn keys_visible_to_any(&self, b: usize, queries: Range<usize>) -> Range<usize> {
        let seen = queries.map(|t| self.keys(b, t)).filter(|seen| !seen.is_empty());
        seen.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }
}
