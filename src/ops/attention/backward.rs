//! Flash attention, backward, on the CPU: one task per sequence and key head, which adds up dK and dV over
//! the query heads of its group in order (Dao et al. 2022, algorithm 4).
//!
//! With P = e^(S − lse) and dropout factors F: dV = (P∘F)ᵀ·dO, dP = F∘(dO·Vᵀ), dS = P∘(dP − D) where
//! D = Σ dO∘O per query, dQ = dS·K/√dim, dK = dSᵀ·Q/√dim.

use super::forward::{KEYS, QUERIES, blocks, within};
use super::rows::{LANES, Scratch, cut, exponentials, hide_outside, multiply_by};
use super::{Attention, Extras};
use crate::device::cpu::matmul::{Matrix, multiply, operand, widens};
use crate::device::cpu::{Pool, View, ViewMut};
use crate::device::{Elem, Real};
use crate::ops::lanes;

/// The tensors that the backward reads, and the gradient of the packed rows that it writes.
#[derive(Clone, Copy)]
pub(super) struct Tensors<'a, E: Elem> {
    pub packed: View<'a, E>,
    pub o: View<'a, E>,
    pub lse: View<'a, E::Acc>,
    pub d_o: View<'a, E>,
    pub d_packed: ViewMut<'a, E>,
}

/// Writes the gradient of all packed rows.
pub(super) fn backward<E: Elem>(
    attention: &Attention,
    pool: &Pool,
    tensors: Tensors<'_, E>,
    extras: &Extras<'_>,
) {
    let heads = attention.heads;
    let batch = tensors.packed.len() / (heads.width() * attention.seq_len);
    pool.run(
        batch * heads.kv,
        #[inline(always)]
        |task| group(attention, (task / heads.kv, task % heads.kv), tensors, extras),
    );
}

/// One key head of one sequence, with all query heads that use it.
#[inline(always)]
fn group<E: Elem>(
    attention: &Attention,
    (b, g): (usize, usize),
    tensors: Tensors<'_, E>,
    extras: &Extras<'_>,
) {
    let (heads, seq_len, dim) = (attention.heads, attention.seq_len, attention.heads.dim);
    let score_scale = E::Acc::from_f64(heads.score_scale());
    let (width, o_width) = (heads.width(), heads.query * dim);
    let wide = usize::from(widens::<E>());
    let queries = QUERIES.min(seq_len);
    let keys = KEYS.min(seq_len).next_multiple_of(LANES);
    let of_keys = seq_len * dim;
    let of_queries = queries * dim;
    let mut scratch = Scratch::take(
        2 * queries * keys
            + keys
            + queries
            + 3 * of_queries
            + 2 * wide * of_queries
            + 2 * (1 + wide) * of_keys,
    );
    let mut rest = scratch.all();
    let (p, dp) = (cut(&mut rest, queries * keys), cut(&mut rest, queries * keys));
    let (factors, delta) = (cut(&mut rest, keys), cut(&mut rest, queries));
    let (o_row, d_o_row) = (cut(&mut rest, dim), cut(&mut rest, dim));
    let dq = cut(&mut rest, of_queries);
    let (dk, dv) = (cut(&mut rest, of_keys), cut(&mut rest, of_keys));
    let (q_wide, d_o_wide) = (cut(&mut rest, wide * of_queries), cut(&mut rest, wide * of_queries));
    let (k_wide, v_wide) = (cut(&mut rest, wide * of_keys), cut(&mut rest, wide * of_keys));
    dk.fill(E::Acc::ZERO);
    dv.fill(E::Acc::ZERO);

    let first = b * seq_len;
    let rows = Matrix::rows(tensors.packed, width).at(first, 0);
    let k = operand(rows.at(0, heads.key_at(g)), (seq_len, dim), k_wide);
    let v = operand(rows.at(0, heads.value_at(g)), (seq_len, dim), v_wide);

    for h in g * heads.group()..(g + 1) * heads.group() {
        for q0 in (0..seq_len).step_by(queries) {
            let count = queries.min(seq_len - q0);
            let q = operand(rows.at(q0, heads.query_at(h)), (count, dim), &mut *q_wide);
            let d_o = Matrix::rows(tensors.d_o, o_width).at(first + q0, h * dim);
            let d_o = operand(d_o, (count, dim), &mut *d_o_wide);
            for (r, delta) in delta[..count].iter_mut().enumerate() {
                let at = (first + q0 + r) * o_width + h * dim;
                tensors.o.load(at, o_row);
                tensors.d_o.load(at, d_o_row);
                *delta = lanes::dot(o_row, d_o_row);
            }
            dq.fill(E::Acc::ZERO);
            for block in blocks(&extras.visible.keys_of_any(b, q0..q0 + count)) {
                let width = block.len();
                let stride = width.next_multiple_of(LANES);
                let (k, v) = (k.at(block.start, 0), v.at(block.start, 0));
                multiply(
                    (count, width, dim),
                    score_scale,
                    q,
                    k.t(),
                    Matrix::rows(ViewMut::from_slice(p), stride),
                    false,
                );
                multiply(
                    (count, width, dim),
                    E::Acc::ONE,
                    d_o,
                    v.t(),
                    Matrix::rows(ViewMut::from_slice(dp), stride),
                    false,
                );
                for r in 0..count {
                    let p = &mut p[r * stride..(r + 1) * stride];
                    let dp = &mut dp[r * stride..(r + 1) * stride];
                    let seen = within(&extras.visible.keys(b, q0 + r), &block);
                    if seen.is_empty() {
                        p.fill(E::Acc::ZERO);
                        dp.fill(E::Acc::ZERO);
                        continue;
                    }
                    let live = hide_outside(p, &seen);
                    dp[width.min(live)..].fill(E::Acc::ZERO);
                    let (p, dp) = (&mut p[..live], &mut dp[..live]);
                    exponentials(p, tensors.lse.get((first + q0 + r) * heads.query + h));
                    let delta = delta[r];
                    if let Some(c) = &extras.dropout {
                        let place = (h * seq_len + q0 + r) as u32;
                        let factors = &mut factors[..live];
                        c.drops.factors(c.step, c.sequences[b], place, block.start, factors);
                        multiply_by(dp, factors);
                        dp.iter_mut().zip(&*p).for_each(|(dp, p)| *dp = *p * (*dp - delta));
                        multiply_by(p, factors);
                    } else {
                        dp.iter_mut().zip(&*p).for_each(|(dp, p)| *dp = *p * (*dp - delta));
                    }
                }
                let (p, ds) =
                    (Matrix::rows(View::from_slice(p), stride), Matrix::rows(View::from_slice(dp), stride));
                let dv = Matrix::rows(ViewMut::from_slice(dv), dim).at(block.start, 0);
                multiply((width, dim, count), E::Acc::ONE, p.t(), d_o, dv, true);
                multiply(
                    (count, dim, width),
                    score_scale,
                    ds,
                    k,
                    Matrix::rows(ViewMut::from_slice(dq), dim),
                    true,
                );
                let dk = Matrix::rows(ViewMut::from_slice(dk), dim).at(block.start, 0);
                multiply((width, dim, count), score_scale, ds.t(), q, dk, true);
            }
            for (r, dq) in dq.chunks_exact(dim).take(count).enumerate() {
                tensors.d_packed.store((first + q0 + r) * width + heads.query_at(h), dq);
            }
        }
    }
    for (t, (dk, dv)) in dk.chunks_exact(dim).zip(dv.chunks_exact(dim)).enumerate() {
        tensors.d_packed.store((first + t) * width + heads.key_at(g), dk);
        tensors.d_packed.store((first + t) * width + heads.value_at(g), dv);
    }
}
