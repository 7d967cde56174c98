//! The initial values that the keys of a model give to its parameters.

use crate::ir::Init;
use crate::plan::Model;
use crate::policy::ResidualInit;

/// Returns PyTorch's default for linear layers: a variance of 1/(3·fan_in).
fn unset(fan_in: usize) -> f64 {
    1.0 / (3.0 * fan_in as f64).sqrt()
}

/// Returns the standard deviation of a matrix with `fan_in` inputs. A deviation in the recipe applies at the
/// base width, if there is one. Beyond it, the variance of matrices in products falls with the number of
/// inputs (Yang and Hu, Tensor Programs V, 2022, table 8).
fn deviation(m: &Model, fan_in: usize) -> f64 {
    m.init_std.map_or(unset(fan_in), |std| std / m.width_ratio().sqrt())
}

/// Returns the initial values of a matrix with `fan_in` inputs.
pub(super) fn matrix(m: &Model, fan_in: usize) -> Init {
    Init::Normal(deviation(m, fan_in))
}

/// Returns the initial values of a matrix with `fan_in` inputs that writes the residual stream.
pub(super) fn residual(m: &Model, fan_in: usize) -> Init {
    match m.residual_init {
        ResidualInit::DepthScaled => Init::Normal(deviation(m, fan_in) / (2.0 * m.n_layers as f64).sqrt()),
        ResidualInit::Unscaled => matrix(m, fan_in),
        ResidualInit::Zero => Init::Constant(0.0),
    }
}

/// Returns the initial values of tables, whose variance stays the same at every width, and of the head, whose
/// logits already fall with the width.
pub(super) fn looked_up(m: &Model) -> Init {
    Init::Normal(m.init_std.unwrap_or(unset(m.base_dim.unwrap_or(m.dim))))
}
