//! The forward pass of flash attention on the CPU. One task handles a sequence and a query head. It goes
//! through blocks of queries and, for each, through blocks of keys, with a running maximum and sum per query
//! (Milakov and Gimelshein 2018; Dao et al. 2022).

use super::rows::{LANES, Scratch, cap_scores, cut, exponentials, hide_outside, multiply_by, scale};
use super::{Attention, Extras};
use crate::device::cpu::matmul::{Matrix, Packed, operand, packed_len, widens};
use crate::device::cpu::{Pool, View, ViewMut};
use crate::device::{Elem, Real};
use crate::ops::lanes;
use std::ops::Range;

/// Queries and keys per block.
pub(super) const QUERIES: usize = 48;
pub(super) const KEYS: usize = 256;

/// Writes `o [N, H·dim]` and `lse [N, H]`, the logarithm of the sum of exponentials of each query's scores
/// and of its head's sink, if there are sinks.
pub(super) fn forward<E: Elem>(
    attention: &Attention,
    pool: &Pool,
    packed: View<'_, E>,
    (extras, sinks): (&Extras<'_>, Option<&[E::Acc]>),
    (o, lse): (ViewMut<'_, E>, ViewMut<'_, E::Acc>),
) {
    let heads = attention.heads;
    let batch = packed.len() / (heads.width() * attention.seq_len);
    pool.run(
        batch * heads.query,
        #[inline(always)]
        |task| {
            let (b, h) = (task / heads.query, task % heads.query);
            let sink = sinks.map(|sinks| sinks[h]);
            head(attention, pool.arch(), (b, h), packed, (extras, sink), (o, lse));
        },
    );
}

/// Computes one head of one sequence.
#[inline(always)]
fn head<E: Elem>(
    attention: &Attention,
    arch: pulp::Arch,
    (b, h): (usize, usize),
    packed: View<'_, E>,
    (extras, sink): (&Extras<'_>, Option<E::Acc>),
    (o, lse): (ViewMut<'_, E>, ViewMut<'_, E::Acc>),
) {
    let (heads, seq_len, dim) = (attention.heads, attention.seq_len, attention.heads.dim);
    let score_scale = E::Acc::from_f64(attention.score_scale);
    // Capped scores are already scaled.
    let cap = attention.score_cap.map(E::Acc::from_f64);
    let factor = if cap.is_some() { E::Acc::ONE } else { score_scale };
    let wide = usize::from(widens::<E>());
    let queries = QUERIES.min(seq_len);
    let keys = KEYS.min(seq_len).next_multiple_of(LANES);
    let (key_len, value_len) = (packed_len(dim, seq_len), packed_len(seq_len, dim));
    let mut scratch = Scratch::take(queries * (keys + (1 + wide) * dim + 3) + key_len + value_len + keys);
    let mut rest = scratch.all();
    let scores = cut(&mut rest, queries * keys);
    let sums = cut(&mut rest, queries * dim);
    let (max, norm, row_lse) = (cut(&mut rest, queries), cut(&mut rest, queries), cut(&mut rest, queries));
    let factors = cut(&mut rest, keys);
    let q_wide = cut(&mut rest, wide * queries * dim);
    let (k_packed, v_packed) = (cut(&mut rest, key_len), cut(&mut rest, value_len));

    let rows = Matrix::rows(packed, heads.width()).at(b * seq_len, 0);
    let g = h / heads.group();
    let k = Packed::new(arch, rows.at(0, heads.key_at(g)).t(), (dim, seq_len), k_packed);
    let v = Packed::new(arch, rows.at(0, heads.value_at(g)), (seq_len, dim), v_packed);

    for q0 in (0..seq_len).step_by(queries) {
        let count = queries.min(seq_len - q0);
        let q = operand(rows.at(q0, heads.query_at(h)), (count, dim), &mut *q_wide);
        let seen = extras.visible.keys_visible_to_any(b, q0..q0 + count);
        // A sink is the first score. Its value is zero.
        max.fill(sink.unwrap_or(E::Acc::NEG_INFINITY));
        norm.fill(if sink.is_some() { E::Acc::ONE } else { E::Acc::ZERO });
        sums.fill(E::Acc::ZERO);
        for block in blocks(&seen) {
            let width = block.len();
            let stride = width.next_multiple_of(LANES);
            let to = Matrix::rows(ViewMut::from_slice(scores), stride);
            k.multiply(count, q, 0..dim, block.clone(), to, false);
            for r in 0..count {
                let row = &mut scores[r * stride..(r + 1) * stride];
                let seen = within(&extras.visible.keys(b, q0 + r), &block);
                if seen.is_empty() {
                    row.fill(E::Acc::ZERO);
                    continue;
                }
                if let Some(cap) = cap {
                    cap_scores(&mut row[seen.clone()], score_scale, cap);
                }
                let live = hide_outside(row, &seen);
                // The keys before a gap come first, so that the running maximum is finite in the gap.
                row[within(&extras.visible.gap(b, q0 + r), &block)].fill(E::Acc::NEG_INFINITY);
                let row = &mut row[..live];
                let larger = max[r].larger(lanes::max(row) * factor);
                let sum = exponentials(row, factor, larger);
                // The first block that a query sees leaves nothing to correct.
                if max[r] == E::Acc::NEG_INFINITY {
                    norm[r] = sum;
                } else {
                    let correction = (max[r] - larger).exp();
                    norm[r] = norm[r] * correction + sum;
                    scale(&mut sums[r * dim..(r + 1) * dim], correction);
                }
                max[r] = larger;
                if let Some(c) = &extras.dropout {
                    let place = (h * seq_len + q0 + r) as u32;
                    c.drops.factors(c.step, c.sequences[b], place, block.start, &mut factors[..live]);
                    multiply_by(row, &factors[..live]);
                }
            }
            let p = Matrix::rows(View::from_slice(scores), stride);
            let to = Matrix::rows(ViewMut::from_slice(sums), dim);
            // The sums of the other columns stay zero.
            v.multiply(count, p, block.clone(), 0..attention.value_dim, to, true);
        }
        for (to, (max, norm)) in row_lse.iter_mut().zip(max.iter().zip(&*norm)) {
            *to = *max + norm.ln();
        }
        for r in 0..count {
            let row = b * seq_len + q0 + r;
            let sum = &mut sums[r * dim..(r + 1) * dim];
            // A query that sees no key yields zeros.
            let inverse = if max[r] == E::Acc::NEG_INFINITY { E::Acc::ZERO } else { E::Acc::ONE / norm[r] };
            scale(sum, inverse);
            o.store(row * heads.query * dim + h * dim, sum);
            lse.slice(row * heads.query + h, 1)[0] = row_lse[r];
        }
    }
}

/// Cuts the keys that a block of queries sees into blocks. Each block starts where a call of the dropout
/// generator starts.
pub(super) fn blocks(seen: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = seen.end;
    let start = seen.start / LANES * LANES;
    (start..end).step_by(KEYS).map(move |at| at..end.min(at + KEYS))
}

/// Returns the part of `seen` inside `block`, counted from the start of the block.
#[inline(always)]
pub(super) fn within(seen: &Range<usize>, block: &Range<usize>) -> Range<usize> {
    let start = seen.start.clamp(block.start, block.end);
    let end = seen.end.clamp(start, block.end);
    start - block.start..end - block.start
}
