//! Appends a program's backward: the vector-Jacobian product of every node, in reverse order.

use crate::error::{Error, Result};
use crate::ir::{Builder, Destination, Home, Mode, Node, Phase, Program, TensorId, Vjp};
use crate::ir::{GradDestination, InputGrad, Upstream};
use crate::ops::add::Add;
use crate::ops::copy::Copy;
use std::collections::HashSet;
use std::sync::Arc;

/// Appends the gradients of all parameters that the program reads.
///
/// `seeds` are the tensors that make up the loss, with their upstream gradients. In the `first` micro-step of
/// a step, the first contribution to a parameter's gradient overwrites it; all others add.
///
/// # Errors
/// If an op between a parameter and the loss has no gradient, or a parameter receives none.
pub fn differentiate(program: Program, seeds: &[(TensorId, Upstream)], first: bool) -> Result<Program> {
    let mut pass = Autodiff::new(program, first);
    for &(id, upstream) in seeds {
        pass.grads[id.0] = Some(upstream);
    }
    let forward: Vec<Node> = pass.builder.program.nodes.clone();
    pass.builder.phase = Phase::Backward;
    for node in forward.iter().rev() {
        pass.node(node)?;
    }
    pass.check_complete(&forward)?;
    Ok(pass.builder.finish())
}

struct Autodiff {
    builder: Builder,
    /// Upstream gradient of each tensor, if one was recorded.
    grads: Vec<Option<Upstream>>,
    /// For each tensor, true if it depends on a parameter.
    tracked: Vec<bool>,
    /// Parameter gradients that already hold a contribution from this step.
    written: HashSet<TensorId>,
    first: bool,
}

impl Autodiff {
    fn new(program: Program, first: bool) -> Self {
        let mut tracked = vec![false; program.tensors.len()];
        for (id, tensor) in program.tensors.iter().enumerate() {
            if let Home::State(slot) = tensor.home {
                tracked[id] = program.state.param_read_at(slot).is_some();
            }
        }
        let mut written = HashSet::new();
        for node in &program.nodes {
            let depends = node.inputs.iter().any(|&i| tracked[program.base(i).0] || tracked[i.0]);
            for &out in &node.outputs {
                if matches!(program.tensor(out).home, Home::State(_)) {
                    written.insert(out);
                } else if depends {
                    tracked[out.0] = true;
                    tracked[program.base(out).0] = true;
                }
            }
        }
        for id in 0..program.tensors.len() {
            tracked[id] |= tracked[program.base(TensorId(id)).0];
        }
        let grads = vec![None; program.tensors.len()];
        Self { builder: Builder::resume(program), grads, tracked, written, first }
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        let upstream: Vec<Option<Upstream>> = node.outputs.iter().map(|o| self.grads[o.0]).collect();
        if upstream.iter().all(Option::is_none) || !node.inputs.iter().any(|i| self.tracked[i.0]) {
            return Ok(());
        }
        let destinations: Vec<GradDestination> =
            node.inputs.iter().map(|&i| self.grad_destination(i)).collect();
        let sums = (0..node.inputs.len()).map(|i| self.sum_to_add_to(node, i, destinations[i])).collect();
        self.builder.set_scope_of(node);
        let mut vjp = Vjp::new(&mut self.builder, node, &upstream, destinations.clone(), sums);
        node.op.vjp(&mut vjp)?;
        let input_grads = vjp.into_input_grads();
        self.grow();
        for ((&input, gradient), destination) in node.inputs.iter().zip(input_grads).zip(destinations) {
            match (gradient, destination) {
                (Some(InputGrad { tensor, is_total: true }), GradDestination::New) => {
                    self.grads[input.0] = Some(Upstream::Tensor(tensor));
                }
                (Some(gradient), GradDestination::New) => self.contribute(node, input, gradient.tensor)?,
                (Some(gradient), GradDestination::Into(parameter, mode)) => {
                    let into = [Destination::Into(parameter, mode)];
                    self.builder.emit_into("gradient", Arc::new(Copy), &[gradient.tensor], &into)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns where the gradient of a node's input goes.
    fn grad_destination(&mut self, input: TensorId) -> GradDestination {
        if !self.tracked[input.0] {
            return GradDestination::NotNeeded;
        }
        let Home::State(slot) = self.builder.program.tensor(input).home else {
            return GradDestination::New;
        };
        let state = Arc::clone(&self.builder.program.state);
        let Some(param) = state.param_read_at(slot) else { return GradDestination::NotNeeded };
        let grad = self.builder.state_slot(param.grad);
        self.grow();
        let mode = if self.first && self.written.insert(grad) { Mode::Write } else { Mode::Add };
        GradDestination::Into(grad, mode)
    }

    /// Returns the sum of the gradients of input `i` recorded so far, if an op may add to it in place: it is
    /// the gradient of this input alone, and the op reads it for nothing else.
    fn sum_to_add_to(&self, node: &Node, i: usize, destination: GradDestination) -> Option<TensorId> {
        let (input, program) = (node.inputs[i], &self.builder.program);
        let is_view = |id: TensorId| matches!(program.tensor(id).home, Home::View { .. });
        let Some(Upstream::Tensor(sum)) = self.grads[input.0] else { return None };
        let is_upstream = node.outputs.iter().any(|out| self.grads[out.0] == Some(Upstream::Tensor(sum)));
        let is_once = node.inputs.iter().filter(|&&other| other == input).count() == 1;
        let (want, have) = (program.spec(input), program.spec(sum));
        let fits = want.dtype == have.dtype && want.alloc == have.alloc;
        let may_add = destination == GradDestination::New && is_once && fits && !is_upstream;
        (may_add && !is_view(input) && !is_view(sum)).then_some(sum)
    }

    /// Extends the tables to the tensors recorded in the meantime.
    fn grow(&mut self) {
        let tensors = self.builder.program.tensors.len();
        self.grads.resize(tensors, None);
        self.tracked.resize(tensors, false);
    }

    /// Adds a gradient of `input` to the sum recorded so far.
    fn contribute(&mut self, node: &Node, input: TensorId, gradient: TensorId) -> Result<()> {
        let is_view = matches!(self.builder.program.tensor(input).home, Home::View { .. });
        let (input, gradient) = self.whole(node, input, gradient)?;
        let program = &self.builder.program;
        let (want, have) = (program.spec(input), program.spec(gradient));
        if want.dtype != have.dtype || want.alloc != have.alloc {
            return Err(Error::failed(format!(
                "the gradient of {2}, recorded by {0} in {1}, is {have}, not {want}",
                node.op.name(),
                node.scope,
                program.tensor(input).name
            )));
        }
        let total = match self.grads[input.0] {
            None => gradient,
            // Every view of a tensor contributes the same whole gradient, in which it has filled its own
            // rows.
            Some(Upstream::Tensor(before)) if is_view && before == gradient => return Ok(()),
            Some(Upstream::Tensor(before)) => {
                let name = format!("d_{}", program.tensor(input).name.rsplit('.').next().unwrap_or_default());
                self.builder.emit1(&name, Add, &[before, gradient])?
            }
            Some(Upstream::One) => {
                return Err(Error::failed(format!(
                    "the loss is read by {} in {}",
                    node.op.name(),
                    node.scope
                )));
            }
        };
        self.grow();
        self.grads[input.0] = Some(Upstream::Tensor(total));
        Ok(())
    }

    /// Maps a row view and its gradient, a view at the same offset, to the tensors that they view.
    fn whole(&self, node: &Node, input: TensorId, gradient: TensorId) -> Result<(TensorId, TensorId)> {
        let program = &self.builder.program;
        match (program.tensor(input).home, program.tensor(gradient).home) {
            (Home::View { of: x, offset: at }, Home::View { of: dx, offset }) if at == offset => Ok((x, dx)),
            (Home::View { .. }, _) => Err(Error::failed(format!(
                "{} in {} reads a view of {}, but its gradient is not a view of a gradient",
                node.op.name(),
                node.scope,
                program.tensor(input).name
            ))),
            _ => Ok((input, gradient)),
        }
    }

    /// Checks that every parameter the program reads receives a gradient.
    fn check_complete(&self, forward: &[Node]) -> Result<()> {
        let program = &self.builder.program;
        let written: HashSet<TensorId> =
            program.nodes.iter().flat_map(|n| n.outputs.iter().copied()).collect();
        for &input in forward.iter().flat_map(|n| &n.inputs) {
            let Home::State(slot) = program.tensor(input).home else { continue };
            let Some(param) = program.state.param_read_at(slot) else { continue };
            let reached = program
                .tensors
                .iter()
                .enumerate()
                .any(|(i, t)| t.home == Home::State(param.grad) && written.contains(&TensorId(i)));
            if !reached {
                return Err(Error::failed(format!(
                    "program {}: no gradient reaches the parameter {}",
                    program.name, param.name
                )));
            }
        }
        Ok(())
    }
}
