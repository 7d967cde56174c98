//! Test cases of an op: concrete inputs and a reference implementation to compare with.

use super::{Array, Case, Cases, Fill, Mode, Op, Precision, Spec};
use std::any::{TypeId, type_name};
use std::fmt;
use std::sync::Arc;

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.op.name(), self.name, self.op.attributes())
    }
}

impl Case {
    /// Creates a case for a differentiable op whose first output receives the upstream gradient.
    pub fn new(
        name: impl Into<String>,
        op: impl Op + 'static,
        inputs: Vec<(Spec, Fill)>,
        reference: impl Fn(&[Array]) -> Vec<Array> + Send + Sync + 'static,
    ) -> Self {
        let differentiable = (0..inputs.len()).filter(|&i| inputs[i].0.dtype.is_float()).collect();
        Self {
            name: name.into(),
            op: Arc::new(op),
            inputs,
            outputs: Vec::new(),
            reference: Arc::new(reference),
            weights: Vec::new(),
            differentiable,
            upstream: vec![0],
            depth: 1,
            narrow_sums: false,
            magnitudes: None,
        }
    }

    /// Sets the inputs whose gradients are checked.
    #[must_use]
    pub fn differentiable(mut self, inputs: &[usize]) -> Self {
        self.differentiable = inputs.to_vec();
        self
    }

    /// Sets the inputs that are parameters.
    #[must_use]
    pub fn weights(mut self, inputs: &[usize]) -> Self {
        self.weights = inputs.to_vec();
        self
    }

    /// Sets the outputs that receive upstream gradients.
    #[must_use]
    pub fn upstream(mut self, outputs: &[usize]) -> Self {
        self.upstream = outputs.to_vec();
        self
    }

    /// Makes it the case of an op without a gradient.
    #[must_use]
    pub fn without_gradient(self) -> Self {
        self.differentiable(&[]).upstream(&[])
    }

    /// Sets the number of terms in the op's longest sum.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// Declares that GPUs sum in fewer bits than fp32 has.
    #[must_use]
    pub fn narrow_sums(mut self) -> Self {
        self.narrow_sums = true;
        self
    }

    /// Sets how the sums of the magnitudes of the terms of every element are computed, so that elements are
    /// compared one by one.
    #[must_use]
    pub fn magnitudes(mut self, of: impl Fn(&[Array]) -> Vec<Array> + Send + Sync + 'static) -> Self {
        self.magnitudes = Some(Arc::new(of));
        self
    }

    /// Sets the write mode of each output, and the initial contents of outputs in mode `Add`.
    #[must_use]
    pub fn outputs(mut self, outputs: Vec<(Mode, Fill)>) -> Self {
        self.outputs = outputs;
        self
    }
}

impl Cases {
    /// Tests an op by the gradient checks of `Forward`, the op whose gradient it computes.
    pub fn gradient_of<Forward: Op>() -> Self {
        Self::GradientOf(TypeId::of::<Forward>())
    }

    /// Returns the op's own cases; none if another op's gradient checks cover it.
    pub fn own(self) -> Vec<Case> {
        match self {
            Self::Own(cases) => cases,
            Self::GradientOf(_) => Vec::new(),
        }
    }
}

/// A registered type of op: what the checks need to know about it without an instance.
#[derive(Clone, Copy, Debug)]
pub struct OpType {
    /// The type's test cases at a precision, from [`Op::cases`].
    pub cases: fn(Precision) -> Cases,
    /// Returns the id of the Rust type.
    pub id: fn() -> TypeId,
    /// Returns the path of the Rust type, such as `xrun::ops::add::Add`.
    pub name: fn() -> &'static str,
}

impl OpType {
    /// Creates the registry entry of an op type.
    pub const fn new<T: Op>() -> Self {
        Self { cases: T::cases, id: TypeId::of::<T>, name: type_name::<T> }
    }
}
