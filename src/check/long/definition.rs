//! Attention by its definition in f64, for sampled rows of one head.

use super::super::near_normal;
use super::case::LongCase;
use crate::device::DType;
use crate::ops::attention::Attention;
use rayon::prelude::*;
use std::ops::Range;

/// The numbers of one sequence, already rounded: packed rows, and the gradient of the output.
pub(super) struct Sequence {
    pub packed: Vec<f64>,
    pub d_o: Vec<f64>,
}

impl Sequence {
    pub fn new(case: &LongCase, dtype: DType) -> Self {
        let Attention { heads, seq_len, .. } = case.attention;
        let numbers = |stream: usize, width: usize| -> Vec<f64> {
            let name = case.name();
            (0..seq_len * width)
                .into_par_iter()
                .map(|at| {
                    let value = near_normal(&name, stream, at);
                    if dtype == DType::Bf16 {
                        half::bf16::from_f64(value).to_f64()
                    } else {
                        f64::from(value as f32)
                    }
                })
                .collect()
        };
        Self { packed: numbers(0, heads.width()), d_o: numbers(1, heads.query * heads.dim) }
    }

    /// Returns a head of the packed rows, or of the gradient of the output.
    fn head(all: &[f64], width: usize, column: usize, dim: usize) -> Vec<f64> {
        all.chunks_exact(width).flat_map(|row| row[column..column + dim].to_vec()).collect()
    }

    /// Returns sampled rows of the output, dq, dk and dv of the last key and value head by their definition.
    pub fn reference(&self, case: &LongCase) -> [Vec<f64>; 4] {
        let Attention { heads, seq_len, .. } = case.attention;
        let (dim, scale, last) = (heads.dim, heads.score_scale(), heads.kv - 1);
        let packed = |column| Self::head(&self.packed, heads.width(), column, dim);
        let (keys, values) = (packed(heads.key_at(last)), packed(heads.value_at(last)));
        let sampled = case.sampled_rows();
        let [mut o, mut dq] = [Vec::new(), Vec::new()];
        let [mut dk, mut dv] = [vec![0.0; sampled.len() * dim], vec![0.0; sampled.len() * dim]];
        for h in last * heads.group()..heads.query {
            let queries = packed(heads.query_at(h));
            let d_o = Self::head(&self.d_o, heads.query * dim, h * dim, dim);
            let row = |all: &'_ [f64], t: usize| -> Vec<f64> { all[t * dim..(t + 1) * dim].to_vec() };
            let solved: Vec<Row> = (0..seq_len)
                .into_par_iter()
                .map(|t| Row::solve(&row(&queries, t), &row(&d_o, t), &keys, &values, case.visible(t), scale))
                .collect();
            for &t in &sampled {
                o.extend(&solved[t].output);
                dq.extend(solved[t].query_gradient(
                    &row(&queries, t),
                    &row(&d_o, t),
                    &keys,
                    &values,
                    case.visible(t),
                    scale,
                ));
            }
            let parts: Vec<(Vec<f64>, Vec<f64>)> = sampled
                .par_iter()
                .map(|&key| {
                    let (mut dk, mut dv) = (vec![0.0; dim], vec![0.0; dim]);
                    for t in (key..seq_len).filter(|&t| case.visible(t).contains(&key)) {
                        let (q, g) = (&queries[t * dim..][..dim], &d_o[t * dim..][..dim]);
                        let p = (scale * dot(q, &keys[key * dim..][..dim]) - solved[t].lse).exp();
                        let ds = p * (dot(g, &values[key * dim..][..dim]) - solved[t].dot) * scale;
                        add_scaled(&mut dv, p, g);
                        add_scaled(&mut dk, ds, q);
                    }
                    (dk, dv)
                })
                .collect();
            for (at, (k, v)) in parts.iter().enumerate() {
                add_scaled(&mut dk[at * dim..(at + 1) * dim], 1.0, k);
                add_scaled(&mut dv[at * dim..(at + 1) * dim], 1.0, v);
            }
        }
        [o, dq, dk, dv]
    }
}

/// What the gradients of a query need: its output, the logarithm of its sum of exponentials, and do·o.
struct Row {
    output: Vec<f64>,
    lse: f64,
    dot: f64,
}

impl Row {
    fn solve(q: &[f64], g: &[f64], keys: &[f64], values: &[f64], visible: Range<usize>, scale: f64) -> Self {
        let dim = q.len();
        let mut output = vec![0.0; dim];
        let scores: Vec<f64> = visible.clone().map(|key| scale * dot(q, &keys[key * dim..][..dim])).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
        for (key, score) in visible.zip(&scores) {
            add_scaled(&mut output, (score - largest).exp() / sum, &values[key * dim..][..dim]);
        }
        let dot = dot(&output, g);
        Self { output, lse: largest + sum.ln(), dot }
    }

    fn query_gradient(
        &self,
        q: &[f64],
        g: &[f64],
        keys: &[f64],
        values: &[f64],
        visible: Range<usize>,
        scale: f64,
    ) -> Vec<f64> {
        let dim = q.len();
        let mut dq = vec![0.0; dim];
        for key in visible {
            let k = &keys[key * dim..][..dim];
            let p = (scale * dot(q, k) - self.lse).exp();
            add_scaled(&mut dq, p * (dot(g, &values[key * dim..][..dim]) - self.dot) * scale, k);
        }
        dq
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add_scaled(to: &mut [f64], factor: f64, x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
}
