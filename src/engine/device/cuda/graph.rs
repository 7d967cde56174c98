//! CUDA graphs: work captured once and launched as a whole.

use super::driver::{self, check};
use super::gpu::Gpu;
use super::kernels::Kernels;
use crate::device::gpu::{Arg, Grid, Kernel, fill_words};
use crate::error::Result;
use cudarc::driver::sys;
use std::ptr::null_mut;
use std::sync::Arc;

/// Oldest version of CUDA whose driver lists the edges of a graph's nodes with their data.
const EDGES_WITH_DATA: (i32, i32) = (12, 3);

impl Gpu {
    /// Captures the work that `work` queues on the stream as a graph, without running it.
    ///
    /// # Errors
    /// If `work` fails, or the driver reports an error.
    pub fn capture(self: &Arc<Self>, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream exists and is not being captured.
        check(unsafe { sys::cuStreamBeginCapture_v2(self.stream.raw, mode) }, "begin a graph")?;
        let worked = work();
        let mut graph = null_mut();
        // SAFETY: the capture began above; it is ended even if the work failed.
        let ended = check(unsafe { sys::cuStreamEndCapture(self.stream.raw, &raw mut graph) }, "end a graph");
        let captured = Captured(graph);
        worked?;
        ended?;
        if driver::version().is_ok_and(|version| version >= EDGES_WITH_DATA) {
            fill_by_kernels(captured.0, &self.kernels)?;
        }
        let mut executable = null_mut();
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0.into();
        // SAFETY: the graph was created above; its executable form is independent of it. Its kernels keep the
        // priorities of the streams they were captured from.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut executable, captured.0, flags) };
        check(made, "make a graph")?;
        Ok(Graph { gpu: Arc::clone(self), executable })
    }
}

/// A captured graph; null if the capture failed.
struct Captured(sys::CUgraph);

impl Drop for Captured {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the graph comes from a capture and is destroyed once.
            unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}

/// Replaces the graph nodes that fill a few bytes by kernels. In a chain of kernels a fill takes 2.4 µs and a
/// kernel of one block 0.8 µs (H100). cuBLASLt algorithms that hand out tiles by a counter fill that counter
/// before each product.
fn fill_by_kernels(graph: sys::CUgraph, kernels: &Kernels) -> Result<()> {
    // SAFETY: the graph exists; without an array, the driver writes only the count.
    let nodes = listed(|nodes, count| unsafe { sys::cuGraphGetNodes(graph, nodes, count) })?;
    for node in nodes {
        let Some((kernel, grid, args)) = small_fill(node)? else { continue };
        // SAFETY: the node belongs to the graph. Without an array for edge data, the driver reports an error
        // for edges that have data, but edges of fills have none.
        let before = listed(|nodes, count| unsafe {
            sys::cuGraphNodeGetDependencies_v2(node, nodes, null_mut(), count)
        })?;
        // SAFETY: see above.
        let after = listed(|nodes, count| unsafe {
            sys::cuGraphNodeGetDependentNodes_v2(node, nodes, null_mut(), count)
        })?;
        let filled = kernels.add_to_graph(graph, &before, (kernel, grid, &args))?;
        let from = vec![filled; after.len()];
        // SAFETY: all nodes belong to the graph; without data, edges order whole nodes.
        unsafe {
            if !after.is_empty() {
                let (from, to) = (from.as_ptr(), after.as_ptr());
                let added = sys::cuGraphAddDependencies_v2(graph, from, to, std::ptr::null(), after.len());
                check(added, "order the nodes of a graph")?;
            }
            check(sys::cuGraphDestroyNode(node), "remove a node of a graph")?;
        }
    }
    Ok(())
}

/// Returns a kernel that does the work of a node, if the node fills a few words.
fn small_fill(node: sys::CUgraphNode) -> Result<Option<(Kernel, Grid, [Arg; 3])>> {
    let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    let mut fill =
        sys::CUDA_MEMSET_NODE_PARAMS { dst: 0, pitch: 0, value: 0, elementSize: 0, width: 0, height: 0 };
    // SAFETY: the node exists, and the addresses point to values to be filled in.
    unsafe {
        check(sys::cuGraphNodeGetType(node, &raw mut kind), "query a node of a graph")?;
        if kind != sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET {
            return Ok(None);
        }
        check(sys::cuGraphMemsetNodeGetParams(node, &raw mut fill), "query a fill of a graph")?;
    }
    let bytes = fill.width * fill.elementSize as usize;
    // Widen bytes and half words to words with the same bits.
    let value = match fill.elementSize {
        1 => (fill.value & 0xff) * 0x0101_0101,
        2 => (fill.value & 0xffff) * 0x0001_0001,
        _ => fill.value,
    };
    let is_words = fill.height == 1 && bytes.is_multiple_of(4) && fill.dst.is_multiple_of(4);
    Ok(if is_words { fill_words(fill.dst, value, bytes / 4) } else { None })
}

/// Returns the nodes that a driver call lists. The call writes first their number, then the nodes.
fn listed(
    list: impl Fn(*mut sys::CUgraphNode, *mut usize) -> sys::CUresult,
) -> Result<Vec<sys::CUgraphNode>> {
    let mut count = 0;
    check(list(null_mut(), &raw mut count), "count nodes of a graph")?;
    let mut nodes = vec![null_mut(); count];
    if count > 0 {
        check(list(nodes.as_mut_ptr(), &raw mut count), "list nodes of a graph")?;
    }
    Ok(nodes)
}

/// Work captured once and launched as a whole.
///
/// It keeps the GPU alive, and with it the exchange between ranks: NCCL cannot end a communicator that a
/// graph holds, and copies run between memory that the GPU maps.
#[derive(Debug)]
pub struct Graph {
    gpu: Arc<Gpu>,
    executable: sys::CUgraphExec,
}

// SAFETY: the driver's handles may be used from every thread that has made the context current.
unsafe impl Send for Graph {}
// SAFETY: see `Send`.
unsafe impl Sync for Graph {}

impl Graph {
    /// Launches the whole graph into the stream.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn launch(&self) -> Result<()> {
        // SAFETY: the executable graph and the stream exist.
        check(unsafe { sys::cuGraphLaunch(self.executable, self.gpu.stream.raw) }, "launch a graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // If the context cannot be made current, it has taken its graphs with it.
        if self.gpu.make_current().is_ok() {
            // SAFETY: created by `capture`; the driver waits for a launch in progress.
            unsafe { sys::cuGraphExecDestroy(self.executable) };
        }
    }
}
