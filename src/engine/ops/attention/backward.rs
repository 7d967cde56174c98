//! The backward pass of flash attention on the CPU. One task handles a sequence and a key head, and sums dK
//! and dV over the query heads of the group in order (Dao et al. 2022, algorithm 4).
//!
//! With P = e^(S − lse) and dropout factors F: dV = (P∘F)ᵀ·dO, dP = F∘(dO·Vᵀ), dS = P∘(dP − D)/√dim, where D
//! = Σ dO∘O per query, dQ = dS·K, dK = dSᵀ·Q. With a cap, dS is multiplied by the cap's slope.

use super::forward::{KEYS, QUERIES, blocks, within};
use super::rows::{LANES, Scratch, cap_scores_with_slopes, cut, exponentials, hide_outside, multiply_by};
use super::{Attention, Extras};
use crate::device::cpu::matmul::{Matrix, Packed, operand, packed_len, widens};
use crate::device::cpu::{Pool, ROWS_AHEAD, View, ViewMut};
use crate::device::{Elem, Real};
use crate::ops::lanes;

/// The tensors that the backward pass reads, and the gradient of the packed rows that it writes.
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
        |task| group(attention, pool.arch(), (task / heads.kv, task % heads.kv), tensors, extras),
    );
}

/// Computes one key head of one sequence, with all query heads that use it.
#[inline(always)]
fn group<E: Elem>(
    attention: &Attention,
    arch: pulp::Arch,
    (b, g): (usize, usize),
    tensors: Tensors<'_, E>,
    extras: &Extras<'_>,
) {
    let (heads, seq_len, dim) = (attention.heads, attention.seq_len, attention.heads.dim);
    // Columns of values and dO that are read. The sums of dV in the others stay zero.
    let value_dim = attention.value_dim;
    let score_scale = E::Acc::from_f64(attention.score_scale);
    // Capped scores are already scaled.
    let cap = attention.score_cap.map(E::Acc::from_f64);
    let factor = if cap.is_some() { E::Acc::ONE } else { score_scale };
    let (width, o_width) = (heads.width(), heads.query * dim);
    let wide = usize::from(widens::<E>());
    let queries = QUERIES.min(seq_len);
    let keys = KEYS.min(seq_len).next_multiple_of(LANES);
    let keys_len = seq_len * dim;
    let queries_len = queries * dim;
    let (across, down) = (packed_len(dim, seq_len), packed_len(seq_len, dim));
    let per_block = packed_len(queries, dim);
    let mut scratch = Scratch::take(
        2 * queries * keys
            + keys * (1 + usize::from(cap.is_some()))
            + queries
            + 3 * queries_len
            + 2 * wide * queries_len
            + 2 * keys_len
            + 2 * across
            + down
            + 2 * per_block,
    );
    let mut rest = scratch.all();
    let (p, dp) = (cut(&mut rest, queries * keys), cut(&mut rest, queries * keys));
    let (factors, delta) = (cut(&mut rest, keys), cut(&mut rest, queries));
    let slopes = cut(&mut rest, keys * usize::from(cap.is_some()));
    let (o_row, d_o_row) = (cut(&mut rest, dim), cut(&mut rest, dim));
    let dq = cut(&mut rest, queries_len);
    let (dk, dv) = (cut(&mut rest, keys_len), cut(&mut rest, keys_len));
    let (q_wide, d_o_wide) = (cut(&mut rest, wide * queries_len), cut(&mut rest, wide * queries_len));
    let (k_across, v_across) = (cut(&mut rest, across), cut(&mut rest, across));
    let k_down = cut(&mut rest, down);
    let (q_packed, d_o_packed) = (cut(&mut rest, per_block), cut(&mut rest, per_block));
    dk.fill(E::Acc::ZERO);
    dv.fill(E::Acc::ZERO);

    let first = b * seq_len;
    let rows = Matrix::rows(tensors.packed, width).at(first, 0);
    let (k, v) = (rows.at(0, heads.key_at(g)), rows.at(0, heads.value_at(g)));
    let k_across = Packed::new(arch, k.t(), (dim, seq_len), k_across);
    let v_across = Packed::new(arch, v.t(), (dim, seq_len), v_across);
    let k_down = Packed::new(arch, k, (seq_len, dim), k_down);

    for h in g * heads.group()..(g + 1) * heads.group() {
        for q0 in (0..seq_len).step_by(queries) {
            let count = queries.min(seq_len - q0);
            let q = rows.at(q0, heads.query_at(h));
            let d_o = Matrix::rows(tensors.d_o, o_width).at(first + q0, h * dim);
            let (q_packed, d_o_packed) = (
                Packed::new(arch, q, (count, dim), &mut *q_packed),
                Packed::new(arch, d_o, (count, dim), &mut *d_o_packed),
            );
            let q = operand(q, (count, dim), &mut *q_wide);
            let d_o = operand(d_o, (count, dim), &mut *d_o_wide);
            for (r, delta) in delta[..count].iter_mut().enumerate() {
                let at = (first + q0 + r) * o_width + h * dim;
                tensors.o.prefetch(at + ROWS_AHEAD * o_width, dim);
                tensors.d_o.prefetch(at + ROWS_AHEAD * o_width, dim);
                tensors.o.load(at, o_row);
                tensors.d_o.load(at, d_o_row);
                *delta = lanes::dot(&o_row[..value_dim], &d_o_row[..value_dim]);
            }
            dq.fill(E::Acc::ZERO);
            for block in blocks(&extras.visible.keys_visible_to_any(b, q0..q0 + count)) {
                let width = block.len();
                let stride = width.next_multiple_of(LANES);
                let to = Matrix::rows(ViewMut::from_slice(p), stride);
                k_across.multiply(count, q, 0..dim, block.clone(), to, false);
                let to = Matrix::rows(ViewMut::from_slice(dp), stride);
                v_across.multiply(count, d_o, 0..value_dim, block.clone(), to, false);
                for r in 0..count {
                    let p = &mut p[r * stride..(r + 1) * stride];
                    let dp = &mut dp[r * stride..(r + 1) * stride];
                    let seen = within(&extras.visible.keys(b, q0 + r), &block);
                    if seen.is_empty() {
                        p.fill(E::Acc::ZERO);
                        dp.fill(E::Acc::ZERO);
                        continue;
                    }
                    if let Some(cap) = cap {
                        let (p, slopes) = (&mut p[seen.clone()], &mut slopes[seen.clone()]);
                        cap_scores_with_slopes(p, slopes, score_scale, cap);
                    }
                    let live = hide_outside(p, &seen);
                    dp[width.min(live)..].fill(E::Acc::ZERO);
                    let (p, dp) = (&mut p[..live], &mut dp[..live]);
                    exponentials(p, factor, tensors.lse.get((first + q0 + r) * heads.query + h));
                    let delta = delta[r];
                    if let Some(c) = &extras.dropout {
                        let place = (h * seq_len + q0 + r) as u32;
                        let factors = &mut factors[..live];
                        c.drops.factors(c.step, c.sequences[b], place, block.start, factors);
                        multiply_by(dp, factors);
                        dp.iter_mut().zip(&*p).for_each(|(dp, p)| *dp = *p * (*dp - delta) * score_scale);
                        multiply_by(p, factors);
                    } else {
                        dp.iter_mut().zip(&*p).for_each(|(dp, p)| *dp = *p * (*dp - delta) * score_scale);
                    }
                    if cap.is_some() {
                        multiply_by(&mut dp[seen.clone()], &slopes[seen]);
                    }
                }
                let (p, ds) =
                    (Matrix::rows(View::from_slice(p), stride), Matrix::rows(View::from_slice(dp), stride));
                let to = Matrix::rows(ViewMut::from_slice(dv), dim).at(block.start, 0);
                d_o_packed.multiply(width, p.t(), 0..count, 0..value_dim, to, true);
                let to = Matrix::rows(ViewMut::from_slice(dq), dim);
                k_down.multiply(count, ds, block.clone(), 0..dim, to, true);
                let to = Matrix::rows(ViewMut::from_slice(dk), dim).at(block.start, 0);
                q_packed.multiply(width, ds.t(), 0..count, 0..dim, to, true);
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
