//! The norm of the residual stream as an exchangeable part: its parameters, and its recording, alone and
//! after a residual addition. Norms of queries and keys are another part ([`crate::ops::qk_norm_rope`]):
//! always RMS, per head.

use crate::error::Result;
use crate::ir::ParamRequest;
use crate::ir::{Builder, Init, Role, TensorId};
use crate::ops::layer_norm::{LayerNorm, ResidualLayerNorm};
use crate::ops::residual_norm::ResidualNorm;
use crate::ops::rms_norm::RmsNorm;
use crate::plan::Model;
use crate::policy::Norm;

/// Returns a vector parameter of a norm, outside any block.
pub(super) fn vector(name: &str, width: usize, init: Init) -> ParamRequest {
    ParamRequest {
        name: name.to_owned(),
        shape: vec![width],
        alloc: vec![width],
        init,
        role: Role::Vector,
        block: None,
    }
}

/// Returns the name of the bias of a norm.
fn bias(name: &str) -> String {
    format!("{name}_bias")
}

/// Returns the parameters of the norm called `name`.
pub(super) fn params(m: &Model, name: &str) -> Vec<ParamRequest> {
    match m.norm {
        Norm::RmsNorm => vec![vector(name, m.dim, Init::Ones)],
        Norm::LayerNorm => vec![vector(name, m.dim, Init::Ones), vector(&bias(name), m.dim, Init::Zeros)],
    }
}

/// Records the norm called `name` of rows `x [N, dim]`.
///
/// # Errors
/// When the rows do not fit.
pub(super) fn record(m: &Model, name: &str, b: &mut Builder, output: &str, x: TensorId) -> Result<TensorId> {
    let (eps, weight) = (m.norm_eps, b.param(name)?);
    match m.norm {
        Norm::RmsNorm => b.emit1(output, RmsNorm { eps }, &[x, weight]),
        Norm::LayerNorm => {
            let bias = b.param(&bias(name))?;
            b.emit1(output, LayerNorm { eps }, &[x, weight, bias])
        }
    }
}

/// Records `x + y` and the norm called `name` of the sum; returns both.
///
/// # Errors
/// When the rows do not fit.
pub(super) fn record_residual(
    m: &Model,
    name: &str,
    b: &mut Builder,
    output: &str,
    [x, y]: [TensorId; 2],
) -> Result<(TensorId, TensorId)> {
    let (eps, weight) = (m.norm_eps, b.param(name)?);
    let outputs = match m.norm {
        Norm::RmsNorm => b.emit(output, ResidualNorm { eps }, &[x, y, weight])?,
        Norm::LayerNorm => {
            let bias = b.param(&bias(name))?;
            b.emit(output, ResidualLayerNorm { eps }, &[x, y, weight, bias])?
        }
    };
    Ok((outputs[0], outputs[1]))
}
