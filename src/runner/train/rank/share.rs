//! What ranks agree on before the first step: matrix-product algorithms, the initial state, and how their
//! GPUs exchange data.

use crate::device::Device;
use crate::device::communicator::Communicator;
use crate::device::cuda::nccl::UniqueId;
use crate::device::cuda::products::TIMING;
use crate::device::cuda::{Algorithms, Gpu, SharedMemory, Sharing, process_token};
use crate::error::{Error, Result};
use crate::exec::{Engine, StateMemory, prepare, shared_buffers};
use crate::ir::State;
use crate::model::Programs;
use crate::plan::Execution;
use crate::policy::Transport;
use crate::results::progress::eprint_line;
use std::sync::Arc;

/// Name of the collective that sends rank 0's table.
const TABLE: &str = "the algorithms of matrix products";

/// Compiles the kernels of all programs and chooses the matrix-product algorithms. Rank 0 chooses, and the
/// others use its table. Otherwise another GPU of the same model might find a different algorithm slightly
/// faster and round differently.
///
/// # Errors
/// If a kernel does not compile, or ranks have different GPUs or libraries.
pub(super) fn prepare_with_shared_algorithms(
    device: &Device,
    programs: &Programs,
    comm: &dyn Communicator,
) -> Result<()> {
    let prepare = || prepare(device, comm.rank(), programs.sections(), &print_timing_notice);
    let Some(gpu) = device.gpu().filter(|_| comm.world_size() > 1) else { return prepare() };
    if comm.rank() == 0 {
        prepare()?;
        return comm.broadcast(TABLE, gpu.products.algorithms().to_json().into_bytes()).map(drop);
    }
    let text = String::from_utf8_lossy(&comm.broadcast(TABLE, Vec::new())?).into_owned();
    let table =
        Algorithms::from_json(&text).map_err(|e| Error::failed(format!("the table of rank 0 {e}")))?;
    if !gpu.products.merge(&table) {
        return Err(Error::failed(format!(
            "rank {} is on {}, but rank 0 is on {} with cuBLASLt {}: all ranks need the same GPU model and version",
            comm.rank(),
            gpu.products.algorithms().gpu,
            table.gpu,
            table.cublaslt
        )));
    }
    prepare()
}

/// Allocates the state of a rank. If all ranks are threads of this process and GPUs may exchange data by
/// copies, the buffers that other ranks write into are allocated so that they can be mapped. Separate
/// processes open handles instead.
///
/// # Errors
/// If memory cannot be allocated, or a rank is lost.
pub(super) fn allocate_state(
    device: &Device,
    layout: &Arc<State>,
    comm: &dyn Communicator,
) -> Result<StateMemory> {
    let Some(gpu) = device.gpu() else { return StateMemory::new(device, Arc::clone(layout)) };
    gpu.make_current()?;
    let mut shared = shared_buffers(layout);
    if !shared.is_empty() {
        let own = process_token().to_le_bytes().to_vec();
        let all = comm.gather("the processes of ranks", own.clone())?;
        if all.parts().any(|token| *token != *own) {
            shared.clear();
        }
    }
    StateMemory::with_mapped(device, Arc::clone(layout), &shared)
}

/// Tells the user what takes time before the first step on a machine that has not seen these matrix products.
pub(in crate::train) fn print_timing_notice(products: usize) {
    eprint_line(&format!(
        "timing {products} matrix products that this machine has not seen: about {} s at most, once",
        TIMING.as_secs()
    ));
}

/// Connects the GPU of an engine with the GPUs of all ranks. Uses copies if the state has room for them and
/// all ranks can access each other's memory, and NCCL otherwise. An abort of the run also ends whatever the
/// GPUs wait for.
///
/// # Errors
/// Fails like [`Gpu::join_ranks`].
pub(super) fn connect_gpus(engine: &Engine, comm: &dyn Communicator, execution: &Execution) -> Result<()> {
    let Some(gpu) = engine.gpu().filter(|_| comm.world_size() > 1) else { return Ok(()) };
    let shared = match engine.shared_memory() {
        Some(memory) => share_memory(gpu, memory, comm, execution.transport == Transport::Copies)?,
        None => false,
    };
    if !shared {
        gpu.join_ranks(comm.rank(), comm.world_size(), execution.channels, |id| {
            let bytes = comm.broadcast("the id of NCCL", id.map(Vec::from).unwrap_or_default())?;
            UniqueId::try_from(bytes).map_err(|_| Error::failed("rank 0 sent no valid NCCL id"))
        })?;
    }
    if let Some(abort) = gpu.exchange_aborter() {
        comm.on_abort(Box::new(move |error| abort(&error.clone().caused_by_other_rank())));
    }
    engine.check_connected()
}

/// Connects GPUs by copies. If a rank cannot access another's memory, prints the reason and returns false, or
/// fails if copies are `required`.
fn share_memory(gpu: &Gpu, memory: SharedMemory, comm: &dyn Communicator, required: bool) -> Result<bool> {
    let gather = |name: &str, bytes| Ok(comm.gather(name, bytes)?.parts().map(<[u8]>::to_vec).collect());
    match gpu.share_memory(comm.rank(), memory, gather)? {
        Sharing::Shared => Ok(true),
        Sharing::Refused(reason) if required => Err(Error::usage(format!(
            "parallelism.transport = \"copies\", but {reason}; try: leave parallelism.transport out, for NCCL"
        ))),
        Sharing::Refused(reason) => {
            if comm.rank() == 0 {
                eprint_line(&format!("ranks exchange data through NCCL instead of copies: {reason}"));
            }
            Ok(false)
        }
    }
}
