//! The norm of the residual stream as an exchangeable part: its parameters and its recording, alone or fused
//! with a residual addition. The norms of queries and keys are separate ([`crate::ops::qk_norm_rope`]):
//! always RMS, per head.

use crate::error::Result;
use crate::ir::{Builder, Init, ParamRequest, Role, TensorId};
use crate::ops::affine::Affine;
use crate::ops::layer_norm::LayerNorm;
use crate::ops::rms_norm::RmsNorm;
use crate::ops::row_norm::ResidualNorm;
use crate::plan::Model;
use crate::policy::Norm;

/// Returns a parameter without padding, outside any block.
pub(super) fn request(name: &str, role: Role, shape: &[usize], init: Init) -> ParamRequest {
    ParamRequest {
        name: name.to_owned(),
        shape: shape.to_vec(),
        alloc: shape.to_vec(),
        init,
        role,
        stacked: Vec::new(),
        block: None,
    }
}

/// Returns the parameters of the norm `name`: its weight and bias, if it has them.
pub(super) fn params(m: &Model, name: &str) -> Vec<ParamRequest> {
    let vector = |name: &str, init| request(name, Role::Vector, &[m.dim], init);
    let weight = m.norm_weight.then(|| vector(name, Init::Ones));
    let bias = m.norm_bias.then(|| vector(&format!("{name}_bias"), Init::Zeros));
    weight.into_iter().chain(bias).collect()
}

/// Returns the inputs of the norm's ops: `rows`, then the norm's parameters.
fn inputs(m: &Model, name: &str, b: &mut Builder, rows: &[TensorId]) -> Result<Vec<TensorId>> {
    let mut inputs = rows.to_vec();
    for param in params(m, name) {
        inputs.push(b.param(&param.name)?);
    }
    Ok(inputs)
}

/// Returns which parameters a LayerNorm has. A plan has no bias without a weight.
fn affine(m: &Model) -> Affine {
    match (m.norm_weight, m.norm_bias) {
        (false, _) => Affine::None,
        (true, false) => Affine::Weight,
        (true, true) => Affine::WeightAndBias,
    }
}

/// Records the norm `name` of rows `x [N, dim]`.
///
/// # Errors
/// If the rows do not fit.
pub(super) fn record(m: &Model, name: &str, b: &mut Builder, output: &str, x: TensorId) -> Result<TensorId> {
    let (eps, inputs) = (m.norm_eps, inputs(m, name, b, &[x])?);
    match m.norm {
        Norm::RmsNorm => b.emit1(output, RmsNorm { eps, weight: m.norm_weight }, &inputs),
        Norm::LayerNorm => b.emit1(output, LayerNorm { eps, affine: affine(m) }, &inputs),
    }
}

/// Records `x + y` and the norm `name` of the sum. Returns both.
///
/// # Errors
/// If the rows do not fit.
pub(super) fn record_residual(
    m: &Model,
    name: &str,
    b: &mut Builder,
    output: &str,
    rows: [TensorId; 2],
) -> Result<(TensorId, TensorId)> {
    let (eps, inputs) = (m.norm_eps, inputs(m, name, b, &rows)?);
    let outputs = match m.norm {
        Norm::RmsNorm => b.emit(output, ResidualNorm(RmsNorm { eps, weight: m.norm_weight }), &inputs)?,
        Norm::LayerNorm => b.emit(output, ResidualNorm(LayerNorm { eps, affine: affine(m) }), &inputs)?,
    };
    Ok((outputs[0], outputs[1]))
}
