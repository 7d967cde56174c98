//! What proves an op: concrete inputs, and a plain reference to compare with.

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
    /// Zeros.
    pub fn zeros(shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), data: vec![0.0; shape.iter().product()] }
    }

    /// The last dimension.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// How an input of a case is filled, from a generator seeded by the case's name.
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

/// A plain implementation in f64: inputs, then the initial contents of outputs that are added to; gives all outputs
/// (an output that is scratch may be given as an empty array and is not compared).
pub type Reference = Arc<dyn Fn(&[Array]) -> Vec<Array> + Send + Sync>;

/// One op with concrete inputs. One case serves several modes: forward against the reference, the gradient against
/// finite differences, narrow formats against f64, poison, bit equality over thread counts.
#[derive(Clone)]
pub struct Case {
    /// What is special about it, such as `t17 hd64 gqa2 dropout`.
    pub name: String,
    /// The op.
    pub op: Arc<dyn Op>,
    /// Its inputs.
    pub inputs: Vec<(Spec, Fill)>,
    /// How each output is written; those added to start from this fill. Outputs beyond the end: `Write`.
    pub outputs: Vec<(Mode, Fill)>,
    /// The oracle.
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
    /// A case of a differentiable op with one output to which the gradient comes.
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

    /// Says which inputs have a gradient to check.
    #[must_use]
    pub fn differentiable(mut self, inputs: &[usize]) -> Self {
        self.differentiable = inputs.to_vec();
        self
    }

    /// Says which inputs are parameters.
    #[must_use]
    pub fn weights(mut self, inputs: &[usize]) -> Self {
        self.weights = inputs.to_vec();
        self
    }

    /// Says at which outputs gradients arrive.
    #[must_use]
    pub fn upstream(mut self, outputs: &[usize]) -> Self {
        self.upstream = outputs.to_vec();
        self
    }

    /// Says how long the longest sum is.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// Says how outputs are written and what those that are added to start from.
    #[must_use]
    pub fn outputs(mut self, outputs: Vec<(Mode, Fill)>) -> Self {
        self.outputs = outputs;
        self
    }
}

/// How an op is proven. Every op must say.
#[derive(Debug)]
pub enum Cases {
    /// By these.
    Own(Vec<Case>),
    /// By the gradient checks of the op of this name.
    GradientOf(&'static str),
}
