//! What an op sees while its gradient is recorded.

use super::{Builder, Mode, Node, Op, Out, Spec, TensorId};
use crate::error::{Error, Result};
use std::sync::Arc;

/// The gradient that arrives at an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// Exactly 1 in every element: the loss itself.
    One,
    /// A recorded tensor.
    Tensor(TensorId),
}

/// Where the gradient of an input goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Nobody asks for it.
    Unwanted,
    /// A new tensor.
    Fresh,
    /// A gradient of the state, overwritten by the first contribution and added to by the next.
    Into(TensorId, Mode),
}

/// One node's gradient being recorded.
#[derive(Debug)]
pub struct Vjp<'a> {
    builder: &'a mut Builder,
    node: &'a Node,
    upstream: &'a [Option<Upstream>],
    sinks: Vec<Sink>,
    given: Vec<Option<TensorId>>,
}

impl<'a> Vjp<'a> {
    /// For autodiff: the node, what arrives at its outputs, where gradients of its inputs go.
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

    /// Input `i` of the forward node.
    pub fn input(&self, i: usize) -> TensorId {
        self.node.inputs[i]
    }

    /// The number of inputs of the forward node.
    pub fn input_count(&self) -> usize {
        self.node.inputs.len()
    }

    /// Output `i` of the forward node.
    pub fn output(&self, i: usize) -> TensorId {
        self.node.outputs[i]
    }

    /// The spec of a tensor.
    pub fn spec(&self, id: TensorId) -> &Spec {
        self.builder.spec(id)
    }

    /// Whether anybody asks for the gradient of input `i`.
    pub fn wants(&self, i: usize) -> bool {
        self.sinks[i] != Sink::Unwanted
    }

    /// The gradient of output `i`, if one arrives.
    pub fn upstream(&self, i: usize) -> Option<Upstream> {
        self.upstream[i]
    }

    /// The gradient of output `i` as a tensor.
    ///
    /// # Errors
    /// When none arrives, or it is the constant 1 of a loss.
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

    /// Records an op whose outputs are, in order, the gradients of the inputs listed in `of`; outputs beyond are
    /// scratch. Returns all its outputs.
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

    /// Says that a tensor that exists already is the gradient of input `i`.
    pub fn give(&mut self, i: usize, gradient: TensorId) {
        self.given[i] = Some(gradient);
    }

    /// What was given for each input.
    pub fn into_given(self) -> Vec<Option<TensorId>> {
        self.given
    }
}

/// The part of a scoped name after the last dot.
fn short_name(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
