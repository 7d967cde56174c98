//! Interface through which an op records its vector-Jacobian product.

use super::{Builder, Node, Op, Out, Sink, Spec, TensorId, Upstream, Vjp};
use crate::error::{Error, Result};
use std::sync::Arc;

impl<'a> Vjp<'a> {
    /// Starts recording, for autodiff: the node, the upstream gradients of its outputs, the destinations of
    /// its inputs' gradients.
    pub fn new(
        builder: &'a mut Builder,
        node: &'a Node,
        upstream: &'a [Option<Upstream>],
        sinks: Vec<Sink>,
    ) -> Self {
        let given = vec![None; sinks.len()];
        Self { builder, node, upstream, sinks, given }
    }

    /// The scope of the node, for messages.
    pub fn scope(&self) -> &str {
        &self.node.scope
    }

    /// Returns input `i` of the forward node.
    pub fn input(&self, i: usize) -> TensorId {
        self.node.inputs[i]
    }

    /// Number of inputs of the forward node.
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
    pub fn wants(&self, i: usize) -> bool {
        self.sinks[i] != Sink::Unwanted
    }

    /// Returns the upstream gradient of output `i`, if there is one.
    pub fn upstream(&self, i: usize) -> Option<Upstream> {
        self.upstream[i]
    }

    /// Returns the upstream gradient of output `i` as a tensor.
    ///
    /// # Errors
    /// When there is none, or it is the constant 1 of a loss.
    pub fn grad(&self, i: usize) -> Result<TensorId> {
        match self.upstream[i] {
            Some(Upstream::Tensor(id)) => Ok(id),
            other => {
                let have = if other.is_none() { "no gradient" } else { "a constant" };
                Err(Error::failed(format!(
                    "{} in {}: {have} arrives at output {i}, and a tensor is needed",
                    self.node.op.name(),
                    self.node.scope
                )))
            }
        }
    }

    /// Records an op whose outputs are, in order, the gradients of the inputs listed in `of`; further outputs
    /// are scratch. Returns all its outputs.
    ///
    /// # Errors
    /// When its inputs do not fit.
    pub fn backward(
        &mut self,
        op: impl Op + 'static,
        inputs: &[TensorId],
        of: &[usize],
    ) -> Result<Vec<TensorId>> {
        let outs: Vec<Out> = of
            .iter()
            .map(|&i| match self.sinks[i] {
                Sink::Into(id, mode) => Out::Into(id, mode),
                Sink::Fresh | Sink::Unwanted => Out::New,
            })
            .collect();
        let name = match of.first() {
            Some(&i) => format!("d_{}", short_name(&self.builder.program().tensor(self.node.inputs[i]).name)),
            None => format!("d_{}", self.node.op.name()),
        };
        let outputs = self.builder.emit_into(&name, Arc::new(op), inputs, &outs)?;
        for (&i, &out) in of.iter().zip(&outputs) {
            if self.sinks[i] == Sink::Fresh {
                self.give(i, out);
            }
        }
        Ok(outputs)
    }

    /// Declares an existing tensor as the gradient of input `i`.
    pub fn give(&mut self, i: usize, gradient: TensorId) {
        self.given[i] = Some(gradient);
    }

    /// Returns the gradient tensor declared for each input.
    pub fn into_given(self) -> Vec<Option<TensorId>> {
        self.given
    }
}

/// Returns the part of a scoped name after the last dot.
fn short_name(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
