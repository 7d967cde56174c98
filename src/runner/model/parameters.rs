//! The trained tensors of a model: their roles, which follow from how the graph uses them, their initial
//! values and their padding.

use super::padding::padded_widths;
use crate::error::Result;
use crate::ir::{Init, ParamRequest, Role, Sublayer, UpdateOverride};
use crate::model::initial;
use crate::model_text::{Graph, Initial, Operation, Parameter, ParameterKind};
use crate::optim::GroupRole;
use crate::plan::{Model, PADDING};

/// Returns the trained tensors in the order in which their gradients become ready, from the head back to the
/// embedding.
pub fn parameters(m: &Model, graph: &Graph) -> Vec<ParamRequest> {
    let roles = roles(graph);
    let padded = padded_widths(m, graph, &roles);
    let requests = graph.parameters.iter().enumerate().map(|(index, parameter)| {
        let role = roles[index];
        let mut alloc = parameter.shape.clone();
        for (dimension, size) in alloc.iter_mut().enumerate() {
            if padded[index].contains(&dimension) {
                *size = size.next_multiple_of(PADDING);
            }
        }
        ParamRequest {
            name: parameter.name.clone(),
            shape: parameter.shape.clone(),
            alloc,
            init: initial_values(m, parameter, role),
            role,
            update: UpdateOverride {
                role: parameter.role.as_deref().and_then(GroupRole::from_word).map(GroupRole::role),
                decay: parameter.decay,
            },
            stacked: parameter.stacked.clone(),
            block: parameter.block,
        }
    });
    requests.rev().collect()
}

/// Returns the trained tensors of a model that no plan is for.
///
/// # Errors
/// The same as for [`Model::graph`].
pub fn parameters_of_model(m: &Model) -> Result<Vec<ParamRequest>> {
    // Only a table of positions depends on the length of sequences.
    Ok(parameters(m, &m.graph(m.learned_positions.max(1))?))
}

/// Returns the initial values of a parameter with this role.
pub(super) fn initial_values(m: &Model, parameter: &Parameter, role: Role) -> Init {
    let inputs = parameter.shape.last().copied().unwrap_or(1);
    match (parameter.initial, parameter.kind) {
        (Initial::Constant(value), _) => Init::Constant(value),
        (Initial::Normal(std), _) => Init::Normal(std),
        (Initial::Residual, _) => initial::residual(m, inputs),
        (Initial::ByKeys, ParameterKind::Tokens | ParameterKind::Positions) => initial::looked_up(m),
        (Initial::ByKeys, ParameterKind::Matrix) if role == Role::Head => initial::looked_up(m),
        (Initial::ByKeys, ParameterKind::Matrix) => initial::matrix(m, inputs),
        (Initial::ByKeys, ParameterKind::Bias | ParameterKind::Vector) => Init::Constant(0.0),
    }
}

/// Returns the role of each parameter: the head is the matrix outside the blocks from whose product the
/// logits are computed without another product, and the matrices of attention are those whose products reach
/// attention, or are of what attention returns, without another product between.
pub(super) fn roles(graph: &Graph) -> Vec<Role> {
    let count = graph.nodes.len();
    let (mut from_attention, mut to_attention, mut to_logits) =
        (vec![false; count], vec![false; count], vec![false; count]);
    for (index, node) in graph.nodes.iter().enumerate() {
        from_attention[index] = match node.operation {
            Operation::Attention { .. } => true,
            Operation::Linear { .. } => false,
            _ => node.inputs.iter().any(|&input| from_attention[input]),
        };
    }
    to_logits[graph.logits] = true;
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let attends = matches!(node.operation, Operation::Attention { .. });
        if matches!(node.operation, Operation::Linear { .. }) {
            continue;
        }
        for &input in &node.inputs {
            to_attention[input] |= attends || to_attention[index];
            to_logits[input] |= to_logits[index];
        }
    }
    let mut roles: Vec<Role> = graph.parameters.iter().map(role_by_kind).collect();
    for (index, node) in graph.nodes.iter().enumerate() {
        let Operation::Linear { weight, bias } = node.operation else { continue };
        let of_attention = to_attention[index] || from_attention[node.inputs[0]];
        let sublayer = if of_attention { Sublayer::Attention } else { Sublayer::FeedForward };
        if graph.parameters[weight].kind == ParameterKind::Matrix {
            let is_head = node.block.is_none() && to_logits[index];
            roles[weight] = if is_head { Role::Head } else { Role::Matrix(sublayer) };
        }
        if let Some(bias) = bias {
            roles[bias] = Role::Bias(sublayer);
        }
    }
    roles
}

fn role_by_kind(parameter: &Parameter) -> Role {
    match parameter.kind {
        ParameterKind::Tokens => Role::Embedding,
        ParameterKind::Positions => Role::Positions,
        ParameterKind::Matrix => Role::Matrix(Sublayer::FeedForward),
        ParameterKind::Bias => Role::Bias(Sublayer::FeedForward),
        ParameterKind::Vector => Role::Vector,
    }
}
