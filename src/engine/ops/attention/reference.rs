//! Attention by plain loops in f64, and the inputs of test cases. It is the reference for every op of this
//! folder.

use super::{Attention, Heads, Mask};
use crate::device::DType;
use crate::ir::{Array, Fill, Precision, Spec};
use crate::ops::dropout::{Site, reference_factor};

/// An attention test case: its batch size and its settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionCase {
    pub batch: usize,
    pub attention: Attention,
    /// True if rows have ranges of keys of all kinds; false for the keys of the causal mask, cut by the
    /// window.
    pub ranges: bool,
    /// True if some queries see no key.
    pub with_blind_queries: bool,
}

impl AttentionCase {
    /// Creates causal attention without dropout from batch, sequence length, and (query heads, key heads,
    /// head width).
    pub fn causal(batch: usize, seq_len: usize, (query, kv, dim): (usize, usize, usize)) -> Self {
        let heads = Heads { query, kv, dim };
        Self { batch, attention: Attention::causal(heads, seq_len), ranges: false, with_blind_queries: false }
    }

    /// Adds dropout.
    pub fn dropped(mut self, p: f64) -> Self {
        self.attention.dropout = Some(Site { p, seed: 42, site: 5 });
        self
    }

    /// Gives each query its own range of keys.
    pub fn spans(mut self) -> Self {
        self.attention.mask = Mask::Spans;
        self.ranges = true;
        self
    }

    /// Divides each sequence into a prefix of a quarter and branches of uneven lengths.
    pub fn branches(mut self) -> Self {
        self.attention.mask = Mask::Branches;
        self
    }

    /// Adds a window.
    pub fn windowed(mut self, window: usize) -> Self {
        self.attention.mask = Mask::Spans;
        self.attention.window = Some(window);
        self
    }

    /// Sets the factor of scores.
    pub fn scaled(mut self, scale: f64) -> Self {
        self.attention.score_scale = scale;
        self
    }

    /// Sets the elements of values that are read.
    pub fn valued(mut self, value_dim: usize) -> Self {
        self.attention.value_dim = value_dim;
        self
    }

    /// Adds a score cap.
    pub fn capped(mut self, cap: f64) -> Self {
        self.attention.score_cap = Some(cap);
        self
    }

    /// Adds a sink to every query head.
    pub fn with_sinks(mut self) -> Self {
        self.attention.sinks = true;
        self
    }

    /// Gives each query its own range of keys, which is empty for every seventh query and for 80 in a row.
    pub fn with_blind_queries(self) -> Self {
        Self { with_blind_queries: true, ..self.spans() }
    }

    /// Returns the distinguishing features, for the name of the case.
    pub fn name(&self) -> String {
        let Attention { heads, seq_len, dropout, score_scale, score_cap, window, .. } = self.attention;
        let mut name = format!("b{} t{seq_len} hd{} gqa{}", self.batch, heads.dim, heads.group());
        if self.attention.value_dim != heads.dim {
            name += &format!(" values{}", self.attention.value_dim);
        }
        if self.ranges {
            name += " spans";
        }
        if self.attention.mask == Mask::Branches {
            name += " branches";
        }
        if let Some(window) = window {
            name += &format!(" window{window}");
        }
        name += &heads.scale_attribute(score_scale);
        if let Some(cap) = score_cap {
            name += &format!(" cap{cap}");
        }
        if self.with_blind_queries {
            name += " blind";
        }
        if dropout.is_some() {
            name += " dropout";
        }
        if self.attention.sinks {
            name += " sinks";
        }
        name
    }

    /// Returns the number of packed rows.
    pub fn rows(&self) -> usize {
        self.batch * self.attention.seq_len
    }

    /// Returns the packed rows.
    pub fn packed(&self, precision: Precision) -> (Spec, Fill) {
        (Spec::new([self.rows(), self.attention.heads.width()], precision.act_dtype), Fill::Normal(0.0, 1.0))
    }

    /// Returns the spans if the mask has them. With `ranges`, some start late, some include later keys, and
    /// some have one key; otherwise they follow the causal mask. The window cuts both. Branches begin after a
    /// quarter of the sequence, at the places t with t % 37 = 5.
    pub fn span_input(&self) -> Vec<(Spec, Fill)> {
        let t_max = self.attention.seq_len;
        let prefix = (t_max / 4).max(1);
        let branches = || {
            (0..self.rows()).flat_map(move |row| {
                let t = row % t_max;
                let branch = (prefix..=t).rev().find(|t| t % 37 == 5).unwrap_or(prefix);
                let gap = if t < prefix { [0, 0] } else { [prefix, branch] };
                [0, t + 1, gap[0], gap[1]].map(|number| number as f64)
            })
        };
        let values = (0..self.rows()).flat_map(|row| {
            let t = row % t_max;
            let first = self.attention.window.map_or(0, |window| (t + 1).saturating_sub(window));
            let span = match row % 4 {
                _ if !self.ranges => (0, t + 1),
                _ if self.with_blind_queries && (t % 7 == 3 || (100..180).contains(&t)) => (t, t),
                0 => (0, t + 1),
                1 => (t / 2, t + 1),
                2 => (t, t + 1),
                _ => (t / 3, t_max),
            };
            [span.0.max(first) as f64, span.1 as f64]
        });
        match self.attention.mask {
            Mask::Causal => Vec::new(),
            Mask::Spans => {
                vec![(Spec::new([2 * self.rows()], DType::U32), Fill::Values(values.collect()))]
            }
            Mask::Branches => {
                vec![(Spec::new([4 * self.rows()], DType::U32), Fill::Values(branches().collect()))]
            }
        }
    }

    /// Returns all inputs after the tensors.
    pub fn extras(&self, precision: Precision) -> Vec<(Spec, Fill)> {
        let mut extras = self.span_input();
        if self.attention.dropout.is_some() {
            extras.push((Spec::new([self.batch], DType::U32), Fill::Below(100_000)));
            extras.push((Spec::new([1], DType::U32), Fill::Below(1000)));
        }
        if self.attention.sinks {
            let sinks = Spec::new([self.attention.heads.query], precision.master);
            extras.push((sinks, Fill::Normal(0.5, 1.0)));
        }
        extras
    }

    /// Returns the keys that a row attends to, from the inputs after the tensors.
    fn keys(&self, extras: &[Array], row: usize) -> Vec<usize> {
        let number = |at: usize| extras[0].data[self.attention.mask.numbers() * row + at] as usize;
        match self.attention.mask {
            Mask::Causal => (0..row % self.attention.seq_len + 1).collect(),
            Mask::Spans => (number(0)..number(1)).collect(),
            Mask::Branches => {
                (number(0)..number(1)).filter(|key| !(number(2)..number(3)).contains(key)).collect()
            }
        }
    }

    /// Computes `o [N, H·dim]` and `lse [N, H]` by their definition.
    pub fn solve(&self, packed: &Array, extras: &[Array]) -> Vec<Array> {
        let Attention { heads, seq_len, dropout, score_cap, .. } = self.attention;
        let (sinks, extras) = match extras.split_last() {
            Some((sinks, extras)) if self.attention.sinks => (Some(&sinks.data), extras),
            _ => (None, extras),
        };
        let (width, dim) = (packed.width(), heads.dim);
        let mut o = Array::zeros(&[self.rows(), heads.query * dim]);
        let mut lse = Array::zeros(&[self.rows(), heads.query]);
        for row in 0..self.rows() {
            let (b, t) = (row / seq_len, row % seq_len);
            let keys = self.keys(extras, row);
            for h in 0..heads.query {
                let g = h * heads.kv / heads.query;
                let at = |r: usize, head: usize, d: usize| packed.data[r * width + head * dim + d];
                let weights: Vec<f64> = keys
                    .iter()
                    .map(|key| {
                        let other = b * seq_len + key;
                        let dot: f64 = (0..dim).map(|d| at(row, h, d) * at(other, heads.query + g, d)).sum();
                        let score = dot * self.attention.score_scale;
                        score_cap.map_or(score, |cap| cap * (score / cap).tanh()).exp()
                    })
                    .collect();
                let total = weights.iter().sum::<f64>() + sinks.map_or(0.0, |sinks| sinks[h].exp());
                lse.data[row * heads.query + h] = total.ln();
                for (&key, weight) in keys.iter().zip(weights) {
                    let factor = dropout.map_or(1.0, |site| {
                        let counters = &extras[extras.len() - 2..];
                        let (sequence, step) = (counters[0].data[b] as usize, counters[1].data[0] as usize);
                        reference_factor(site, [key, h * seq_len + t, sequence, step])
                    });
                    for d in 0..self.attention.value_dim {
                        o.data[row * heads.query * dim + h * dim + d] +=
                            weight / total * factor * at(b * seq_len + key, heads.query + heads.kv + g, d);
                    }
                }
            }
        }
        vec![o, lse]
    }
}
