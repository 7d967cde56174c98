//! Recording of programs, node by node.

use super::{
    Builder, Home, Mode, Node, Op, Phase, Program, SlotId, SlotName, Spec, State, Stream, Tensor, TensorId,
};
use crate::error::{Error, Result};
use std::sync::Arc;

/// Destination of one output of an emitted node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A new transient tensor.
    New,
    /// An existing tensor (in the state, or a view), which the node overwrites or adds to.
    Into(TensorId, Mode),
}

impl Builder {
    /// Starts an empty program over a state.
    pub fn new(name: impl Into<String>, state: Arc<State>) -> Self {
        let program = Program { name: name.into(), state, tensors: Vec::new(), nodes: Vec::new() };
        Self::resume(program)
    }

    /// Continues recording at the end of a program.
    pub fn resume(program: Program) -> Self {
        let state_tensors = program
            .tensors
            .iter()
            .enumerate()
            .filter_map(|(i, t)| match t.home {
                Home::State(slot) => Some((slot, TensorId(i))),
                _ => None,
            })
            .collect();
        Self {
            program,
            scope: Vec::new(),
            block: None,
            phase: Phase::Forward,
            stream: Stream::Main,
            statement: None,
            state_tensors,
        }
    }

    /// Returns the finished program.
    pub fn finish(self) -> Program {
        self.program
    }

    /// Removes and returns all nodes, so that a pass can change some and push back those it keeps.
    pub fn take_nodes(&mut self) -> Vec<Node> {
        std::mem::take(&mut self.program.nodes)
    }

    /// Appends an existing node unchanged.
    pub fn push(&mut self, node: Node) {
        self.program.nodes.push(node);
    }

    /// Records nodes inside a scope: their names become `scope.name`.
    ///
    /// # Errors
    /// If `body` fails.
    pub fn scoped<T>(
        &mut self,
        scope: impl Into<String>,
        body: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.scope.push(scope.into());
        let result = body(self);
        self.scope.pop();
        result
    }

    /// Records a block inside a scope: its nodes carry the index `block`.
    ///
    /// # Errors
    /// If `body` fails.
    pub fn in_block<T>(
        &mut self,
        block: usize,
        scope: impl Into<String>,
        body: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let outside = self.block.replace(block);
        let result = self.scoped(scope, body);
        self.block = outside;
        result
    }

    /// Gives the following nodes the scope, the block and the statement of an existing node. A pass uses it
    /// to record nodes next to that one.
    pub fn set_scope_of(&mut self, node: &Node) {
        self.set_scope(&node.scope, node.block);
        self.statement = node.statement;
    }

    /// Replaces the whole scope and the block index for the following nodes, which belong to no statement.
    pub fn set_scope(&mut self, scope: &str, block: Option<usize>) {
        self.scope = if scope.is_empty() { Vec::new() } else { vec![scope.to_string()] };
        self.block = block;
        self.statement = None;
    }

    /// Returns the tensor for the state slot with this name.
    ///
    /// # Errors
    /// If the state has no such slot.
    pub fn state(&mut self, name: impl Into<SlotName>) -> Result<TensorId> {
        let name = name.into();
        let missing = || Error::failed(format!("program {}: the state has no {name}", self.program.name));
        let slot = self.program.state.slot(name.clone()).ok_or_else(missing)?;
        Ok(self.state_slot(slot))
    }

    /// Returns the tensor for a state slot.
    pub fn state_slot(&mut self, slot: SlotId) -> TensorId {
        if let Some(&id) = self.state_tensors.get(&slot) {
            return id;
        }
        let (name, spec) = {
            let s = self.program.state.get(slot);
            (s.name.to_string(), s.spec.clone())
        };
        let id = self.add_tensor(Tensor { name, spec, home: Home::State(slot) });
        self.state_tensors.insert(slot, id);
        id
    }

    /// Returns the tensor that ops read for a parameter: its compute copy if it has one, else its master; or
    /// the frozen tensor with this name.
    ///
    /// # Errors
    /// If the state has no such parameter.
    pub fn param(&mut self, name: &str) -> Result<TensorId> {
        let missing = || Error::failed(format!("program {}: no parameter {name}", self.program.name));
        let read = self.program.state.read_slot(name).ok_or_else(missing)?;
        Ok(self.state_slot(read))
    }

    /// Returns the spec of a tensor.
    pub fn spec(&self, id: TensorId) -> &Spec {
        self.program.spec(id)
    }

    /// Records a node with new output tensors, named after the scope and `name`.
    ///
    /// # Errors
    /// If the inputs do not fit the op.
    pub fn emit(&mut self, name: &str, op: impl Op + 'static, inputs: &[TensorId]) -> Result<Vec<TensorId>> {
        self.emit_into(name, Arc::new(op), inputs, &[])
    }

    /// Records a node with one new output tensor, like [`Builder::emit`].
    ///
    /// # Errors
    /// If the inputs do not fit the op.
    pub fn emit1(&mut self, name: &str, op: impl Op + 'static, inputs: &[TensorId]) -> Result<TensorId> {
        Ok(self.emit(name, op, inputs)?[0])
    }

    /// Records a node like [`Builder::emit`], unless the current phase and stream have one with the same op
    /// and inputs, whose inputs and outputs are still what they were. Returns the outputs.
    ///
    /// # Errors
    /// If the inputs do not fit the op.
    pub fn emit_once(
        &mut self,
        name: &str,
        op: impl Op + 'static,
        inputs: &[TensorId],
    ) -> Result<Vec<TensorId>> {
        let program = &self.program;
        let is_same = |node: &Node| {
            let is_new = |&out: &TensorId| program.tensor(out).home == Home::Transient;
            node.op.same_as(&op)
                && node.inputs == inputs
                && (node.phase, node.stream) == (self.phase, self.stream)
                && node.outputs.iter().all(is_new)
        };
        if let Some(at) = program.nodes.iter().rposition(is_same) {
            let outputs = program.nodes[at].outputs.clone();
            let read = [inputs, &outputs].concat();
            let changes = |&out: &TensorId| read.iter().any(|&id| program.base(id) == program.base(out));
            if !program.nodes[at + 1..].iter().flat_map(|node| &node.outputs).any(changes) {
                return Ok(outputs);
            }
        }
        self.emit(name, op, inputs)
    }

    /// Records a node. `outs` gives the destinations of the first outputs; the others become new tensors.
    ///
    /// # Errors
    /// If inputs or given outputs do not fit the op.
    pub fn emit_into(
        &mut self,
        name: &str,
        op: Arc<dyn Op>,
        inputs: &[TensorId],
        outs: &[Destination],
    ) -> Result<Vec<TensorId>> {
        let specs: Vec<Spec> = inputs.iter().map(|&i| self.spec(i).clone()).collect();
        let scope = self.scope.join(".");
        let wrong = |why: String| {
            let shown: Vec<String> = specs.iter().map(ToString::to_string).collect();
            Error::failed(format!("{} {scope}.{name}: {why} (inputs {})", op.name(), shown.join(", ")))
        };
        let inferred = op.infer(&specs).map_err(wrong)?;
        let mut outputs = Vec::with_capacity(inferred.len());
        let mut modes = Vec::with_capacity(inferred.len());
        for (i, spec) in inferred.into_iter().enumerate() {
            match outs.get(i).copied().unwrap_or(Destination::New) {
                Destination::New => {
                    let suffix = if i == 0 { String::new() } else { format!(".{i}") };
                    let dot = if scope.is_empty() { "" } else { "." };
                    let name = format!("{scope}{dot}{name}{suffix}");
                    outputs.push(self.add_tensor(Tensor { name, spec, home: Home::Transient }));
                    modes.push(Mode::Write);
                }
                Destination::Into(id, mode) => {
                    let have = self.spec(id);
                    if have.dtype != spec.dtype || have.elements() != spec.elements() {
                        return Err(wrong(format!("output {i} is {spec}, but its destination is {have}")));
                    }
                    if mode == Mode::Add && !op.accumulates(i) {
                        return Err(wrong(format!("output {i} cannot be added to")));
                    }
                    outputs.push(id);
                    modes.push(mode);
                }
            }
        }
        self.program.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            outputs: outputs.clone(),
            modes,
            scope: scope.into(),
            block: self.block,
            statement: self.statement,
            phase: self.phase,
            stream: self.stream,
        });
        Ok(outputs)
    }

    /// Returns a zero-copy view of `count` rows of a two-dimensional tensor, starting at row `start`.
    ///
    /// # Errors
    /// If the tensor has fewer rows.
    pub fn rows(&mut self, id: TensorId, start: usize, count: usize) -> Result<TensorId> {
        let Tensor { name, spec, .. } = self.program.tensor(id).clone();
        let flat = spec.shape.len() <= 1;
        let rows = if flat { spec.elements() } else { spec.rows() };
        if start + count > rows {
            return Err(Error::failed(format!("rows {start}+{count} of {name} {spec}")));
        }
        let (base, inside) = match self.program.tensor(id).home {
            Home::View { of, offset } => (of, offset),
            _ => (id, 0),
        };
        let (mut shape, mut alloc) = (vec![count], vec![count]);
        let mut row_bytes = spec.dtype.size();
        if !flat {
            shape.push(spec.shape[spec.shape.len() - 1]);
            alloc.push(spec.width());
            row_bytes *= spec.width();
        }
        let view = Tensor {
            name: format!("{name}[{start}..{}]", start + count),
            spec: Spec::padded(shape, alloc, spec.dtype),
            home: Home::View { of: base, offset: inside + start * row_bytes },
        };
        Ok(self.add_tensor(view))
    }

    /// Returns a new transient tensor for several nodes to fill through views.
    pub fn buffer(&mut self, name: &str, spec: Spec) -> TensorId {
        let dot = if self.scope.is_empty() { "" } else { "." };
        let name = format!("{}{dot}{name}", self.scope.join("."));
        self.add_tensor(Tensor { name, spec, home: Home::Transient })
    }

    /// Gives a transient tensor another name.
    pub fn rename(&mut self, id: TensorId, name: String) {
        self.program.tensors[id.0].name = name;
    }

    fn add_tensor(&mut self, tensor: Tensor) -> TensorId {
        self.program.tensors.push(tensor);
        TensorId(self.program.tensors.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DType;
    use crate::ir::{Precision, StateBuilder};
    use crate::ops::copy::Copy;
    use crate::ops::scale::Scale;

    /// A node is recorded again if its op, inputs or phase differ, or if its input has changed.
    #[test]
    fn a_node_is_recorded_once() {
        let mut layout = StateBuilder::empty(Precision::for_act_dtype(DType::F32));
        let spec = Spec::new([4, 4], DType::F32);
        let slots = layout.group("s", [("x", spec.clone()), ("y", spec)]);
        let mut b = Builder::new("program", Arc::new(layout.finish()));
        let [x, y] = slots.map(|slot| b.state_slot(slot));
        let double = Scale { factor: 2.0 };
        let first = b.emit_once("double", double, &[x]).unwrap();
        b.emit1("other", Copy, &[y]).unwrap();
        assert_eq!(b.emit_once("again", double, &[x]).unwrap(), first);
        assert_eq!(b.program.nodes.len(), 2);
        assert_ne!(b.emit_once("of another", double, &[y]).unwrap(), first);
        assert_ne!(b.emit_once("half", Scale { factor: 0.5 }, &[x]).unwrap(), first);
        b.phase = Phase::Backward;
        assert_ne!(b.emit_once("later", double, &[x]).unwrap(), first);
        b.phase = Phase::Forward;
        let view = b.rows(x, 1, 2).unwrap();
        let part = b.rows(y, 1, 2).unwrap();
        b.emit_into("part of x", Arc::new(Copy), &[part], &[Destination::Into(view, Mode::Write)]).unwrap();
        assert_ne!(b.emit_once("of a changed input", double, &[x]).unwrap(), first);
    }
}
