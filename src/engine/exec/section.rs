//! A program with its memory plan, and the preparation of its kernels and products.

use crate::device::Device;
use crate::device::cuda::Gpu;
use crate::device::cuda::compiler::{Compiler, translation_units};
use crate::device::gpu::{Collector, Queue};
use crate::error::Result;
use crate::ir::{GpuNode, Node, Program};
use crate::passes::MemoryPlan;
use std::collections::BTreeSet;
use std::ops::Range;

/// A program with its memory plan: the unit that the engine runs.
#[derive(Clone, Debug)]
pub struct Section {
    /// The nodes.
    pub program: Program,
    /// Placement of the program's transient tensors.
    pub memory: MemoryPlan,
}

impl Section {
    /// Plans the memory of a program.
    pub fn new(program: Program) -> Self {
        let memory = MemoryPlan::new(&program);
        Self { program, memory }
    }
}

/// Compiles the kernels that sections need on a GPU and chooses algorithms for their products, before
/// anything runs. Calls `timing` with the number of products about to be timed, if there are any. Does
/// nothing on the CPU.
///
/// # Errors
/// If a kernel does not compile, or no algorithm serves a product.
pub fn prepare<'a>(
    device: &Device,
    rank: usize,
    sections: impl IntoIterator<Item = &'a Section>,
    timing: &dyn Fn(usize),
) -> Result<()> {
    let Some(gpu) = device.gpu() else { return Ok(()) };
    gpu.make_current()?;
    let collector = Collector::new(gpu.properties().clone()).with_rank(rank);
    for section in sections {
        collect(&collector, &section.program)?;
    }
    gpu.prepare(&collector.into_requests(), timing)
}

/// Compiles the kernels that sections need on GPUs like this one, for several ranks, into the machine's
/// cache, where [`prepare`] finds them. This needs no GPU context.
///
/// # Errors
/// If there is no such GPU, or a kernel does not compile.
pub fn compile_ahead(ordinal: usize, ranks: Range<usize>, sections: &[&Section]) -> Result<()> {
    let properties = Gpu::properties_of(ordinal)?;
    let compiler = Compiler::new(&properties.architecture())?;
    let mut kernels = BTreeSet::new();
    for rank in ranks {
        let collector = Collector::new(properties.clone()).with_rank(rank);
        sections.iter().try_for_each(|section| collect(&collector, &section.program))?;
        kernels.extend(collector.into_requests().kernels);
    }
    compiler.fill_cache(&translation_units(&kernels))
}

/// Puts every node of a program into a queue that runs nothing and only lists its requests.
///
/// # Errors
/// If an op has no GPU implementation.
pub fn collect(collector: &Collector, program: &Program) -> Result<()> {
    program.nodes.iter().try_for_each(|node| collect_node(collector, program, node))
}

/// Puts one node of a program into the queue of [`collect`].
///
/// # Errors
/// If the op has no GPU implementation.
pub fn collect_node(collector: &Collector, program: &Program, node: &Node) -> Result<()> {
    let (inputs, outputs) = (vec![0; node.inputs.len()], vec![0; node.outputs.len()]);
    node.op.gpu(&GpuNode { program, node, inputs: &inputs, outputs: &outputs, queue: collector })
}
