//! Logits with a bias or a function for which the op of the losses has no form: they are a tensor of their
//! own, and so are their gradients.

use super::Recording;
use super::head::HeadChunk;
use crate::error::Result;
use crate::ir::{Builder, Destination, Mode, Op, TensorId};
use crate::ops::activate::{Activate, ActivateGrad};
use crate::ops::add_bias::{AddBias, AddBiasGrad};
use crate::ops::cross_entropy::{CrossEntropy, CrossEntropyGrad};
use crate::ops::linear::{LinearInputGrad, LinearWeightGrad};
use crate::ops::with_gradient::WithGradient;
use std::sync::Arc;

/// An op of the head, and the parameter that it reads beside the value before it.
type HeadOp = (Arc<dyn Op>, Option<TensorId>);

/// The last values of the head.
pub(super) struct Logits {
    /// What the last op reads: the products with their bias, if that op is a function.
    pub products: TensorId,
    /// What it gives.
    pub logits: TensorId,
}

impl Recording<'_> {
    /// Returns the ops that follow the head's product: its bias, with the parameter, and its function.
    ///
    /// # Errors
    /// If the state lacks the bias.
    pub(super) fn ops_after_product(&self, b: &mut Builder) -> Result<Vec<HeadOp>> {
        let mut ops: Vec<HeadOp> = Vec::new();
        if let Some(bias) = self.steps.head.bias {
            ops.push((Arc::new(AddBias), Some(self.param(b, bias)?)));
        }
        if let Some(function) = &self.steps.head.function {
            ops.push((Arc::new(Activate::new(function.clone())), None));
        }
        Ok(ops)
    }

    /// Records the ops that follow the head's product.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn logits_of_product(&self, b: &mut Builder, product: TensorId) -> Result<Logits> {
        let (mut products, mut logits) = (product, product);
        for (op, parameter) in self.ops_after_product(b)? {
            products = logits;
            let inputs: Vec<TensorId> = [products].into_iter().chain(parameter).collect();
            logits = b.emit_into("logits", op, &inputs, &[])?[0];
        }
        Ok(Logits { products, logits })
    }

    /// Records the losses of a chunk and, in training, their gradients, which autodiff takes as they are.
    /// Returns the logits.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn losses_of_logits(&self, b: &mut Builder, chunk: &HeadChunk<'_>) -> Result<TensorId> {
        let [rows, weight, targets] = chunk.inputs;
        let product = b.emit1("product", self.linear_op(), &[rows, weight])?;
        let Logits { products, logits } = self.logits_of_product(b, product)?;
        b.rename(logits, "head.logits.1".into());
        let losses = match chunk.gradients {
            Some(_) => Destination::New,
            None => Destination::Into(chunk.losses, Mode::Write),
        };
        let terms = chunk.terms.iter().map(|&term| Destination::Into(term, Mode::Write));
        let outs: Vec<Destination> = [losses].into_iter().chain(terms).collect();
        let losses =
            b.emit_into("losses", Arc::new(CrossEntropy(chunk.objective)), &[logits, targets], &outs)?;
        let Some((d_rows, mode)) = chunk.gradients else { return Ok(logits) };

        let d_losses = chunk.factor.d_losses(b, losses[0], chunk.factor_inputs)?;
        let inputs = [&[logits, targets][..], &vec![d_losses; losses.len()]].concat();
        let mut d_product = b.emit1("d_logits", CrossEntropyGrad(chunk.objective), &inputs)?;
        if let Some(function) = &self.steps.head.function {
            let op = ActivateGrad { of: Activate::new(function.clone()), emits: false };
            d_product = b.emit1("d_product", op, &[products, d_product])?;
        }
        if let Some(bias) = self.steps.head.bias
            && let Some(to) = self.head_gradient(b, &self.plan.graph.parameters[bias].name, mode)?
        {
            b.emit_into("d_bias", Arc::new(AddBiasGrad), &[d_product], &[to])?;
        }
        let products = self.plan.execution.products;
        if let Some(to) = self.head_gradient(b, self.head_name(), mode)? {
            let op = Arc::new(LinearWeightGrad { products });
            b.emit_into("d_head", op, &[rows, d_product, weight], &[to])?;
        }
        let to = Destination::Into(d_rows, Mode::Write);
        let op = Arc::new(LinearInputGrad { products, adds: false });
        b.emit_into("d_normed", op, &[d_product, weight], &[to])?;
        let to = Destination::Into(chunk.losses, Mode::Write);
        b.emit_into("losses", Arc::new(WithGradient), &[losses[0], rows, d_rows], &[to])?;
        Ok(logits)
    }
}
