//! Which weights of a plan products read as 8-bit floats.

use super::purpose::Purpose;
use super::recording;
use crate::error::Result;
use crate::ir::{Builder, Param, Role, State, Sublayer};
use crate::passes::fp8_params;
use crate::plan::{Fp8, Plan};
use crate::policy::Fp8Products;
use std::sync::Arc;

/// Returns the indices of the parameters that products read as 8-bit floats, among those of a state without
/// any; none if the plan has no such products.
///
/// # Errors
/// If an op rejects the plan's numbers.
pub(super) fn fp8_weights(plan: &Plan, state: &State) -> Result<Vec<usize>> {
    let Some(fp8) = &plan.fp8 else { return Ok(Vec::new()) };
    let mut b = Builder::new("products", Arc::new(state.clone()));
    recording::losses(plan, Purpose::Train { first: true }, &mut b)?;
    let mut weights = fp8_params(&b.finish());
    weights.retain(|&index| wants(fp8, &state.params[index]));
    Ok(weights)
}

/// Returns true if the products of a parameter are to read 8-bit floats.
fn wants(fp8: &Fp8, param: &Param) -> bool {
    let product = match param.role {
        Role::Matrix(Sublayer::Attention) => Fp8Products::Attention,
        Role::Matrix(Sublayer::FeedForward) => Fp8Products::FeedForward,
        _ => return false,
    };
    fp8.products.contains(&product) && param.block.is_some_and(|block| fp8.blocks.contains(&block))
}
