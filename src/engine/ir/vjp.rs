//! How an op records its vector-Jacobian product.

use super::{Builder, Destination, GradDestination, Node, Op, Spec, TensorId, Upstream, Vjp};
use crate::error::{Error, Result};
use std::sync::Arc;

impl<'a> Vjp<'a> {
    /// Starts recording the gradients of the inputs of `node`. `upstream` has one entry per output,
    /// `destinations` one per input.
    pub fn new(
        builder: &'a mut Builder,
        node: &'a Node,
        upstream: &'a [Option<Upstream>],
        destinations: Vec<GradDestination>,
    ) -> Self {
        let input_grads = vec![None; destinations.len()];
        Self { builder, node, upstream, destinations, input_grads }
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

    /// Makes an existing tensor the gradient of input `i`.
    pub fn set_input_grad(&mut self, i: usize, gradient: TensorId) {
        self.input_grads[i] = Some(gradient);
    }

    /// Returns the gradient of each input for which one was recorded.
    pub fn into_input_grads(self) -> Vec<Option<TensorId>> {
        self.input_grads
    }
}

/// Returns the part of a scoped name after the last dot.
fn short_name(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
