//! The keys that queries see through a sliding window, as spans for attention.

use super::attention::{Mask, Visible};
use crate::device::DType;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, Op, Precision, Spec};

/// `([spans [N·2] u32]) → windows [N·2] u32`: (first, end) per row. Of the keys that the mask allows, query t
/// of a sequence keeps those from `t + 1 − window` on, so it sees itself and at most `window − 1` keys before
/// it (`sliding_window` in HuggingFace's Mistral, Gemma 2 and Qwen).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowSpans {
    /// Rows in the batch: N.
    pub rows: usize,
    /// Rows in a sequence.
    pub seq_len: usize,
    /// The most keys that a query sees, including its own.
    pub window: usize,
    /// The keys that a query sees without a window. [`Mask::Spans`] makes `spans` an input.
    pub mask: Mask,
}

impl Op for WindowSpans {
    fn name(&self) -> &'static str {
        "window_spans"
    }

    fn attributes(&self) -> String {
        let Self { seq_len, window, mask, .. } = self;
        format!("seq_len={seq_len} window={window} mask={mask:?}").to_lowercase()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let windows = Spec::new([2 * self.rows], DType::U32);
        if self.window == 0 || self.seq_len == 0 || !self.rows.is_multiple_of(self.seq_len) {
            return Err("rows must be whole sequences, and the window at least one key".into());
        }
        match (self.mask, inputs) {
            (Mask::Causal, []) => Ok(vec![windows]),
            (Mask::Spans, [spans]) if *spans == windows => Ok(vec![windows]),
            _ => Err("spans [N·2] u32 are an input with the spans mask, and only with it".into()),
        }
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let spans = (self.mask == Mask::Spans).then(|| cx.input_u32(0));
        let visible = Visible { seq_len: self.seq_len, spans, numbers: self.mask.numbers() };
        let windows = cx.output_u32(0);
        for row in 0..self.rows {
            let t = row % self.seq_len;
            let seen = visible.keys(row / self.seq_len, t);
            let first = seen.start.max((t + 1).saturating_sub(self.window)).min(seen.end);
            windows.slice(2 * row, 2).copy_from_slice(&[first as u32, seen.end as u32]);
        }
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        const THREADS: u32 = 256;
        if self.rows == 0 {
            return Ok(());
        }
        let spans = if self.mask == Mask::Spans { cx.input(0) } else { 0 };
        let mut args: Vec<Arg> = [spans, cx.output(0)].map(Arg::Ptr).to_vec();
        args.extend([self.rows, self.seq_len, self.window].map(Arg::from));
        let kernel =
            Kernel::new("window_spans", "window_spans").with("CAUSAL", u8::from(self.mask == Mask::Causal));
        cx.queue.launch(kernel, Grid::covering(self.rows, THREADS), &args)
    }

    fn cases(_precision: Precision) -> Cases {
        // Batch, T, window, mask.
        let shapes = [
            (1, 1, 1, Mask::Causal),
            (3, 17, 5, Mask::Causal),
            (2, 300, 300, Mask::Causal),
            (2, 33, 8, Mask::Spans),
            (1, 1000, 129, Mask::Spans),
        ];
        let case = |(batch, seq_len, window, mask): (usize, usize, usize, Mask)| {
            let rows = batch * seq_len;
            // Documents of 13 tokens, some rows that see all keys, some that see none, and an end beyond the
            // sequence.
            let spans = (0..rows).flat_map(|row| {
                let t = row % seq_len;
                let span = match row % 7 {
                    3 => (0, seq_len + 5),
                    5 => (t, t),
                    _ => (t / 13 * 13, t + 1),
                };
                [span.0 as f64, span.1 as f64]
            });
            let spec = Spec::new([2 * rows], DType::U32);
            let inputs = match mask {
                Mask::Causal => Vec::new(),
                Mask::Spans | Mask::Branches => vec![(spec, Fill::Values(spans.collect()))],
            };
            let op = WindowSpans { rows, seq_len, window, mask };
            let name = format!("b{batch} t{seq_len} window{window} {mask:?}").to_lowercase();
            Case::new(name, op, inputs, move |inputs| vec![reference(&op, inputs)]).without_gradient()
        };
        Cases::Own(shapes.into_iter().map(case).collect())
    }
}

/// Computes the visible keys by their definition: the mask's keys j with t − window < j.
fn reference(op: &WindowSpans, inputs: &[Array]) -> Array {
    let mut windows = Array::zeros(&[2 * op.rows]);
    for row in 0..op.rows {
        let t = (row % op.seq_len) as i64;
        let (first, end) = match inputs {
            [] => (0, t + 1),
            [spans, ..] => {
                (spans.data[2 * row] as i64, (spans.data[2 * row + 1] as i64).min(op.seq_len as i64))
            }
        };
        let seen = (first..end).find(|key| t - (op.window as i64) < *key).unwrap_or(end);
        windows.data[2 * row] = seen as f64;
        windows.data[2 * row + 1] = end as f64;
    }
    windows
}
