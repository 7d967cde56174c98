//! The families that plans can name.

use super::decoder::Decoder;
use super::family::Family;
use super::formula::Formula;
use crate::ir::ParamRequest;
use crate::plan::{Model, Plan};

/// Returns the family of a model.
pub fn family(_model: &Model) -> &'static dyn Family {
    &Decoder
}

/// Returns the trained tensors of a model.
pub fn parameters(model: &Model) -> Vec<ParamRequest> {
    family(model).params(model)
}

/// Returns the model FLOPs of one token of a plan, forward and backward.
pub fn flops_per_token(plan: &Plan) -> Formula {
    family(&plan.model).flops_per_token(&plan.model, plan.batch.seq_len)
}
