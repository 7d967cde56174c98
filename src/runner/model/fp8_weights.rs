//! Which weights of a plan products read as 8-bit floats.

use super::purpose::Purpose;
use super::recording;
use crate::error::Result;
use crate::ir::{Builder, Fp8Param, Param, Role, State, Sublayer};
use crate::passes::fp8_params;
use crate::plan::{Fp8, Plan};
use crate::policy::Fp8Products;
use std::sync::Arc;

/// Returns the parameters that products read as 8-bit floats, for a state without any; none if the plan has
/// no such products.
///
/// # Errors
/// If an op rejects the plan's numbers.
pub(super) fn fp8_weights(plan: &Plan, state: &State) -> Result<Vec<Fp8Param>> {
    let Some(fp8) = &plan.fp8 else { return Ok(Vec::new()) };
    let mut b = Builder::new("products", Arc::new(state.clone()));
    recording::losses(plan, Purpose::Train { first: true }, &mut b)?;
    let mut weights = fp8_params(&b.finish());
    weights.retain(|weight| wants(fp8, &state.params[weight.index], weight.keeps_copy));
    Ok(weights)
}

/// Returns the products of a parameter.
pub(super) fn fp8_role(role: Role) -> Fp8Products {
    match role {
        Role::Matrix(Sublayer::Attention) => Fp8Products::Attention,
        Role::Matrix(Sublayer::FeedForward) => Fp8Products::FeedForward,
        _ => Fp8Products::Head,
    }
}

/// Returns true if the products of a parameter are to read 8-bit floats. Weights of blocks whose compute copy
/// other ops read stay in bf16.
fn wants(fp8: &Fp8, param: &Param, keeps_copy: bool) -> bool {
    let in_blocks = || param.block.is_some_and(|block| fp8.blocks.contains(&block));
    let fits = match param.role {
        Role::Matrix(_) => !keeps_copy && in_blocks(),
        role => matches!(role, Role::Head | Role::Embedding),
    };
    fits && fp8.products.contains(&fp8_role(param.role))
}
