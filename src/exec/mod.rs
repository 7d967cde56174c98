//! Walks programs on a device.

mod memory;
mod placement;

pub use memory::StateMemory;
pub use placement::{Arena, Caching, FreeLists, Naive, Placement, PlacementKind, size_class};

use crate::device::DType;
use crate::device::comm::Communicator;
use crate::device::cpu::{Address, Pool};
use crate::dispatch_float;
use crate::error::{Error, Result};
use crate::ir::{CpuNode, Home, Program, State, TensorId};
use crate::passes::MemoryPlan;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A program with its memory plan: what the engine runs.
#[derive(Clone, Debug)]
pub struct Section {
    /// The nodes.
    pub program: Program,
    /// Where their tensors lie.
    pub memory: MemoryPlan,
}

impl Section {
    /// Plans the memory of a program.
    pub fn new(program: Program) -> Self {
        let memory = MemoryPlan::new(&program);
        Self { program, memory }
    }
}

/// The first tensor that held something that is not a finite number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTensor {
    /// Its scoped name.
    pub tensor: String,
    /// The op that wrote it.
    pub op: &'static str,
    /// The value, as text: `NaN`, `inf`, `-inf`.
    pub value: String,
}

/// An output of a node that holds something that is not a finite number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BadOutput {
    /// The node's place in its program.
    pub node: usize,
    /// The output's place among those of the node.
    pub output: usize,
    /// The first such value in it.
    pub value: f64,
}

impl BadOutput {
    /// What is known of the tensor. `section` is the one that was run.
    pub fn describe(&self, section: &Section) -> BadTensor {
        let node = &section.program.nodes[self.node];
        let tensor = section.program.tensor(node.outputs[self.output]).name.clone();
        BadTensor { tensor, op: node.op.name(), value: self.value.to_string() }
    }
}

/// What runs programs: worker threads, the state's memory, a placement of transient tensors, the other ranks.
#[derive(Debug)]
pub struct Engine {
    /// The worker threads.
    pub pool: Arc<Pool>,
    /// The memory of the state.
    pub state: StateMemory,
    /// The other ranks.
    pub comm: Arc<dyn Communicator>,
    placement: Box<dyn Placement>,
    poison: bool,
}

impl Engine {
    /// An engine for programs over `state` whose arenas take at most `arena_bytes`.
    ///
    /// With `poison`, memory is filled with NaN before a tensor is born and after it dies.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn new(
        pool: Arc<Pool>,
        state: &Arc<State>,
        comm: Arc<dyn Communicator>,
        placement: PlacementKind,
        arena_bytes: usize,
        poison: bool,
    ) -> Result<Self> {
        let placement: Box<dyn Placement> = match placement {
            PlacementKind::Arena => Box::new(Arena::new(arena_bytes)?),
            PlacementKind::Caching => Box::<Caching>::default(),
            PlacementKind::Naive => Box::<Naive>::default(),
        };
        Ok(Self { pool, state: StateMemory::new(Arc::clone(state))?, comm, placement, poison })
    }

    /// Runs all nodes of a section.
    ///
    /// # Errors
    /// When memory cannot be had, or a rank is lost.
    pub fn run(&mut self, section: &Section) -> Result<()> {
        self.walk(section, |_| {})
    }

    /// Runs a section and returns the first output that is not finite. All of it is run, so that other ranks are not
    /// left waiting.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn find_bad(&mut self, section: &Section) -> Result<Option<BadOutput>> {
        let mut bad = None;
        let mut at = 0;
        self.walk(section, |cx| {
            bad = bad.or_else(|| first_bad(cx).map(|(output, value)| BadOutput { node: at, output, value }));
            at += 1;
        })?;
        Ok(bad)
    }

    /// Runs a section and measures every node.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn time(&mut self, section: &Section) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(section.program.nodes.len());
        let mut started = Instant::now();
        self.walk(section, |_| {
            times.push(started.elapsed());
            started = Instant::now();
        })?;
        Ok(times)
    }

    /// Runs a section and returns the first tensor of that name as it was when the last node that writes it had run:
    /// widened to f64, padding left out.
    ///
    /// # Errors
    /// As [`Engine::run`], or when no node writes a tensor of floats of that name.
    pub fn inspect(&mut self, section: &Section, tensor: &str) -> Result<Vec<f64>> {
        let named = section.program.tensors.iter().position(|t| t.name == tensor).map(TensorId);
        let mut values = None;
        self.walk(section, |cx| {
            let Some(k) = cx.node.outputs.iter().position(|&o| Some(o) == named) else { return };
            let spec = cx.output_spec(k);
            if spec.dtype != DType::U32 {
                let all = dispatch_float!(spec.dtype, E => memory::widened(cx.output::<E>(k).slice(0, spec.elements())));
                values = Some(spec.logical_indices().into_iter().map(|i| all[i]).collect());
            }
        })?;
        values.ok_or_else(|| Error::failed(format!("no node of {} writes {tensor}", section.program.name)))
    }

    /// Bytes of transient memory that are held from the system, and how often it was asked.
    pub fn transient(&self) -> (usize, usize) {
        (self.placement.reserved_bytes(), self.placement.system_allocations())
    }

    fn walk(&mut self, section: &Section, mut after: impl FnMut(&CpuNode<'_>)) -> Result<()> {
        let (program, memory) = (&section.program, &section.memory);
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (at, node) in program.nodes.iter().enumerate() {
            for &block in &memory.births[at] {
                let bytes = memory.blocks[block].bytes;
                self.placement.begin(block, bytes, memory.blocks[block].offset).map_err(|e| {
                    let tensor = memory.blocks[block].tensors[0];
                    e.context(format!("for {} of {}", program.tensor(tensor).name, program.name))
                })?;
                if self.poison {
                    placement::fill_with_nan(self.placement.address(block), bytes);
                }
            }
            inputs.clear();
            outputs.clear();
            inputs.extend(node.inputs.iter().map(|&i| self.address(section, i)));
            outputs.extend(node.outputs.iter().map(|&o| self.address(section, o)));
            let cx = CpuNode {
                program,
                node,
                inputs: &inputs,
                outputs: &outputs,
                pool: &self.pool,
                comm: &*self.comm,
            };
            node.op.cpu(&cx)?;
            after(&cx);
            for &block in &memory.deaths[at] {
                if self.poison {
                    placement::fill_with_nan(self.placement.address(block), memory.blocks[block].bytes);
                }
                self.placement.end(block);
            }
        }
        Ok(())
    }

    /// The address of a tensor while its node runs.
    fn address(&self, section: &Section, id: TensorId) -> Address {
        let of = |base: TensorId, offset: usize| match section.program.tensor(base).home {
            Home::State(slot) => self.state.address(slot).wrapping_add(offset),
            _ => {
                let block =
                    section.memory.block_of[base.0].expect("a tensor that a node touches has a block");
                self.placement.address(block).wrapping_add(offset)
            }
        };
        match section.program.tensor(id).home {
            Home::View { of: base, offset } => Address(of(base, offset)),
            _ => Address(of(id, 0)),
        }
    }
}

/// The first output of a node, in order, that is not finite, and its value.
fn first_bad(cx: &CpuNode<'_>) -> Option<(usize, f64)> {
    (0..cx.node.outputs.len()).find_map(|k| {
        let spec = cx.output_spec(k);
        if spec.dtype == DType::U32 {
            return None;
        }
        let value = dispatch_float!(spec.dtype, E => {
            memory::first_not_finite(cx.output::<E>(k).slice(0, spec.elements()))
        })?;
        Some((k, value))
    })
}
