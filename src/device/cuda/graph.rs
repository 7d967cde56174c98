//! CUDA graphs: work that is captured once and launched as a whole.

use super::driver::check;
use super::gpu::Gpu;
use crate::error::Result;
use cudarc::driver::sys;
use std::ptr::null_mut;
use std::sync::Arc;

impl Gpu {
    /// Captures what `work` puts into the stream as a graph, without running it.
    ///
    /// # Errors
    /// That of `work`, or when the driver reports an error.
    pub fn capture(self: &Arc<Self>, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream exists and is not being captured.
        check(unsafe { sys::cuStreamBeginCapture_v2(self.stream().raw(), mode) }, "begin a graph")?;
        let worked = work();
        let mut graph = null_mut();
        // SAFETY: the capture was begun above; it is ended also when the work failed.
        let ended =
            check(unsafe { sys::cuStreamEndCapture(self.stream().raw(), &raw mut graph) }, "end a graph");
        worked?;
        ended?;
        let mut executable = null_mut();
        // SAFETY: the graph was made above; its executable form is independent of it.
        unsafe {
            let made = check(sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0), "make a graph");
            sys::cuGraphDestroy(graph);
            made?;
        }
        Ok(Graph { gpu: Arc::clone(self), executable })
    }
}

/// Work that was captured once and is launched as a whole.
///
/// It keeps the GPU, and so its communicator, which NCCL cannot end while a graph holds it.
#[derive(Debug)]
pub struct Graph {
    gpu: Arc<Gpu>,
    executable: sys::CUgraphExec,
}

// SAFETY: as for `Gpu`.
unsafe impl Send for Graph {}
// SAFETY: as for `Gpu`.
unsafe impl Sync for Graph {}

impl Graph {
    /// Launches the whole graph into the stream.
    ///
    /// # Errors
    /// When the driver reports an error.
    pub fn launch(&self) -> Result<()> {
        // SAFETY: the executable graph and the stream exist.
        check(unsafe { sys::cuGraphLaunch(self.executable, self.gpu.stream().raw()) }, "launch a graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A context that cannot be made current has taken its graphs with it.
        if self.gpu.make_current().is_ok() {
            // SAFETY: made by `capture`; the driver waits for a launch under way.
            unsafe { sys::cuGraphExecDestroy(self.executable) };
        }
    }
}
