//! The forms of attention: what is done to the heads of queries and keys before it, and where these and the
//! values come from.

use super::readers::Readers;
use super::step::{HeadNorm, Match, PackedAttention, Rotation, StepKind, WeightedNorm, alone, packed_heads};
use super::view::View;
use crate::model_text::{NormKind, Operation};

/// Attention of queries, keys and values that are slices of one product.
pub(super) fn packed_attention(r: &Readers<'_>, root: usize) -> Option<Match> {
    let form = Form::new(r, root)?;
    let attention = form.attention?;
    let [query, key, value] = form.sources.map(|source| View::new(r.graph, source));
    let (packed, heads) = (query.base, attention.heads);
    let ends = [heads.key_at(0), heads.value_at(0), heads.width()];
    let whole = r.graph.nodes[packed].shape;
    let parts = [query, key, value].map(|part| (part.base, part.from, part.from + part.elements()));
    let in_order = parts == [(packed, 0, ends[0]), (packed, ends[0], ends[1]), (packed, ends[1], ends[2])];
    if !in_order || (whole.heads, whole.width) != (1, ends[2]) || form.widths[0] != form.widths[1] {
        return None;
    }
    Some(Match { inner: form.inner, ..alone(root, StepKind::Attention(attention), vec![packed])? })
}

/// Attention of values that are computed apart, with norms and rotations of queries and keys.
pub(super) fn changed_attention(r: &Readers<'_>, root: usize) -> Option<Match> {
    let form = Form::new(r, root)?;
    let attention = form.attention.filter(|_| form.widths[0] == form.widths[1])?;
    let kind = StepKind::UnpackedAttention(attention, form.widths);
    Some(Match { inner: form.inner, ..alone(root, kind, form.sources.to_vec())? })
}

/// Attention of values of any origin, as they are.
pub(super) fn unpacked_attention(r: &Readers<'_>, root: usize) -> Option<Match> {
    let (attention, widths) = plain(r, root)?;
    alone(root, StepKind::UnpackedAttention(attention, widths), r.inputs(root)[..3].to_vec())
}

/// Returns attention without what is done to heads before it, and the widths of keys and values.
fn plain(r: &Readers<'_>, root: usize) -> Option<(PackedAttention, [usize; 2])> {
    let Operation::Attention { window, cap, scale, dropout } = *r.operation(root) else { return None };
    let &[query, key, value, ref sinks @ ..] = r.inputs(root) else { return None };
    let sinks = match sinks {
        [] => None,
        [sinks] => match *r.operation(*sinks) {
            Operation::Vector(parameter) => Some(parameter),
            _ => return None,
        },
        _ => return None,
    };
    let [query, key, value] = [query, key, value].map(|node| r.graph.nodes[node].shape);
    let widths = [query.width, value.width];
    let heads = packed_heads([query.heads, key.heads], widths);
    let attention = PackedAttention {
        heads,
        value_dim: heads.value_dim(widths[1]),
        norm: None,
        rotation: None,
        rotates_first: false,
        scale,
        window,
        cap,
        dropout: (dropout > 0.0).then(|| (dropout, r.site(root))),
        sinks,
    };
    Some((attention, widths))
}

/// Attention with what is done to the heads of queries and keys.
struct Form {
    /// `None` if no op does it to both.
    attention: Option<PackedAttention>,
    widths: [usize; 2],
    /// The values that queries, keys and values are made of.
    sources: [usize; 3],
    /// What is computed between these and the attention.
    inner: Vec<usize>,
}

impl Form {
    fn new(r: &Readers<'_>, root: usize) -> Option<Self> {
        let (attention, widths) = plain(r, root)?;
        let &[query, key, value, ..] = r.inputs(root) else { return None };
        let mut inner = Vec::new();
        let [query, key] = [query, key].map(|node| Heads::new(r, node, &mut inner));
        let scale = attention.scale * query.factor * key.factor;
        let attention = changes(&query.changes, &key.changes).map(|(norm, rotation, rotates_first)| {
            PackedAttention { norm, rotation, rotates_first, scale, ..attention }
        });
        Some(Self { attention, widths, sources: [query.source, key.source, value], inner })
    }
}

/// What is done to heads.
#[derive(Clone, Copy)]
enum HeadChange {
    /// Norm by root mean square.
    Norm(WeightedNorm),
    Rotation(Rotation),
}

/// Heads and what is done to them, in this order, and a factor at the end.
struct Heads {
    source: usize,
    changes: Vec<HeadChange>,
    factor: f64,
}

impl Heads {
    /// Follows heads back to the value that they are made of. Adds what lies between to `inner`.
    fn new(r: &Readers<'_>, node: usize, inner: &mut Vec<usize>) -> Self {
        let mut heads = Self { source: node, changes: Vec::new(), factor: 1.0 };
        loop {
            let node = heads.source;
            let is_rms = |norm: &WeightedNorm| norm.norm.kind == NormKind::Rms;
            if let Some((norm, of, within)) = r.norm(node).filter(|(norm, ..)| is_rms(norm)) {
                heads.changes.push(HeadChange::Norm(norm));
                inner.push(node);
                inner.extend(within);
                heads.source = of;
                continue;
            }
            match *r.operation(node) {
                Operation::Rope { theta, width, reversed } => {
                    heads.changes.push(HeadChange::Rotation(Rotation { theta, width, reversed }));
                }
                // A rotation keeps a factor, and a norm does not.
                _ => match r.times_number(node) {
                    Some((factor, of)) if !heads.has_norm() => {
                        heads.factor *= factor;
                        inner.push(node);
                        heads.source = of;
                        continue;
                    }
                    _ => break,
                },
            }
            inner.push(node);
            heads.source = r.inputs(node)[0];
        }
        heads.changes.reverse();
        heads
    }

    fn has_norm(&self) -> bool {
        self.changes.iter().any(|change| matches!(change, HeadChange::Norm(..)))
    }
}

/// Returns the norms and the rotation that one op computes of both queries and keys, and true if it rotates
/// first.
fn changes(query: &[HeadChange], key: &[HeadChange]) -> Option<(Option<HeadNorm>, Option<Rotation>, bool)> {
    use HeadChange::{Norm, Rotation};
    Some(match (query, key) {
        ([], []) => (None, None, false),
        (&[Norm(q)], &[Norm(k)]) => (Some(norms(q, k)?), None, false),
        (&[Rotation(q)], &[Rotation(k)]) if q == k => (None, Some(q), false),
        (&[Norm(q), Rotation(by)], &[Norm(k), Rotation(other)]) if by == other => {
            (Some(norms(q, k)?), Some(by), false)
        }
        (&[Rotation(by), Norm(q)], &[Rotation(other), Norm(k)]) if by == other => {
            (Some(norms(q, k)?), Some(by), true)
        }
        _ => return None,
    })
}

/// Returns the norms of queries and keys, if one op computes both.
fn norms(query: WeightedNorm, key: WeightedNorm) -> Option<HeadNorm> {
    let weights = match (query.norm.weight, key.norm.weight) {
        (Some(query), Some(key)) => Some([query, key]),
        (None, None) => None,
        _ => return None,
    };
    let (eps, weight_offset) = (query.norm.eps, query.weight_offset);
    let is_one = eps == key.norm.eps && weight_offset == key.weight_offset;
    is_one.then_some(HeadNorm { eps, weights, weight_offset })
}
