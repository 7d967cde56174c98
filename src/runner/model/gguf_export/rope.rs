//! How llama.cpp rotates queries and keys.

use super::architecture::Architecture;
use crate::error::Result;
use crate::gguf::Value;
use crate::model::recording::rotary_of;
use crate::plan::Model;
use crate::policy::RopeScaling;

/// Returns the keys of the rotation, without the prefix of the architecture.
pub(super) fn keys(m: &Model) -> Vec<(&'static str, Value)> {
    let rope = &m.rope;
    let number = |value: f64| Value::F32(value as f32);
    let mut keys =
        vec![("rope.dimension_count", Value::U32(m.head_dim as u32)), ("rope.freq_base", number(rope.theta))];
    let kind = match rope.scaling {
        // The factors of frequencies say the rest.
        RopeScaling::None | RopeScaling::Llama3 => return keys,
        RopeScaling::Linear => "linear",
        RopeScaling::Yarn => "yarn",
    };
    keys.push(("rope.scaling.type", Value::Text(kind.to_owned())));
    keys.extend(rope.factor.map(|factor| ("rope.scaling.factor", number(factor))));
    if rope.scaling == RopeScaling::Yarn {
        let original = rope.original_context.map(|tokens| Value::U32(tokens as u32));
        keys.extend(original.map(|tokens| ("rope.scaling.original_context_length", tokens)));
        keys.push(("rope.scaling.yarn_beta_fast", number(rope.beta_fast)));
        keys.push(("rope.scaling.yarn_beta_slow", number(rope.beta_slow)));
    }
    keys
}

/// Returns the divisors of frequencies, one for each pair of elements of a head, if the scaling is written as
/// divisors.
///
/// # Errors
/// If a number of the scaling is missing.
pub(super) fn divisors(m: &Model, architecture: Architecture) -> Result<Option<Vec<f32>>> {
    if architecture != Architecture::Llama || m.rope.scaling != RopeScaling::Llama3 {
        return Ok(None);
    }
    let scaled = rotary_of(m, m.rope.theta, m.head_dim, false)?;
    let plain = crate::ops::rotary::Rotary::with_whole_heads(m.head_dim, m.rope.theta);
    let pairs = plain.frequencies().into_iter().zip(scaled.frequencies());
    Ok(Some(pairs.map(|(plain, scaled)| (plain / scaled) as f32).collect()))
}

/// Returns the rows of heads of `head_dim` elements in the order in which llama.cpp's `llama` rotates
/// neighbours: it has the elements of a pair side by side, and xrun has them half a head apart. `width` is
/// the length of a row.
pub(super) fn interleaved(rows: &[f32], head_dim: usize, width: usize) -> Vec<f32> {
    let half = head_dim / 2;
    let heads = rows.chunks(head_dim * width);
    let order = (0..half).flat_map(|pair| [pair, pair + half]);
    let reordered = heads.flat_map(|head| {
        order.clone().flat_map(move |row| head[row * width..(row + 1) * width].iter().copied())
    });
    reordered.collect()
}
