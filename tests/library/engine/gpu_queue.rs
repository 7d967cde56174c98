//! Ops need a queue to run on a GPU, but no vendor: whole programs are put into this test's queue, which
//! checks every call.

use crate::engine::harness::{Setup, recipe};
use crate::engine::models::MODELS;
use crate::engine::update_groups::MIXED;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use xrun::Result;
use xrun::device::cuda::sources::{headers, source};
use xrun::device::gpu::{
    Arg, Collective, DevicePtr, Gathered, Grid, Kernel, MAX_RANKS, Product, ProductShape, Properties, Queue,
    TensorMap, consecutive_addresses,
};
use xrun::device::{DType, ProductPrecision};
use xrun::ir::{
    Cases, CpuNode, ExchangeSlot, GpuNode, Home, Node, Op, Precision, Program, Spec, Stream, TensorId,
};
use xrun::machine::Machine;
use xrun::model::Programs;
use xrun::plan::{Plan, corpus_facts};

/// The memory of a tensor: its name and addresses.
#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    memory: Range<DevicePtr>,
}

/// A queue that runs nothing and checks what one node puts into it.
struct FakeQueue<'a> {
    properties: &'a Properties,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// Addresses that were written or may have been.
    touched: RefCell<Vec<DevicePtr>>,
    calls: Cell<usize>,
    /// True if the node reads what other ranks share.
    reads_ranks: Cell<bool>,
    /// True if the node is on the stream of collectives, which takes no products and copies.
    beside: bool,
    precisions: RefCell<Vec<ProductPrecision>>,
    problems: RefCell<Vec<String>>,
}

impl FakeQueue<'_> {
    fn problem(&self, text: impl Into<String>) {
        self.problems.borrow_mut().push(text.into());
    }

    fn not_beside(&self, what: &str) {
        if self.beside {
            self.problem(format!("{what} is on the stream of collectives"));
        }
    }

    /// Checks that bytes lie within one tensor of the node.
    fn access(&self, what: &str, address: DevicePtr, bytes: usize, writes: bool) {
        self.touched.borrow_mut().push(address);
        let within = |t: &Tensor| t.memory.start <= address && address + bytes as DevicePtr <= t.memory.end;
        let allowed = self.outputs.iter().any(within) || (!writes && self.inputs.iter().any(within));
        if !allowed {
            let tensors: Vec<&str> = self.inputs.iter().chain(&self.outputs).map(|t| &*t.name).collect();
            self.problem(format!("{what}: {bytes} bytes at {address:#x} are in none of {tensors:?}"));
        }
    }

    /// Checks that a mapped tensor lies within one tensor of the node, and that the driver would accept the
    /// map.
    fn map(&self, entry: &str, map: &TensorMap) {
        let last = map.sizes[1..].iter().zip(map.strides).map(|(n, stride)| (n - 1) * stride);
        let bytes = (map.sizes[0] + last.sum::<usize>()) * DType::Bf16.size();
        self.access(entry, map.address, bytes, false);
        let aligned =
            map.address.is_multiple_of(16) && map.strides.iter().all(|stride| stride.is_multiple_of(8));
        let [row, rest @ ..] = map.boxes;
        if !aligned || row > 64 || rest.iter().any(|n| !(1..=256).contains(n)) {
            self.problem(format!("{entry} maps {map:?}"));
        }
    }

    fn gathered(&self, tensor: &Gathered) {
        self.access("the source of an all-gather", tensor.from, tensor.bytes, false);
        self.access("the target of an all-gather", tensor.to, tensor.bytes, true);
    }
}

impl Queue for FakeQueue<'_> {
    fn properties(&self) -> &Properties {
        self.properties
    }

    fn rank(&self) -> usize {
        0
    }

    fn launch(&self, kernel: Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        self.calls.set(self.calls.get() + 1);
        let entry = kernel.entry;
        // A kernel in a header is named by a definition.
        let definition = kernel.defines.iter().find(|(_, value)| value == entry).map(|(name, _)| *name);
        let headers = headers().into_iter().map(|(_, text)| text);
        let written = format!("{}(", definition.unwrap_or(entry));
        if !headers.chain([source(kernel.file)]).any(|text| text.contains(&written)) {
            self.problem(format!("no kernel {entry} in {}.cu", kernel.file));
        }
        let [x, y, z] = grid.blocks;
        if x == 0 || y.min(z) == 0 || y.max(z) > 65_535 || !(1..=1024).contains(&grid.threads) {
            self.problem(format!("{entry} is launched with {grid:?}"));
        }
        if grid.shared as usize > self.properties.shared_per_block {
            self.problem(format!("{entry} takes {} bytes of shared memory", grid.shared));
        }
        for arg in args {
            match *arg {
                // Kernels take 0 for a tensor that an op does not have.
                Arg::Ptr(0) => {}
                Arg::Ptr(address) => self.access(entry, address, 1, false),
                // Addresses of other ranks are not this node's.
                Arg::Ranks(addresses) => {
                    self.access(entry, addresses[0], 1, false);
                    self.touched.borrow_mut().extend(addresses);
                }
                Arg::Map(map) => self.map(entry, &map),
                Arg::Size(size) if size >= 1 << 31 => self.problem(format!("{entry}: a size of {size}")),
                _ => {}
            }
        }
        Ok(())
    }

    fn product(&self, product: &Product) -> Result<()> {
        self.calls.set(self.calls.get() + 1);
        self.not_beside("a product");
        let ProductShape { m, n, k, inputs: [left, right], output, precision, .. } = product.shape;
        let batch = product.shape.batch.unwrap_or(1);
        self.precisions.borrow_mut().push(precision);
        self.access("factor A of a product", product.a, batch * m * k * left.size(), false);
        self.access("factor B of a product", product.b, batch * k * n * right.size(), false);
        self.access("the result of a product", product.c, batch * m * n * output.size(), true);
        for scale in product.scales.into_iter().flatten() {
            self.access("the scale of a factor", scale, size_of::<f32>(), false);
            if !scale.is_multiple_of(16) {
                self.problem(format!("a scale is at {scale:#x}, no multiple of 16"));
            }
        }
        if let Some(addend) = product.addend {
            self.access("what is added to a product", addend.address, batch * m * n * output.size(), false);
        }
        Ok(())
    }

    fn fill(&self, address: DevicePtr, _byte: u8, bytes: usize) -> Result<()> {
        self.calls.set(self.calls.get() + 1);
        self.access("a fill", address, bytes, true);
        Ok(())
    }

    fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        self.calls.set(self.calls.get() + 1);
        self.not_beside("a copy");
        self.access("the source of a copy", from, bytes, false);
        self.access("the target of a copy", to, bytes, true);
        Ok(())
    }

    fn collective(&self, collective: Collective<'_>) -> Result<()> {
        self.calls.set(self.calls.get() + 1);
        match collective {
            Collective::AllReduceSum(tensors) => {
                for &(address, elements) in tensors {
                    self.access("an all-reduce", address, elements * size_of::<f32>(), true);
                }
            }
            Collective::AllGather(tensors) => tensors.iter().for_each(|tensor| self.gathered(tensor)),
            Collective::Share(tensor) => self.gathered(&tensor),
            Collective::ReduceToOwners(parts) => {
                for part in parts {
                    self.access("a reduction to owners", part.at, 4 * part.elements, true);
                }
            }
            Collective::GatherFromOwners { parts, .. } => {
                for part in parts {
                    self.access("a gather from owners", part.from, part.bytes, false);
                    self.access("a gather from owners", part.to, part.bytes, true);
                }
            }
        }
        Ok(())
    }

    fn shared(&self, to: DevicePtr, bytes: usize) -> Result<[DevicePtr; MAX_RANKS]> {
        self.access("what ranks share", to, bytes, false);
        self.reads_ranks.set(true);
        Ok(consecutive_addresses(to, bytes))
    }
}

/// Gives every tensor of a program its own memory; a view lies within the tensor that it views.
fn tensors(program: &Program) -> Vec<Tensor> {
    let mut next: DevicePtr = 1 << 40;
    let own: Vec<DevicePtr> = program
        .tensors
        .iter()
        .map(|tensor| {
            let start = next;
            if !matches!(tensor.home, Home::View { .. }) {
                next += (tensor.spec.bytes() as DevicePtr).next_multiple_of(256) + 256;
            }
            start
        })
        .collect();
    let start = |id: usize| match program.tensors[id].home {
        Home::View { of, offset } => own[of.0] + offset as DevicePtr,
        _ => own[id],
    };
    let tensor = |(id, tensor): (usize, &xrun::ir::Tensor)| Tensor {
        name: tensor.name.clone(),
        memory: start(id)..start(id) + tensor.spec.bytes() as DevicePtr,
    };
    program.tensors.iter().enumerate().map(tensor).collect()
}

/// Returns a queue for one node, and the addresses of its inputs and outputs.
fn queue<'a>(
    node: &Node,
    tensors: &[Tensor],
    properties: &'a Properties,
) -> (FakeQueue<'a>, [Vec<DevicePtr>; 2]) {
    let named = |ids: &[TensorId]| ids.iter().map(|id| tensors[id.0].clone()).collect::<Vec<_>>();
    let (inputs, outputs) = (named(&node.inputs), named(&node.outputs));
    let addresses = [&inputs, &outputs].map(|tensors| tensors.iter().map(|t| t.memory.start).collect());
    let queue = FakeQueue {
        properties,
        inputs,
        outputs,
        touched: RefCell::default(),
        calls: Cell::new(0),
        reads_ranks: Cell::new(false),
        beside: node.stream == Stream::Communication,
        precisions: RefCell::default(),
        problems: RefCell::default(),
    };
    (queue, addresses)
}

/// Puts a node into a queue.
fn put(program: &Program, node: &Node, queue: &FakeQueue<'_>, [inputs, outputs]: &[Vec<DevicePtr>; 2]) {
    let node = GpuNode { program, node, inputs, outputs, queue };
    node.node.op.gpu(&node).unwrap_or_else(|e| panic!("{} ({}): {e}", node.node.op.name(), node.node.scope));
}

/// Puts a node into a queue and returns the problems found.
fn check(program: &Program, node: &Node, tensors: &[Tensor], properties: &Properties) -> Vec<String> {
    let (queue, addresses) = queue(node, tensors, properties);
    put(program, node, &queue, &addresses);
    if queue.calls.get() == 0 {
        queue.problem("puts nothing into the queue");
    }
    let is_shared = |id: &TensorId| match program.tensor(*id).home {
        Home::State(slot) => program.state.buffers[program.state.get(slot).buffer].name == "exchange",
        _ => false,
    };
    let by_copies = program.state.slot(ExchangeSlot::Sums).is_some();
    if by_copies && queue.reads_ranks.get() && !node.inputs.iter().any(is_shared) {
        queue.problem("reads of other ranks what they do not share");
    }
    // Scratch that only the CPU uses may be left alone.
    for (output, _) in queue.outputs.iter().zip(&node.outputs).filter(|(_, id)| is_used(program, **id)) {
        if !queue.touched.borrow().iter().any(|address| output.memory.contains(address)) {
            queue.problem(format!("never names its output {}", output.name));
        }
    }
    let context = |problem| format!("{}: {} ({}): {problem}", program.name, node.op.name(), node.scope);
    queue.problems.into_inner().into_iter().map(context).collect()
}

/// Returns true if a node reads a tensor, or if the tensor outlives the program.
fn is_used(program: &Program, id: TensorId) -> bool {
    let base = program.base(id);
    let reads = |node: &Node| node.inputs.iter().any(|&input| program.base(input) == base);
    !matches!(program.tensor(base).home, Home::Transient) || program.nodes.iter().any(reads)
}

fn check_all(programs: &Programs, properties: &Properties) {
    let mut problems = Vec::new();
    for section in programs.sections() {
        let tensors = tensors(&section.program);
        for node in &section.program.nodes {
            problems.extend(check(&section.program, node, &tensors, properties));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

const ARCHITECTURES: [(u32, u32); 3] = [(8, 0), (9, 0), (12, 0)];

/// Plans for a GPU without having one: the machine is not asked.
/// All products that can read 8-bit floats.
const FP8: [&str; 2] = ["training.dtype=fp8", "fp8.products=[\"attention\", \"feed_forward\", \"head\"]"];

fn programs(overrides: &[&str]) -> Programs {
    programs_on(&Machine::none(), overrides)
}

fn programs_on(machine: &Machine, overrides: &[&str]) -> Programs {
    let recipe = recipe(overrides).unwrap();
    let plan = Plan::new(&recipe, &corpus_facts(&recipe).unwrap(), machine).unwrap();
    Programs::new(&plan).unwrap()
}

#[test]
fn every_node_of_a_model_puts_work_on_its_own_tensors_into_the_queue() {
    let variants: [&[&str]; 10] = [
        &[&FP8[..], &["training.batch_ramp=[[1, 16]]"]].concat(),
        &[&FP8[..], &["engine.fused=false", "fp8.scaling=current", "model.tie_embeddings=true"]].concat(),
        &["training.dtype=bf16", "training.batch_ramp=[[1, 16]]"],
        &["training.dtype=fp32", "engine.fused=false", "training.batch_ramp=[[1, 16]]"],
        &["training.dtype=bf16"],
        &["training.dtype=fp32"],
        &["training.dtype=bf16", "model.dropout=0.1", "data.cross_documents=false"],
        &["training.dtype=bf16", "engine.attention=unfused"],
        &["training.dtype=fp32", "engine.fused=false", "generation.samples=2"],
        &["training.dtype=bf16", "parallelism.world_size=2", "training.global_batch_size=32"],
    ];
    for overrides in variants {
        let programs = programs(overrides);
        for architecture in ARCHITECTURES {
            check_all(&programs, &Properties::for_architecture(architecture));
        }
    }
}

#[test]
fn every_node_of_every_part_of_a_model_puts_work_on_its_own_tensors_into_the_queue() {
    for (_, keys) in MODELS {
        for more in [&["training.dtype=bf16", "generation.samples=2"][..], &["engine.fused=false"]] {
            let programs = programs(&[keys, more].concat());
            for architecture in ARCHITECTURES {
                check_all(&programs, &Properties::for_architecture(architecture));
            }
        }
    }
}

/// Uses a named machine, whose GPUs sum the gradient norm in larger blocks than the CPU does.
#[test]
fn every_node_of_a_sharded_optimizer_puts_work_on_its_own_tensors_into_the_queue() {
    let sharded =
        ["parallelism.shard=optimizer", "parallelism.world_size=2", "training.global_batch_size=32"];
    let variants: [&[&str]; 6] = [
        &["training.dtype=bf16", "parallelism.launcher=process"],
        &["training.dtype=fp32", "model.tie_embeddings=true", "optimizer.name=sgd"],
        &["training.dtype=bf16", "parallelism.transport=nccl", "parallelism.overlap=false"],
        &["training.dtype=fp32", "parallelism.embedding_exchange=false"],
        // Wide enough that both ranks own some of every group.
        &[MIXED, &["model.dim=256", "training.seq_len=256"]].concat(),
        &FP8,
    ];
    for (k, overrides) in variants.into_iter().enumerate() {
        let programs = programs_on(&Machine::named("h200").unwrap(), &[overrides, &sharded[..]].concat());
        // If GPUs exchange data by copies, there is staging for them.
        assert_eq!(programs.state.slot(ExchangeSlot::Sums).is_some(), k != 2);
        check_all(&programs, &Properties::for_architecture((9, 0)));
    }
}

#[test]
fn the_precision_of_products_is_printed_and_reaches_the_queue() {
    let [fp32, tf32] = ["fp32", "tf32"].map(|dtype| programs(&[&format!("training.dtype={dtype}")]));
    let properties = Properties::for_architecture((9, 0));
    for (programs, precision) in [(&fp32, ProductPrecision::Native), (&tf32, ProductPrecision::Tf32)] {
        for section in programs.sections() {
            let tensors = tensors(&section.program);
            let mut products = 0;
            for node in &section.program.nodes {
                let (queue, addresses) = queue(node, &tensors, &properties);
                put(&section.program, node, &queue, &addresses);
                let precisions = queue.precisions.into_inner();
                assert!(precisions.iter().all(|p| *p == precision), "{}: {precisions:?}", node.op.name());
                let printed = node.op.attributes().contains("products=tf32");
                assert_eq!(printed, !precisions.is_empty() && precision == ProductPrecision::Tf32);
                products += precisions.len();
            }
            assert!(products > 0 || section.program.name.contains("step_end"), "{}", section.program.name);
        }
    }
    let printed = |programs: &Programs| programs.evaluate.program.to_string();
    assert_ne!(printed(&fp32), printed(&tf32));
    assert_eq!(printed(&fp32), printed(&tf32).replace(" products=tf32", ""));
}

/// An op with an output that it never writes.
#[derive(Debug, PartialEq)]
struct Silent;

impl Op for Silent {
    fn name(&self) -> &'static str {
        "silent"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        Ok(inputs.to_vec())
    }

    fn cpu(&self, _cx: &CpuNode<'_>) -> Result<()> {
        Ok(())
    }

    fn gpu(&self, _cx: &GpuNode<'_>) -> Result<()> {
        Ok(())
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::Own(Vec::new())
    }
}

#[test]
fn the_check_finds_an_op_that_does_nothing_and_one_that_leaves_its_tensors() {
    let programs = Setup::new(&[]).programs;
    let program = &programs.evaluate.program;
    let node = program.nodes.iter().find(|node| node.op.name() == "linear").unwrap();
    let properties = Properties::for_architecture((9, 0));
    let mut tensors = tensors(program);
    assert_eq!(check(program, node, &tensors, &properties), [""; 0]);
    tensors[node.outputs[0].0].memory.end -= 4;
    let problems = check(program, node, &tensors, &properties);
    assert!(problems[0].contains("the result of a product"), "{problems:?}");
    let silent = Node { op: Arc::new(Silent), ..node.clone() };
    let problems = check(program, &silent, &tensors, &properties);
    assert!(problems[0].ends_with("puts nothing into the queue"), "{problems:?}");
    assert!(problems[1].contains("never names its output"), "{problems:?}");
}
