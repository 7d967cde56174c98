//! The parts of the state that fp8 programs add: weights as 8-bit floats, and the scales of matrices.
//!
//! Every weight has three *sites*, which are the matrices that its products read: the layer's input, the
//! gradient of its output, and the weight itself. A matrix that several weights read belongs to the sites of
//! the first of them. The sites of all weights are rows of the same tables.

use super::SlotId;
use crate::device::DType;

/// A scale and its inverse, in fp32, as numbers 0 and [`INVERSE`] of a row: NVIDIA's products read the
/// inverse at a multiple of 16 bytes. The other numbers are zero.
pub type Scales = [f32; SCALES_ROW];

/// Numbers in the row of a scale.
pub const SCALES_ROW: usize = 8;

/// Place of the inverse of a scale in its row.
pub const INVERSE: usize = 4;

/// The matrix that a site stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SiteKind {
    /// The input of the layer.
    Input,
    /// The gradient of the layer's output.
    Gradient,
    /// The weight.
    Weight,
}

/// Number of kinds of sites.
pub const SITE_KINDS: usize = 3;

/// Number of roles of weights whose scales are reported apart: attention, feed-forward layers, the head.
pub const FP8_ROLES: usize = 3;

/// Numbers in [`ControlSlot::Fp8Health`](super::ControlSlot::Fp8Health): two counts for each kind, a ratio,
/// and for each role one scale of each kind.
pub const FP8_HEALTH: usize = 2 * SITE_KINDS + 1 + FP8_ROLES * SITE_KINDS;

impl SiteKind {
    /// Every kind, in the order of the tables.
    pub const ALL: [Self; SITE_KINDS] = [Self::Input, Self::Gradient, Self::Weight];
}

/// A parameter whose products can read 8-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8Param {
    /// Index of the parameter among those of the state.
    pub index: usize,
    /// True if other ops read its compute copy, as the embedding reads that of a tied head.
    pub keeps_copy: bool,
}

/// A weight that products read as 8-bit floats.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Weight {
    /// The parameter.
    pub param: Fp8Param,
    /// The weight as a matrix of 8-bit floats, `[outputs, inputs]`, in the memory of its compute copy unless
    /// the copy is kept.
    pub rows: SlotId,
    /// Its transpose, likewise.
    pub transposed: SlotId,
}

/// What fp8 programs keep in the state.
#[derive(Clone, Debug)]
pub struct Fp8State {
    /// The weights, in the order of parameters.
    pub weights: Vec<Fp8Weight>,
    /// The format of gradients.
    pub gradients: DType,
}

impl Fp8State {
    /// Returns the number of sites.
    pub fn sites(&self) -> usize {
        self.weights.len() * SiteKind::ALL.len()
    }

    /// Returns the row of a site in the tables, for the weight with this index among the weights.
    pub fn site(&self, weight: usize, kind: SiteKind) -> usize {
        weight * SiteKind::ALL.len() + kind as usize
    }

    /// Returns the format of a matrix.
    pub fn format(&self, kind: SiteKind) -> DType {
        if kind == SiteKind::Gradient { self.gradients } else { DType::E4m3 }
    }
}
