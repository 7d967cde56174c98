//! The forward and the backward pass on the CPU.

use super::norm::{HeadRotation, QkNorm, QkNormRope};
use crate::device::{Elem, Real};
use crate::ir::CpuNode;
use crate::ops::attention::Heads;
use crate::ops::attention::rows::scale;
use crate::ops::lanes::{dot, rows_per_partial};
use crate::ops::rope::ROWS;
use crate::ops::rotary::{Angles, Rotation, rotate, rotate_back};
use std::sync::Arc;

/// A table of rotations, the positions of all rows, and whether heads rotate before the norm.
struct Turn<'a, A> {
    rotation: Arc<Rotation<A>>,
    positions: &'a [u32],
    first: bool,
}

/// The constants that both passes of an op need, in one number type.
pub(super) struct Pass<'a, E: Elem> {
    heads: Heads,
    eps: E::Acc,
    /// Width of the rows with queries and keys.
    row_width: usize,
    /// Index of the first weight among the inputs, and of its gradient among the outputs.
    weights_at: usize,
    /// wq and wk with their offset.
    weights: Option<[Vec<E::Acc>; 2]>,
    turn: Option<Turn<'a, E::Acc>>,
}

impl<'a, E: Elem> Pass<'a, E> {
    pub(super) fn new(cx: &CpuNode<'a>, op: &QkNormRope) -> Self {
        let QkNorm { heads, eps, weighted, weight_offset } = op.norm;
        let offset = E::Acc::from_f64(weight_offset);
        let weight = |i: usize| {
            let stored = cx.input::<E::Acc>(i).slice(0, heads.dim);
            stored.iter().map(|w| if weight_offset == 0.0 { *w } else { *w + offset }).collect()
        };
        let (row_width, weights_at) = (op.row_width(), op.weights_at());
        let weights = weighted.then(|| [weight(weights_at), weight(weights_at + 1)]);
        let turn = op.rotation.map(|HeadRotation { rotary, first }| {
            let positions = cx.input_u32(op.positions_at());
            let rotation = Rotation::covering(positions, rotary);
            Turn { rotation, positions, first }
        });
        Self { heads, eps: E::Acc::from_f64(eps), row_width, weights_at, weights, turn }
    }

    /// Returns the index of the weight for the `i`-th head of a row: 0 for queries, 1 for keys.
    #[inline(always)]
    fn weight_index(&self, i: usize) -> usize {
        usize::from(i >= self.heads.query)
    }

    /// Returns 1 / √(mean(x²) + eps).
    #[inline(always)]
    fn reciprocal_norm(&self, x: &[E::Acc]) -> E::Acc {
        let mean = dot(x, x) / E::Acc::from_f64(x.len() as f64);
        E::Acc::ONE / (mean + self.eps).sqrt()
    }

    /// Returns the cosines and sines of row `r` if the rotation comes before the norm (`first`) or after it.
    #[inline(always)]
    fn angles(&self, r: usize, first: bool) -> Option<Angles<'_, E::Acc>> {
        let turn = self.turn.as_ref().filter(|turn| turn.first == first)?;
        Some(turn.rotation.at(turn.positions[r]))
    }

    pub(super) fn forward(&self, cx: &CpuNode<'_>) {
        let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
        let (dim, width, from) = (self.heads.dim, self.heads.width(), self.row_width);
        let values = (from < width).then(|| cx.input::<E>(1));
        cx.pool.chunks(
            x.len() / from,
            ROWS,
            #[inline(always)]
            |start, count| {
                let mut row = vec![E::Acc::ZERO; width];
                for r in start..start + count {
                    x.prefetch((r + 1) * from, from);
                    x.load(r * from, &mut row[..from]);
                    if let Some(values) = values {
                        values.load(r * (width - from), &mut row[from..]);
                    }
                    let (before, after) = (self.angles(r, true), self.angles(r, false));
                    let turned = &mut row[..self.heads.value_at(0)];
                    for (i, head) in turned.chunks_exact_mut(dim).enumerate() {
                        if let Some(angles) = before {
                            rotate(head, angles);
                        }
                        let norm = self.reciprocal_norm(head);
                        match &self.weights {
                            Some(weights) => {
                                let weight = &weights[self.weight_index(i)];
                                head.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * norm * *w);
                            }
                            None => scale(head, norm),
                        }
                        if let Some(angles) = after {
                            rotate(head, angles);
                        }
                    }
                    y.store(r * width, &row);
                }
            },
        );
    }

    /// Writes the gradients of the rows and the weights. Let u be the input of the norm (x, or x rotated),
    /// ‖u‖ its root mean square, û = u/‖u‖, and g the gradient of the norm's output (rotated back if the
    /// rotation comes after the norm). Then dw = Σ g·û and du = (g·w − û·mean(g·w·û)) / ‖u‖; dx is du,
    /// rotated back if x was rotated.
    pub(super) fn backward(&self, cx: &CpuNode<'_>, upstream: usize) {
        let (x, dy) = (cx.input::<E>(0), cx.input::<E>(upstream));
        let dx = cx.output::<E>(0);
        let (dim, width, turned) = (self.heads.dim, self.heads.width(), self.heads.value_at(0));
        let from = self.row_width;
        let of_values = (from < width).then(|| cx.output::<E>(1));
        let rows = x.len() / from;
        let run = if self.weights.is_some() { rows_per_partial(rows) } else { ROWS };
        cx.pool.chunks(
            rows,
            run,
            #[inline(always)]
            |start, count| {
                let (mut normal, mut row) = (vec![E::Acc::ZERO; turned], vec![E::Acc::ZERO; width]);
                let mut dw = vec![E::Acc::ZERO; 2 * dim];
                let inv_n = E::Acc::ONE / E::Acc::from_f64(dim as f64);
                for r in start..start + count {
                    x.prefetch((r + 1) * from, turned);
                    dy.prefetch((r + 1) * width, width);
                    x.load(r * from, &mut normal);
                    dy.load(r * width, &mut row);
                    let (before, after) = (self.angles(r, true), self.angles(r, false));
                    let heads = normal.chunks_exact_mut(dim).zip(row.chunks_exact_mut(dim));
                    for (i, (x, g)) in heads.enumerate() {
                        if let Some(angles) = before {
                            rotate(x, angles);
                        }
                        if let Some(angles) = after {
                            rotate_back(g, angles);
                        }
                        let norm = self.reciprocal_norm(x);
                        scale(x, norm);
                        if let Some(weights) = &self.weights {
                            let which = self.weight_index(i);
                            let dw = &mut dw[which * dim..(which + 1) * dim];
                            dw.iter_mut().zip(&*g).zip(&*x).for_each(|((dw, g), x)| *dw += *g * *x);
                            g.iter_mut().zip(&weights[which]).for_each(|(g, w)| *g *= *w);
                        }
                        let mean = dot(g, x) * inv_n;
                        g.iter_mut().zip(&*x).for_each(|(g, x)| *g = norm * (*g - *x * mean));
                        if let Some(angles) = before {
                            rotate_back(g, angles);
                        }
                    }
                    dx.store(r * from, &row[..from]);
                    if let Some(of_values) = of_values {
                        of_values.store(r * (width - from), &row[from..]);
                    }
                }
                if self.weights.is_some() {
                    cx.output::<E::Acc>(self.weights_at + 2).put(start / run * 2 * dim, &dw, false);
                }
            },
        );
        if self.weights.is_some() {
            self.reduce(cx);
        }
    }

    /// Sums the partial weight gradients of all tasks, in order.
    fn reduce(&self, cx: &CpuNode<'_>) {
        let (dim, partials) = (self.heads.dim, cx.output::<E::Acc>(self.weights_at + 2));
        let mut dw = vec![E::Acc::ZERO; 2 * dim];
        for part in partials.slice(0, partials.len()).chunks_exact(2 * dim) {
            dw.iter_mut().zip(part).for_each(|(sum, part)| *sum += *part);
        }
        for (i, dw) in dw.chunks_exact(dim).enumerate() {
            let output = self.weights_at + i;
            cx.output::<E::Acc>(output).put(0, dw, cx.adds(output));
        }
    }
}
