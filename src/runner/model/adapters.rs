//! The tensors of a plan: those that are trained, and those that an adapter freezes.

use super::parameters::parameters;
use crate::ir::{Init, ParamRequest, Role, Sublayer, UpdateOverride};
use crate::plan::{Adapter, Plan};
use crate::policy::AdapterTarget;

/// The tensors that the programs of a plan read.
#[derive(Clone, Debug)]
pub struct ModelTensors {
    /// The tensors that are trained, in the order in which their gradients become ready.
    pub trained: Vec<ParamRequest>,
    /// The weights of the model, if adapters are trained in their place.
    pub frozen: Vec<ParamRequest>,
}

impl ModelTensors {
    /// Returns the tensors of a plan: the weights of its model, all trained, or all frozen beside adapters.
    pub fn new(plan: &Plan) -> Self {
        let weights = parameters(&plan.model, &plan.graph);
        let Some(adapter) = &plan.adapter else { return Self { trained: weights, frozen: Vec::new() } };
        let adapted = weights.iter().filter(|weight| adapts(adapter, weight.role));
        let trained = adapted.flat_map(|weight| {
            let [first, second] = matrices(adapter, weight);
            // The gradient of the second matrix is complete first.
            [second, first]
        });
        Self { trained: trained.collect(), frozen: weights }
    }
}

/// Returns true if matrices of this role get adapters.
pub fn adapts(adapter: &Adapter, role: Role) -> bool {
    match role {
        Role::Matrix(Sublayer::Attention) => adapter.targets.contains(&AdapterTarget::Attention),
        Role::Matrix(Sublayer::FeedForward) => adapter.targets.contains(&AdapterTarget::FeedForward),
        Role::Embedding | Role::Positions | Role::Head | Role::Bias(_) | Role::Vector => false,
    }
}

/// Returns the name of the first matrix of a weight's adapter, which reads the rows.
pub fn first_matrix(weight: &str) -> String {
    format!("{weight}.lora_a")
}

/// Returns the name of the second matrix of a weight's adapter.
pub fn second_matrix(weight: &str) -> String {
    format!("{weight}.lora_b")
}

/// Returns the rows in memory of each matrix that is stacked in a weight.
pub fn stacked_rows(weight: &ParamRequest) -> Vec<usize> {
    match (&weight.alloc[..], &weight.stacked[..]) {
        (&[rows, _], []) => vec![rows],
        (&[_, _], stacked) => stacked.to_vec(),
        (alloc, _) => {
            let (matrices, rows) = (&alloc[..alloc.len() - 2], alloc[alloc.len() - 2]);
            vec![rows; matrices.iter().product()]
        }
    }
}

/// Returns the two matrices of a weight's adapter, `[k·rank, in]` and `[out…, rank]` for `k` stacked
/// matrices.
///
/// The first is drawn with the variance of PEFT's default, a uniform distribution up to `1 / √in`. The second
/// is zero, so that the model begins as it is.
fn matrices(adapter: &Adapter, weight: &ParamRequest) -> [ParamRequest; 2] {
    let (&inputs, &in_memory) = match (weight.shape.last(), weight.alloc.last()) {
        (Some(inputs), Some(in_memory)) => (inputs, in_memory),
        _ => (&1, &1),
    };
    let stacked = stacked_rows(weight).len();
    let rows = stacked * adapter.rank;
    let with_columns = |sizes: &[usize]| [&sizes[..sizes.len() - 1], &[adapter.rank]].concat();
    let first = ParamRequest {
        name: first_matrix(&weight.name),
        shape: vec![rows, inputs],
        alloc: vec![rows, in_memory],
        init: Init::Normal(1.0 / (3.0 * inputs as f64).sqrt()),
        role: weight.role,
        update: UpdateOverride::default(),
        stacked: if stacked > 1 { vec![adapter.rank; stacked] } else { Vec::new() },
        block: weight.block,
    };
    let second = ParamRequest {
        name: second_matrix(&weight.name),
        shape: with_columns(&weight.shape),
        alloc: with_columns(&weight.alloc),
        init: Init::Constant(0.0),
        stacked: weight.stacked.clone(),
        ..first.clone()
    };
    [first, second]
}
