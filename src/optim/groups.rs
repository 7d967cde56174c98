//! Groups of parameters by role: what an optimizer treats alike.

use crate::ir::{Role, State};
use crate::ops::segments::{Segment, Segments};
use std::sync::Arc;

/// Neighbouring parameters of one role, as a range of the flat buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamGroup {
    /// Their role.
    pub role: Role,
    /// First element.
    pub start: usize,
    /// Number of elements, padding included.
    pub len: usize,
}

/// Returns the groups of a state in the order of the flat buffers, which they cover.
pub fn param_groups(state: &State) -> Vec<ParamGroup> {
    let mut groups: Vec<ParamGroup> = Vec::new();
    for (i, param) in state.params.iter().enumerate() {
        let end = state.params.get(i + 1).map_or(state.flat_len, |next| next.start);
        let len = end - param.start;
        match groups.last_mut() {
            Some(last) if last.role == param.role => last.len += len,
            _ => groups.push(ParamGroup { role: param.role, start: param.start, len }),
        }
    }
    groups
}

/// Returns the ranges of the flat buffers with and without weight decay that ranks update: all of them, or
/// where the state is sharded those that they own. Decay applies to matrices, embedding and head included,
/// and spares vectors (weights and biases).
pub fn decay_segments(state: &State) -> Segments {
    let all = all_segments(state);
    let Some(shards) = &state.shards else { return Segments::whole(all) };
    Segments::sharded(&all, Arc::clone(shards), state.masters_are_sharded())
}

/// Returns ranges of the flat buffers with and without weight decay, in order, neighbours joined.
fn all_segments(state: &State) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for group in param_groups(state) {
        let decay = group.role.is_matrix();
        match segments.last_mut() {
            Some(last) if last.decay == decay => last.len += group.len,
            _ => segments.push(Segment { start: group.start, len: group.len, decay, offset: group.start }),
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DType;
    use crate::ir::ParamRequest;
    use crate::ir::{Init, Precision, StateBuilder, Sublayer};

    #[test]
    fn neighbours_of_one_role_are_joined_and_vectors_do_not_decay() {
        let matrix = Role::Matrix(Sublayer::Attention);
        let roles = [Role::Head, Role::Vector, matrix, matrix, Role::Vector, Role::Embedding];
        let requests: Vec<ParamRequest> = roles
            .iter()
            .enumerate()
            .map(|(i, &role)| ParamRequest {
                name: format!("p{i}"),
                shape: vec![100],
                alloc: vec![100],
                init: Init::Ones,
                role,
                stacked: Vec::new(),
                block: None,
            })
            .collect();
        let state = StateBuilder::for_inference(Precision::for_act_dtype(DType::F32), &requests).finish();
        // 100 fp32 numbers take 512 bytes with their alignment of 64.
        let stride = state.params[1].start;
        let groups = param_groups(&state);
        assert_eq!(
            groups.iter().map(|g| g.role).collect::<Vec<_>>(),
            [Role::Head, Role::Vector, matrix, Role::Vector, Role::Embedding]
        );
        assert_eq!((groups[2].start, groups[2].len), (2 * stride, 2 * stride));
        assert_eq!(groups.iter().map(|g| g.len).sum::<usize>(), state.flat_len);
        let decays: Vec<bool> = all_segments(&state).iter().map(|s| s.decay).collect();
        assert_eq!(decays, [true, false, true, false, true]);
    }
}
