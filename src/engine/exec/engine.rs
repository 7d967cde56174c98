//! The engine: runs a program's nodes in order and manages memory for their tensors.

use super::communication::{CollectiveIssuer, CommunicationTime};
use super::issued::Issued;
use super::memory::widened_bytes;
use super::ran::FinishedNode;
use super::{Arena, BlockAllocator, NonFiniteOutput, Section, Separate, StateMemory};
use crate::device::communicator::{Communicator, SingleRank};
use crate::device::cpu::{Address, Pool};
use crate::device::cuda::driver::{Event, Pinned};
use crate::device::cuda::{Gpu, Graph};
use crate::device::gpu::{DevicePtr, Queue};
use crate::device::{DType, Device};
use crate::error::{Error, Result};
use crate::ir::{CpuNode, GpuNode, Home, Phase, SlotId, State, Stream, TensorId};
use crate::liveness::report_progress;
use crate::policy::Placement;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Runs programs. Holds a device, the memory of the state, an allocator for transient tensors, and a
/// communicator.
#[derive(Debug)]
pub struct Engine {
    /// The memory of the state.
    pub state: StateMemory,
    /// The communicator with the other ranks.
    pub comm: Arc<dyn Communicator>,
    pub(super) device: Device,
    placement: Box<dyn BlockAllocator>,
    poison: bool,
    /// True if sections are captured into CUDA graphs.
    pub(super) graphs_on: bool,
    /// Number of the GPU's multiprocessors to occupy while [`Engine::time`] measures nodes, as collectives
    /// would occupy some.
    pub occupied_multiprocessors: usize,
    /// Graphs by the names of their sections; `None` for sections that ran once. The first run is a warm-up
    /// without a graph, but its results count.
    pub(super) graphs: HashMap<String, Option<Graph>>,
    pub(super) exchange: CollectiveIssuer,
    /// Pinned memory of batches in transfer, oldest first.
    pub(super) batches: VecDeque<(Pinned, Event)>,
    /// Pinned memory of finished snapshots, for reuse.
    pub(super) spare: Vec<(Pinned, Event)>,
}

impl Engine {
    /// Creates an engine for programs over `state` whose arenas take at most `arena_bytes`.
    ///
    /// With `poison`, the memory of a tensor is filled with NaN before its first write and after its last
    /// use.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn new(
        device: impl Into<Device>,
        state: &Arc<State>,
        comm: Arc<dyn Communicator>,
        placement: Placement,
        arena_bytes: usize,
        poison: bool,
    ) -> Result<Self> {
        let device = device.into();
        if let Some(gpu) = device.gpu() {
            gpu.make_current()?;
        }
        let state = StateMemory::new(&device, Arc::clone(state))?;
        Self::with_state(device, state, comm, placement, arena_bytes, poison)
    }

    /// Creates an engine like [`Engine::new`], over a state whose memory the caller has allocated on the
    /// device.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn with_state(
        device: Device,
        state: StateMemory,
        comm: Arc<dyn Communicator>,
        placement: Placement,
        arena_bytes: usize,
        poison: bool,
    ) -> Result<Self> {
        let placement: Box<dyn BlockAllocator> = match placement {
            Placement::Arena => Box::new(Arena::new(&device, arena_bytes)?),
            Placement::Caching => Box::new(Separate::caching(device.clone())),
            Placement::Naive => Box::new(Separate::naive(device.clone())),
        };
        Ok(Self {
            state,
            comm,
            device,
            placement,
            poison,
            graphs_on: false,
            occupied_multiprocessors: 0,
            graphs: HashMap::new(),
            exchange: CollectiveIssuer::default(),
            batches: VecDeque::new(),
            spare: Vec::new(),
        })
    }

    /// Creates an engine on the same device for programs over another state. It has no memory of its own for
    /// weights that both states have, nor for transient tensors: [`Engine::swap_weights`] lends it this
    /// engine's, which must be large enough for its programs.
    ///
    /// # Errors
    /// If memory for the other buffers cannot be allocated.
    pub fn beside(&self, layout: &Arc<State>) -> Result<Self> {
        let state = StateMemory::beside(&self.device, Arc::clone(layout), self.state.layout())?;
        let placement = Placement::Naive;
        let mut engine =
            Self::with_state(self.device.clone(), state, Arc::new(SingleRank), placement, 0, self.poison)?;
        engine.graphs_on = self.graphs_on;
        Ok(engine)
    }

    /// Lends weights and transient memory to an engine that [`Engine::beside`] created. A second call takes
    /// them back. Addresses stay, so captured graphs stay valid.
    pub fn swap_weights(&mut self, other: &mut Self) {
        self.state.swap_weights(&mut other.state);
        std::mem::swap(&mut self.placement, &mut other.placement);
    }

    /// Returns the worker threads of the CPU.
    pub fn pool(&self) -> &Arc<Pool> {
        self.device.pool()
    }

    /// Returns the GPU; `None` on the CPU.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.device.gpu()
    }

    /// Runs all nodes of a section. On a GPU with other ranks, collectives overlap with the model if their
    /// nodes ask for it.
    ///
    /// # Errors
    /// If memory cannot be allocated, or a rank is lost.
    pub fn run(&mut self, section: &Section) -> Result<()> {
        self.run_before(section, None)
    }

    /// Runs all nodes of a section. If all of them overlap with the model, they also overlap with `next`, the
    /// section that the caller runs after this one.
    pub(super) fn run_before(&mut self, section: &Section, next: Option<&Section>) -> Result<()> {
        self.exchange.overlap = true;
        let walked = self.walk(section, |_| Ok(()));
        let overlaps = section.program.nodes.iter().all(|node| node.stream == Stream::Communication);
        if walked.is_ok() && overlaps && next.is_some() {
            return Ok(());
        }
        let rejoined = self.rejoin();
        walked.and(rejoined)
    }

    /// Runs a section and returns the first output that holds NaN or an infinity. The section runs to its
    /// end, so that other ranks do not wait forever in its collectives.
    ///
    /// # Errors
    /// If memory cannot be allocated, or a rank is lost.
    pub fn find_non_finite(&mut self, section: &Section) -> Result<Option<NonFiniteOutput>> {
        let (mut found, scratch) = (None, section.program.scratch());
        self.walk(section, |ran| {
            if found.is_none() {
                found = ran.first_non_finite(&scratch)?;
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Runs a section and returns the first tensor with this name, as left by the last node that writes it,
    /// widened to f64, without padding.
    ///
    /// # Errors
    /// If memory cannot be allocated, a rank is lost, or no node writes a floating-point tensor with this
    /// name.
    pub fn inspect(&mut self, section: &Section, tensor: &str) -> Result<Vec<f64>> {
        let mut values = Vec::new();
        self.inspect_each(section, &[tensor], usize::MAX, |_, found| values = found)?;
        Ok(values)
    }

    /// Runs a section and calls `visit` whenever a node has written one of the named tensors. `visit` gets
    /// the tensor's index among the names and its first `rows` rows, widened to f64, without padding.
    ///
    /// # Errors
    /// If memory cannot be allocated, a rank is lost, or no node writes a floating-point tensor with one of
    /// the names.
    pub fn inspect_each(
        &mut self,
        section: &Section,
        names: &[&str],
        rows: usize,
        mut visit: impl FnMut(usize, Vec<f64>),
    ) -> Result<()> {
        let tensors = &section.program.tensors;
        let named = |name: &&str| tensors.iter().position(|tensor| tensor.name == *name).map(TensorId);
        let named: Vec<Option<TensorId>> = names.iter().map(named).collect();
        let mut seen = vec![false; names.len()];
        self.walk(section, |ran| {
            for (k, &output) in ran.node.outputs.iter().enumerate() {
                let at = named.iter().position(|&id| id == Some(output));
                let Some(at) = at.filter(|_| ran.output_spec(k).dtype != DType::U32) else { continue };
                let spec = ran.output_spec(k).first_rows(rows);
                let all = widened_bytes(spec.dtype, &ran.output_start(k, spec.bytes())?);
                visit(at, spec.logical_indices().map(|i| all[i]).collect());
                seen[at] = true;
            }
            Ok(())
        })?;
        match seen.iter().position(|seen| !seen) {
            Some(at) => {
                Err(Error::failed(format!("no node of {} writes {}", section.program.name, names[at])))
            }
            None => Ok(()),
        }
    }

    /// Returns the bytes of transient memory reserved from the system, and the number of allocations.
    pub fn transient(&self) -> (usize, usize) {
        (self.placement.reserved_bytes(), self.placement.system_allocations())
    }

    /// Broadcasts a tensor of the state from rank 0, from GPU to GPU. Returns false if it did nothing and the
    /// tensor has to go through the host: on the CPU, and between GPUs that exchange data by copies.
    ///
    /// # Errors
    /// If a rank is lost, or NCCL reports an error.
    pub fn broadcast_from_rank_0(&self, slot: SlotId) -> Result<bool> {
        let Some(gpu) = self.gpu() else { return Ok(false) };
        let bytes = self.state.layout().get(slot).spec.bytes();
        gpu.broadcast_from_rank_0(self.state.address(slot).addr() as DevicePtr, bytes)
    }

    /// Returns the time of the collectives in the last step that used an event set. `None` for a single rank,
    /// on the CPU, and once the device records the events of the set's next step.
    pub fn communication(&self, event_set: usize) -> Option<CommunicationTime> {
        self.exchange.times(event_set)
    }

    /// Makes the compute stream wait for the communication stream.
    fn rejoin(&mut self) -> Result<()> {
        match &self.device {
            Device::Cpu(_) => Ok(()),
            Device::Cuda(gpu, _) => self.exchange.rejoin(gpu),
        }
    }

    /// Runs the nodes in order, allocates and frees their tensors, and calls `after` following each node. On
    /// a GPU the node has been issued by then; except under [`Engine::run`], all nodes share one stream, so
    /// `after` may read the node's outputs.
    pub(super) fn walk(
        &mut self,
        section: &Section,
        after: impl FnMut(&FinishedNode<'_>) -> Result<()>,
    ) -> Result<()> {
        self.walk_and_issue(section, |engine, issued| engine.issue(issued), after)
    }

    /// Walks a section like [`Engine::walk`], with nodes issued by `issue`.
    pub(super) fn walk_and_issue(
        &mut self,
        section: &Section,
        mut issue: impl FnMut(&mut Self, &Issued<'_>) -> Result<()>,
        mut after: impl FnMut(&FinishedNode<'_>) -> Result<()>,
    ) -> Result<()> {
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
                    self.placement.poison(block, bytes)?;
                }
            }
            inputs.clear();
            outputs.clear();
            inputs.extend(node.inputs.iter().map(|&i| self.address(section, i)));
            outputs.extend(node.outputs.iter().map(|&o| self.address(section, o)));
            issue(self, &Issued { program, node, at, inputs: &inputs, outputs: &outputs })?;
            report_progress();
            after(&FinishedNode { program, node, at, outputs: &outputs, device: &self.device })?;
            for &block in &memory.deaths[at] {
                if self.poison {
                    self.placement.poison(block, memory.blocks[block].bytes)?;
                }
                self.placement.end(block);
            }
        }
        Ok(())
    }

    /// Runs a node on the CPU, or issues it to the GPU.
    pub(super) fn issue(&mut self, issued: &Issued<'_>) -> Result<()> {
        let &Issued { program, node, inputs, outputs, .. } = issued;
        match &self.device {
            Device::Cpu(pool) => {
                let comm = &*self.comm;
                node.op.cpu(&CpuNode { program, node, inputs, outputs, pool, comm })
            }
            Device::Cuda(gpu, _) => {
                let device_ptrs = |addresses: &[Address]| -> Vec<DevicePtr> {
                    addresses.iter().map(|a| a.0.addr() as DevicePtr).collect()
                };
                let (inputs, outputs) = (device_ptrs(inputs), device_ptrs(outputs));
                let put = |queue: &dyn Queue| {
                    let gpu_node = GpuNode { program, node, inputs: &inputs, outputs: &outputs, queue };
                    let with_name = |e: Error| e.context(format!("{} ({})", node.op.name(), node.scope));
                    node.op.gpu(&gpu_node).map_err(with_name)
                };
                if node.phase == Phase::Communication && gpu.transport().is_some() {
                    self.exchange.issue(gpu, issued, put)
                } else {
                    self.exchange.wait_for_inputs(gpu, issued)?;
                    put(&**gpu)
                }
            }
        }
    }

    /// Returns the address of a tensor while its node runs.
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

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(transport) = self.gpu().and_then(|gpu| gpu.transport()) {
            transport.leave();
        }
    }
}
