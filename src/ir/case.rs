//! Test cases of an op: concrete inputs, and a plain reference implementation to compare with.

use super::{Mode, Op, Spec};
use std::fmt;
use std::sync::Arc;

/// A tensor of a reference: logical shape, row-major, f64. Integers are stored as their values.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements.
    pub data: Vec<f64>,
}

impl Array {
    /// Returns an array of zeros.
    pub fn zeros(shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), data: vec![0.0; shape.iter().product()] }
    }

    /// The last dimension.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// Contents of an input of a case, from a generator seeded by the case's name.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// Normal with mean and standard deviation.
    Normal(f64, f64),
    /// Uniform between two bounds.
    Uniform(f64, f64),
    /// Integers below a bound.
    Below(u32),
    /// These values.
    Values(Vec<f64>),
}

/// A plain implementation in f64. Takes the inputs, followed by the initial contents of outputs that are
/// accumulated into, and returns all outputs. An empty array stands for a scratch output, which is not
/// compared.
pub type Reference = Arc<dyn Fn(&[Array]) -> Vec<Array> + Send + Sync>;

/// One op with concrete inputs. One case serves several modes: forward against the reference, the gradient
/// against finite differences, narrow formats against f64, poison, bit equality over thread counts.
#[derive(Clone)]
pub struct Case {
    /// Name that says what sets the case apart, such as `t17 hd64 gqa2 dropout`.
    pub name: String,
    /// The op.
    pub op: Arc<dyn Op>,
    /// Its inputs.
    pub inputs: Vec<(Spec, Fill)>,
    /// Write mode of each output, and the initial contents of those accumulated into. Outputs beyond the end
    /// use `Write`.
    pub outputs: Vec<(Mode, Fill)>,
    /// The reference implementation.
    pub reference: Reference,
    /// Inputs that are parameters: read straight from the state, with a gradient in the accumulator format.
    pub weights: Vec<usize>,
    /// Inputs whose gradient is checked. Empty for ops without one.
    pub differentiable: Vec<usize>,
    /// Outputs that carry a gradient upstream.
    pub upstream: Vec<usize>,
    /// The longest sum in the op: errors may grow with its square root.
    pub depth: usize,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.op.name(), self.name, self.op.attributes())
    }
}

impl Case {
    /// Creates a case of a differentiable op whose first output receives the upstream gradient.
    pub fn new(
        name: impl Into<String>,
        op: impl Op + 'static,
        inputs: Vec<(Spec, Fill)>,
        reference: impl Fn(&[Array]) -> Vec<Array> + Send + Sync + 'static,
    ) -> Self {
        let differentiable =
            (0..inputs.len()).filter(|&i| inputs[i].0.dtype != crate::device::DType::U32).collect();
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
        }
    }

    /// Sets the inputs whose gradient is checked.
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

    /// Sets the length of the longest sum.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// Sets the write modes of outputs, and the initial contents of those accumulated into.
    #[must_use]
    pub fn outputs(mut self, outputs: Vec<(Mode, Fill)>) -> Self {
        self.outputs = outputs;
        self
    }
}

/// How an op is tested. Every op must declare it.
#[derive(Debug)]
pub enum Cases {
    /// By these cases.
    Own(Vec<Case>),
    /// By the gradient checks of the op of this name.
    GradientOf(&'static str),
}
