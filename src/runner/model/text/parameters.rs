//! The roles of a text's parameters, which follow from how the graph uses them, and their initial values.

use crate::ir::{Init, Role, Sublayer};
use crate::model::initial;
use crate::model_text::{Graph, Initial, Operation, Parameter, ParameterKind};
use crate::plan::Model;

/// The initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum InitialValues {
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// All the same.
    Constant(f64),
}

impl From<Init> for InitialValues {
    fn from(init: Init) -> Self {
        match init {
            Init::Normal(std) => Self::Normal(std),
            Init::Ones => Self::Constant(1.0),
            Init::Zeros => Self::Constant(0.0),
        }
    }
}

/// Returns the initial values of a parameter with this role.
pub(super) fn initial_values(m: &Model, parameter: &Parameter, role: Role) -> InitialValues {
    let inputs = parameter.shape.last().copied().unwrap_or(1);
    match (parameter.initial, parameter.kind) {
        (Initial::Constant(value), _) => InitialValues::Constant(value),
        (Initial::Normal(std), _) => InitialValues::Normal(std),
        (Initial::Residual, _) => initial::residual(m, inputs).into(),
        (Initial::ByKeys, ParameterKind::Tokens | ParameterKind::Positions) => initial::looked_up(m).into(),
        (Initial::ByKeys, ParameterKind::Matrix) if role == Role::Head => initial::looked_up(m).into(),
        (Initial::ByKeys, ParameterKind::Matrix) => initial::matrix(m, inputs).into(),
        (Initial::ByKeys, ParameterKind::Bias | ParameterKind::Vector) => InitialValues::Constant(0.0),
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
