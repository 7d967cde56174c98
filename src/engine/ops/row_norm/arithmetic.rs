//! The arithmetic of a norm of rows, on the CPU and in kernels.

use crate::device::gpu::Arg;
use crate::device::{DType, Elem, Real};
use crate::ops::affine::Affine;
use std::fmt::Debug;

/// A norm of rows. It is also an op, which takes the rows and then the norm's vectors, in the accumulator
/// format, and returns the normalized rows.
pub(in crate::ops) trait RowNorm: Copy + Debug + PartialEq + Send + Sync + 'static {
    /// Name of the op, of its kernel and of the file of its kernel and of the gradient's.
    const NAME: &'static str;

    /// The file of the kernel that adds a residual and normalizes the sum, and its name, which is also the
    /// name of `ResidualNorm` with this norm.
    const RESIDUAL: (&'static str, &'static str);

    /// Most vectors that the norm may have: the number that kernels take.
    const VECTORS: usize;

    /// True if the gradient can also write the norm, with the same bits as the forward.
    const EMITS: bool;

    /// Numbers that the arithmetic needs.
    type Constants<A: Real>: Sync;

    /// Returns what is added to the mean before its root.
    fn eps(self) -> f64;

    /// Returns which vectors the norm has.
    fn affine(self) -> Affine;

    /// Returns the number that is added to the weight.
    fn weight_offset(self) -> f64 {
        0.0
    }

    /// Returns the constants for rows of `len` elements without padding.
    fn constants<A: Real>(self, len: usize) -> Self::Constants<A>;

    /// Writes the norm of `x` with weight and bias to `y`, and may change `x`. Every op that normalizes a row
    /// gets the same bits.
    fn normalize<E: Elem>(
        constants: &Self::Constants<E::Acc>,
        x: &mut [E::Acc],
        vectors: [&[E::Acc]; 2],
        y: &mut [E],
    );

    /// Replaces `x` by its gradient and adds this row's part to the gradients of the vectors, the sums.
    /// Writes the norm to `y` if the gradient emits it. `dy` becomes `dy ⊙ w`.
    fn gradient<E: Elem>(
        constants: &Self::Constants<E::Acc>,
        x: &mut [E::Acc],
        w: &[E::Acc],
        dy: &mut [E::Acc],
        sums: [&mut [E::Acc]; 2],
        y: Option<&mut [E]>,
    );

    /// Returns the kernel of the gradient; the plain one has the name of the op.
    fn gradient_kernel(residual: bool, emits: bool) -> &'static str;

    /// Returns the most elements of a row that a thread of the gradient's kernel holds.
    fn gradient_elements(dtype: DType) -> usize {
        elements_per_thread(dtype)
    }

    /// Returns the kernel arguments that follow the number of rows: by default the reciprocal of the number
    /// of elements in the mean, and eps.
    fn number_args(self, len: usize) -> Vec<Arg> {
        vec![Arg::F32((1.0 / len as f64) as f32), Arg::F32(self.eps() as f32)]
    }

    /// Returns norms for the test cases: with all vectors, and lacking some.
    fn examples() -> Vec<Self>;

    /// Normalizes a row by the definition, in f64.
    fn reference(self, row: &mut [f64], w: &[f64], b: &[f64]);
}

/// Returns the most elements of a row that a thread of a forward kernel holds: 64 bytes of them. (Rows too
/// long for 512 threads spill to local memory: slow, but correct.)
pub(super) fn elements_per_thread(dtype: DType) -> usize {
    64 / dtype.size()
}

/// Returns the vectors that a norm lacks and what is added to the weight, for printing.
pub(super) fn vector_attributes<N: RowNorm>(norm: N) -> String {
    let offset = norm.weight_offset();
    match norm.affine() {
        Affine::None => " no weight".into(),
        Affine::Weight if N::VECTORS > 1 => " no bias".into(),
        Affine::Weight | Affine::WeightAndBias if offset == 0.0 => String::new(),
        Affine::Weight | Affine::WeightAndBias => format!(" weight_offset={offset}"),
    }
}
