//! How an op records its vector-Jacobian product.

use super::{Builder, Destination, GradDestination, InputGrad, Node, Op, Spec, TensorId, Upstream, Vjp};
use crate::error::{Error, Result};
use std::sync::Arc;

impl<'a> Vjp<'a> {
    /// Starts recording the gradients of the inputs of `node`. `upstream` has one entry per output,
    /// `destinations` and `sums` one per input.
    pub fn new(
        builder: &'a mut Builder,
        node: &'a Node,
        upstream: &'a [Option<Upstream>],
        destinations: Vec<GradDestination>,
        sums: Vec<Option<TensorId>>,
    ) -> Self {
        let input_grads = vec![None; destinations.len()];
        Self { builder, node, upstream, destinations, sums, input_grads }
    }

    /// Returns the scope of the forward node, for messages.
    pub fn scope(&self) -> &str {
        &self.node.scope
    }

    /// Returns input `i` of the forward node.
    pub fn input(&self, i: usize) -> TensorId {
        self.node.inputs[i]
    }

    /// Returns the number of inputs of the forward node.
    pub fn input_count(&self) -> usize {
        self.node.inputs.len()
    }

    /// Returns output `i` of the forward node.
    pub fn output(&self, i: usize) -> TensorId {
        self.node.outputs[i]
    }

    /// Returns the spec of a tensor.
    pub fn spec(&self, id: TensorId) -> &Spec {
        self.builder.spec(id)
    }

    /// Returns true if the gradient of input `i` is needed.
    pub fn needs_grad(&self, i: usize) -> bool {
        self.destinations[i] != GradDestination::NotNeeded
    }

    /// Returns the upstream gradient of output `i`, if there is one.
    pub fn upstream(&self, i: usize) -> Option<Upstream> {
        self.upstream[i]
    }

    /// Returns the upstream gradient of output `i` as a tensor.
    ///
    /// # Errors
    /// If there is none, or it is the constant 1 of a loss.
    pub fn output_grad(&self, i: usize) -> Result<TensorId> {
        match self.upstream[i] {
            Some(Upstream::Tensor(id)) => Ok(id),
            other => {
                let found = if other.is_none() { "missing" } else { "a constant" };
                Err(Error::failed(format!(
                    "{} in {}: the upstream gradient of output {i} is {found}, not a tensor",
                    self.node.op.name(),
                    self.node.scope
                )))
            }
        }
    }

    /// Records an op whose outputs are, in order, the gradients with respect to the inputs listed in `wrt`;
    /// further outputs are scratch. Returns all its outputs.
    ///
    /// # Errors
    /// If the op does not accept `inputs`.
    pub fn backward(
        &mut self,
        op: impl Op + 'static,
        inputs: &[TensorId],
        wrt: &[usize],
    ) -> Result<Vec<TensorId>> {
        let outs: Vec<Destination> = wrt
            .iter()
            .map(|&i| match self.destinations[i] {
                GradDestination::Into(id, mode) => Destination::Into(id, mode),
                GradDestination::New | GradDestination::NotNeeded => Destination::New,
            })
            .collect();
        let name = match wrt.first() {
            Some(&i) => format!("d_{}", short_name(&self.builder.program.tensor(self.node.inputs[i]).name)),
            None => format!("d_{}", self.node.op.name()),
        };
        let outputs = self.builder.emit_into(&name, Arc::new(op), inputs, &outs)?;
        for (&i, &out) in wrt.iter().zip(&outputs) {
            if self.destinations[i] == GradDestination::New {
                self.set_input_grad(i, out);
            }
        }
        Ok(outputs)
    }

    /// Records an op whose result the gradients of several nodes read, unless one of them already has.
    /// Returns its outputs, which nothing may overwrite.
    ///
    /// # Errors
    /// If the op does not accept `inputs`.
    pub fn shared(
        &mut self,
        name: &str,
        op: impl Op + 'static,
        inputs: &[TensorId],
    ) -> Result<Vec<TensorId>> {
        self.builder.emit_once(name, op, inputs)
    }

    /// Returns the sum of the gradients of input `i` that other ops have recorded, for an op that adds to it:
    /// the gradient that it records must be the total. `None` if there is none, or none that it may add to;
    /// then it records its own gradient alone.
    ///
    /// The sum may take the memory of the total ([`MayAlias`](super::MayAlias)), but of no other tensor.
    pub fn sum_to_add_to(&self, i: usize) -> Option<TensorId> {
        self.sums[i]
    }

    /// Makes an existing tensor the gradient of input `i`.
    pub fn set_input_grad(&mut self, i: usize, gradient: TensorId) {
        self.input_grads[i] = Some(InputGrad { tensor: gradient, is_total: false });
    }

    /// Declares that the gradient of input `i` includes [`Vjp::sum_to_add_to`].
    pub fn includes_sum(&mut self, i: usize) {
        if let Some(gradient) = &mut self.input_grads[i] {
            gradient.is_total = self.sums[i].is_some();
        }
    }

    /// Returns the gradient of each input for which one was recorded.
    pub fn into_input_grads(self) -> Vec<Option<InputGrad>> {
        self.input_grads
    }
}

/// Returns the part of a scoped name after the last dot.
fn short_name(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
