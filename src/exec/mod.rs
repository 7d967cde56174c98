//! Runs programs on a device, node by node.

mod bad;
mod communication;
mod graphs;
mod memory;
mod placement;
mod transfer;

pub use bad::{BadOutput, BadTensor};
pub use communication::Communicated;
pub use memory::StateMemory;
pub use placement::{Arena, BlockAllocator, Caching, FreeLists, Naive, size_class};
pub use transfer::Snapshot;

use crate::device::communicator::Communicator;
use crate::device::cpu::{Address, Pool};
use crate::device::cuda::Gpu;
use crate::device::gpu::{Collector, DevicePtr, Queue};
use crate::device::{DType, Device};
use crate::error::{Error, Result};
use crate::ir::{CpuNode, GpuNode, Home, Node, Phase, Program, Spec, State, TensorId};
use crate::passes::MemoryPlan;
use crate::policy::Placement;
use communication::Exchange;
use graphs::Graphs;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer::Transfers;

/// A program with its memory plan: the unit that the engine runs.
#[derive(Clone, Debug)]
pub struct Section {
    /// The nodes.
    pub program: Program,
    /// Placement of its transient tensors.
    pub memory: MemoryPlan,
}

impl Section {
    /// Plans the memory of a program.
    pub fn new(program: Program) -> Self {
        let memory = MemoryPlan::new(&program);
        Self { program, memory }
    }
}

/// Runs programs: a device, the memory of the state, an allocator of transient tensors, a communicator.
#[derive(Debug)]
pub struct Engine {
    /// The memory of the state.
    pub state: StateMemory,
    /// The communicator with the other ranks.
    pub comm: Arc<dyn Communicator>,
    device: Device,
    placement: Box<dyn BlockAllocator>,
    poison: bool,
    graphs: Graphs,
    exchange: Exchange,
    transfers: Transfers,
}

impl Engine {
    /// Creates an engine for programs over `state` whose arenas take at most `arena_bytes`.
    ///
    /// With `poison`, memory is filled with NaN before a tensor is born and after it dies.
    ///
    /// # Errors
    /// When memory cannot be allocated, or the GPU has no communicator with the other ranks yet.
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
            communication::check_met(gpu, &*comm)?;
        }
        let state = StateMemory::new(&device, Arc::clone(state))?;
        let placement: Box<dyn BlockAllocator> = match placement {
            Placement::Arena => Box::new(Arena::new(&device, arena_bytes)?),
            Placement::Caching => Box::new(Caching::new(device.clone())),
            Placement::Naive => Box::new(Naive::new(device.clone())),
        };
        let (graphs, exchange, transfers) = (Graphs::default(), Exchange::default(), Transfers::default());
        Ok(Self { state, comm, device, placement, poison, graphs, exchange, transfers })
    }

    /// The worker threads of the CPU.
    pub fn pool(&self) -> &Arc<Pool> {
        self.device.pool()
    }

    /// The GPU; `None` on the CPU.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.device.gpu()
    }

    /// Runs all nodes of a section. On a GPU with other ranks, collectives overlap with the model where their
    /// nodes ask for it.
    ///
    /// # Errors
    /// When memory cannot be allocated, or a rank is lost.
    pub fn run(&mut self, section: &Section) -> Result<()> {
        self.exchange.apart(true);
        let walked = self.walk(section, |_| Ok(()));
        let rejoined = self.rejoin();
        walked.and(rejoined)
    }

    /// Runs a section and returns the first output that is not finite. The whole section runs, so that other
    /// ranks do not wait forever in its collectives.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn find_bad(&mut self, section: &Section) -> Result<Option<BadOutput>> {
        let mut bad = None;
        self.walk(section, |ran| {
            if bad.is_none() {
                bad = ran.first_bad()?;
            }
            Ok(())
        })?;
        Ok(bad)
    }

    /// Runs a section and measures every node: on the CPU by the clock, on a GPU by events inside a graph.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn time(&mut self, section: &Section) -> Result<Vec<Duration>> {
        if let Some(gpu) = self.device.gpu().cloned() {
            return self.time_on(&gpu, section);
        }
        let mut times = Vec::with_capacity(section.program.nodes.len());
        let mut started = Instant::now();
        self.walk(section, |_| {
            times.push(started.elapsed());
            started = Instant::now();
            Ok(())
        })?;
        Ok(times)
    }

    /// Runs a section and returns the first tensor of that name, as the last node that writes it left it,
    /// widened to f64, without padding.
    ///
    /// # Errors
    /// As [`Engine::run`], or when no node writes a tensor of floats of that name.
    pub fn inspect(&mut self, section: &Section, tensor: &str) -> Result<Vec<f64>> {
        let named = section.program.tensors.iter().position(|t| t.name == tensor).map(TensorId);
        let mut values = None;
        self.walk(section, |ran| {
            let Some(k) = ran.node.outputs.iter().position(|&o| Some(o) == named) else { return Ok(()) };
            let spec = ran.output_spec(k);
            if spec.dtype != DType::U32 {
                let all = memory::widened_bytes(spec.dtype, &ran.output_bytes(k)?);
                values = Some(spec.logical_indices().map(|i| all[i]).collect());
            }
            Ok(())
        })?;
        values.ok_or_else(|| Error::failed(format!("no node of {} writes {tensor}", section.program.name)))
    }

    /// Returns the bytes of transient memory reserved from the system, and the number of allocations.
    pub fn transient(&self) -> (usize, usize) {
        (self.placement.reserved_bytes(), self.placement.system_allocations())
    }

    /// Makes the compute stream wait for the communication stream.
    fn rejoin(&mut self) -> Result<()> {
        match &self.device {
            Device::Cpu(_) => Ok(()),
            Device::Cuda(gpu, _) => self.exchange.rejoin(gpu),
        }
    }

    /// Runs the nodes in order, allocates and frees their tensors, and calls `after` for each node that ran.
    /// On a GPU the node was issued by then; all nodes share one stream, except under [`Engine::run`], so
    /// `after` may read its outputs.
    fn walk(&mut self, section: &Section, mut after: impl FnMut(&Ran<'_>) -> Result<()>) -> Result<()> {
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
            self.issue(program, node, &inputs, &outputs)?;
            after(&Ran { program, node, at, outputs: &outputs, device: &self.device })?;
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
    fn issue(
        &mut self,
        program: &Program,
        node: &Node,
        inputs: &[Address],
        outputs: &[Address],
    ) -> Result<()> {
        match &self.device {
            Device::Cpu(pool) => {
                let comm = &*self.comm;
                node.op.cpu(&CpuNode { program, node, inputs, outputs, pool, comm })
            }
            Device::Cuda(gpu, _) => {
                let numbers = |addresses: &[Address]| -> Vec<DevicePtr> {
                    addresses.iter().map(|a| a.0.addr() as DevicePtr).collect()
                };
                let (inputs, outputs) = (numbers(inputs), numbers(outputs));
                let put = |queue: &dyn Queue| {
                    let in_queue = GpuNode { program, node, inputs: &inputs, outputs: &outputs, queue };
                    let named = |e: Error| e.context(format!("{} ({})", node.op.name(), node.scope));
                    node.op.gpu(&in_queue).map_err(named)
                };
                if node.phase == Phase::Communication && gpu.nccl().is_some() {
                    self.exchange.put(gpu, program, node, put)
                } else {
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
        if let Some(nccl) = self.gpu().and_then(|gpu| gpu.nccl()) {
            nccl.leave();
        }
    }
}

/// A node that ran, while its outputs are still allocated.
struct Ran<'a> {
    program: &'a Program,
    node: &'a Node,
    /// Its index in the program.
    at: usize,
    outputs: &'a [Address],
    device: &'a Device,
}

impl Ran<'_> {
    fn output_spec(&self, k: usize) -> &Spec {
        self.program.spec(self.node.outputs[k])
    }

    /// Returns the bytes of an output, padding included.
    fn output_bytes(&self, k: usize) -> Result<Vec<u8>> {
        let bytes = self.output_spec(k).bytes();
        match self.device {
            Device::Cpu(_) => Ok(crate::device::cpu::view::copy_of(self.outputs[k], bytes)),
            Device::Cuda(gpu, _) => gpu.read(self.outputs[k].0.addr() as DevicePtr, bytes),
        }
    }
}

/// Compiles the kernels that sections need on a GPU, and chooses algorithms for their products, before
/// anything runs. Does nothing on the CPU.
///
/// # Errors
/// When a kernel does not compile, or no algorithm serves a product.
pub fn prepare<'a>(device: &Device, sections: impl IntoIterator<Item = &'a Section>) -> Result<()> {
    let Some(gpu) = device.gpu() else { return Ok(()) };
    gpu.make_current()?;
    let collector = Collector::new(gpu.properties().clone());
    for section in sections {
        collect(&collector, &section.program)?;
    }
    gpu.prepare(&collector.into_requests())
}

/// Puts every node of a program into a queue that runs nothing and lists what it was given.
///
/// # Errors
/// When an op has no GPU implementation.
pub fn collect(collector: &Collector, program: &Program) -> Result<()> {
    for node in &program.nodes {
        let (inputs, outputs) = (vec![0; node.inputs.len()], vec![0; node.outputs.len()]);
        node.op.gpu(&GpuNode { program, node, inputs: &inputs, outputs: &outputs, queue: collector })?;
    }
    Ok(())
}
