//! Attention by its definition in f64, for sampled rows of one head.

use super::super::numbers::Numbers;
use super::case::LongCase;
use crate::device::DType;
use crate::ops::attention::Attention;
use rayon::prelude::*;
use std::ops::Range;

/// The numbers of one sequence, already rounded: the packed rows and the gradient of the output.
pub(super) struct Sequence {
    pub packed: Vec<f64>,
    pub d_o: Vec<f64>,
}

impl Sequence {
    pub fn new(case: &LongCase, dtype: DType) -> Self {
        let Attention { heads, seq_len, .. } = case.attention;
        let numbers = |stream: usize, width: usize| -> Vec<f64> {
            let numbers = Numbers::new(&case.name());
            (0..seq_len * width)
                .into_par_iter()
                .map(|at| dtype.round(numbers.near_normal(stream, at)))
                .collect()
        };
        Self { packed: numbers(0, heads.width()), d_o: numbers(1, heads.query * heads.dim) }
    }

    /// Returns one head from the packed rows, or from the gradient of the output.
    fn head(all: &[f64], width: usize, column: usize, dim: usize) -> Vec<f64> {
        all.chunks_exact(width).flat_map(|row| row[column..column + dim].to_vec()).collect()
    }

    /// Returns one head like [`head`](Self::head), with zeros for the elements of values that are not read.
    fn head_of_values(case: &LongCase, all: &[f64], width: usize, column: usize) -> Vec<f64> {
        let Attention { heads, value_dim, .. } = case.attention;
        let mut head = Self::head(all, width, column, heads.dim);
        head.chunks_exact_mut(heads.dim).for_each(|row| row[value_dim..].fill(0.0));
        head
    }

    /// Returns sampled rows of the output, dq, dk and dv for the last key and value head, by definition.
    pub fn reference(&self, case: &LongCase) -> [Rows; 4] {
        let Attention { heads, seq_len, .. } = case.attention;
        let (dim, last) = (heads.dim, heads.kv - 1);
        let packed = |column| Self::head(&self.packed, heads.width(), column, dim);
        let keys = packed(heads.key_at(last));
        let values = Self::head_of_values(case, &self.packed, heads.width(), heads.value_at(last));
        let sampled = case.sampled_rows();
        let [mut o, mut dq] = [Rows::default(), Rows::default()];
        let [mut dk, mut dv] = [Rows::zeros(sampled.len(), dim), Rows::zeros(sampled.len(), dim)];
        for h in last * heads.group()..heads.query {
            let head = Head {
                scale: case.attention.score_scale,
                cap: case.attention.score_cap,
                dim,
                queries: &packed(heads.query_at(h)),
                d_o: &Self::head_of_values(case, &self.d_o, heads.query * dim, h * dim),
                keys: &keys,
                values: &values,
            };
            let solved: Vec<QueryResult> =
                (0..seq_len).into_par_iter().map(|t| head.solve(t, case.visible(t))).collect();
            for &t in &sampled {
                o.push(&solved[t].output);
                dq.push(&head.query_gradient(t, case.visible(t), &solved[t]));
            }
            let parts: Vec<[Sum; 2]> = sampled
                .par_iter()
                .map(|&key| {
                    let seeing = (key..seq_len).filter(|&t| case.visible(t).contains(&key));
                    head.key_gradients(key, seeing, &solved)
                })
                .collect();
            for (at, [k, v]) in parts.iter().enumerate() {
                dk.add(at, k);
                dv.add(at, v);
            }
        }
        [o, dq, dk, dv]
    }
}

/// Rows of a tensor, each with the size of its terms: the root of the sum of their squared norms. Rounding
/// errors are proportional to that size even if the terms cancel.
#[derive(Default)]
pub(super) struct Rows {
    pub values: Vec<f64>,
    /// Squared sizes.
    sizes: Vec<f64>,
}

impl Rows {
    fn zeros(rows: usize, dim: usize) -> Self {
        Self { values: vec![0.0; rows * dim], sizes: vec![0.0; rows] }
    }

    fn push(&mut self, row: &Sum) {
        self.values.extend(&row.value);
        self.sizes.push(row.size);
    }

    fn add(&mut self, at: usize, row: &Sum) {
        let dim = row.value.len();
        add_scaled(&mut self.values[at * dim..(at + 1) * dim], 1.0, &row.value);
        self.sizes[at] += row.size;
    }

    /// Returns the root mean square, over rows, of a row's error relative to the size of its terms; infinite
    /// if lengths differ.
    pub fn error_of(&self, have: &[f64]) -> f64 {
        if have.len() != self.values.len() {
            return f64::INFINITY;
        }
        let dim = have.len() / self.sizes.len();
        let rows = have.chunks_exact(dim).zip(self.values.chunks_exact(dim)).zip(&self.sizes);
        let errors = rows.map(|((have, want), size)| {
            let squares: f64 = have.iter().zip(want).map(|(h, w)| (h - w) * (h - w)).sum();
            // A row without terms is exactly zero.
            if squares == 0.0 { 0.0 } else { squares / size }
        });
        (errors.sum::<f64>() / self.sizes.len() as f64).sqrt()
    }
}

/// A sum of vectors, and the sum of their squared norms.
struct Sum {
    value: Vec<f64>,
    size: f64,
}

impl Sum {
    fn new(dim: usize) -> Self {
        Self { value: vec![0.0; dim], size: 0.0 }
    }

    /// Adds `factor·x`, whose rounding error is proportional to `largest·x`.
    fn add(&mut self, factor: f64, largest: f64, x: &[f64]) {
        add_scaled(&mut self.value, factor, x);
        self.size += largest * largest * dot(x, x);
    }
}

/// What the gradients of a query need: its output, the logarithm of its sum of exponentials, and do·o.
struct QueryResult {
    output: Sum,
    lse: f64,
    dot: f64,
}

/// A query head of a sequence with its keys and values; each row is `dim` long.
struct Head<'a> {
    scale: f64,
    cap: Option<f64>,
    dim: usize,
    queries: &'a [f64],
    d_o: &'a [f64],
    keys: &'a [f64],
    values: &'a [f64],
}

impl Head<'_> {
    fn row<'a>(&self, all: &'a [f64], at: usize) -> &'a [f64] {
        &all[at * self.dim..(at + 1) * self.dim]
    }

    /// Returns a score and its derivative with respect to the product of query and key.
    fn score_and_slope(&self, t: usize, key: usize) -> (f64, f64) {
        let score = self.scale * dot(self.row(self.queries, t), self.row(self.keys, key));
        let Some(cap) = self.cap else { return (score, self.scale) };
        let tanh = (score / cap).tanh();
        (cap * tanh, (1.0 - tanh * tanh) * self.scale)
    }

    fn score(&self, t: usize, key: usize) -> f64 {
        self.score_and_slope(t, key).0
    }

    /// Returns the gradient of the product of query and key, and the size of the terms subtracted in it.
    fn score_gradient(&self, t: usize, key: usize, solved: &QueryResult) -> (f64, f64) {
        let (score, slope) = self.score_and_slope(t, key);
        let p = (score - solved.lse).exp();
        let dp = dot(self.row(self.d_o, t), self.row(self.values, key));
        (p * (dp - solved.dot) * slope, p * (dp.abs() + solved.dot.abs()) * slope)
    }

    fn solve(&self, t: usize, visible: Range<usize>) -> QueryResult {
        let scores: Vec<f64> = visible.clone().map(|key| self.score(t, key)).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
        let mut output = Sum::new(self.dim);
        for (key, score) in visible.zip(&scores) {
            let p = (score - largest).exp() / sum;
            output.add(p, p, self.row(self.values, key));
        }
        let dot = dot(&output.value, self.row(self.d_o, t));
        QueryResult { output, lse: largest + sum.ln(), dot }
    }

    fn query_gradient(&self, t: usize, visible: Range<usize>, solved: &QueryResult) -> Sum {
        let mut dq = Sum::new(self.dim);
        for key in visible {
            let (ds, size) = self.score_gradient(t, key, solved);
            dq.add(ds, size, self.row(self.keys, key));
        }
        dq
    }

    /// Returns the gradients of a key and its value, over the queries that see it.
    fn key_gradients(
        &self,
        key: usize,
        seeing: impl Iterator<Item = usize>,
        solved: &[QueryResult],
    ) -> [Sum; 2] {
        let [mut dk, mut dv] = [Sum::new(self.dim), Sum::new(self.dim)];
        for t in seeing {
            let (ds, size) = self.score_gradient(t, key, &solved[t]);
            dk.add(ds, size, self.row(self.queries, t));
            let p = (self.score(t, key) - solved[t].lse).exp();
            dv.add(p, p, self.row(self.d_o, t));
        }
        [dk, dv]
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add_scaled(to: &mut [f64], factor: f64, x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
}
