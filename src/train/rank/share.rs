//! Setup that all ranks receive from rank 0 before the first step: product algorithms and the NCCL id.

use crate::device::Device;
use crate::device::communicator::Communicator;
use crate::device::cuda::nccl::UniqueId;
use crate::device::cuda::products::TIMING;
use crate::device::cuda::{Algorithms, Gpu};
use crate::error::{Error, Result};
use crate::exec::prepare;
use crate::model::Programs;
use crate::results::progress::eprint_line;
use std::sync::Arc;

/// Name of the collective that sends rank 0's table.
const TABLE: &str = "the algorithms of matrix products";

/// Compiles the kernels of all programs and chooses the algorithms of products. Rank 0 chooses and the others
/// use its table: on another GPU of the same model another algorithm may be slightly faster, and would round
/// differently.
///
/// # Errors
/// When a kernel does not compile, or ranks are on different GPUs or libraries.
pub(super) fn prepare_alike(device: &Device, programs: &Programs, comm: &dyn Communicator) -> Result<()> {
    let Some(gpu) = device.gpu().filter(|_| comm.world_size() > 1) else {
        return prepare(device, programs.sections(), &say_timing);
    };
    if comm.rank() == 0 {
        prepare(device, programs.sections(), &say_timing)?;
        return comm.broadcast(TABLE, gpu.algorithms().to_json().into_bytes()).map(|_| ());
    }
    let text = String::from_utf8_lossy(&comm.broadcast(TABLE, Vec::new())?).into_owned();
    let table =
        Algorithms::from_json(&text).map_err(|e| Error::failed(format!("the table of rank 0 {e}")))?;
    if !gpu.products().merge(&table) {
        return Err(Error::failed(format!(
            "rank {} is on {}, and rank 0 on {} with cuBLASLt {}: ranks need one model of GPU and one version",
            comm.rank(),
            gpu.algorithms().gpu,
            table.gpu,
            table.cublaslt
        )));
    }
    prepare(device, programs.sections(), &say_timing)
}

/// Says what takes time before the first step on a machine that has not seen these products.
pub(in crate::train) fn say_timing(products: usize) {
    eprint_line(&format!(
        "timing {products} matrix products that this machine has not seen: about {} s at most, once",
        TIMING.as_secs()
    ));
}

/// Connects the GPUs of all ranks by NCCL. An abort of the run ends the collectives that they wait in.
///
/// # Errors
/// As [`Gpu::join_ranks`].
pub(super) fn connect_gpus(gpu: &Gpu, comm: &dyn Communicator, channels: Option<usize>) -> Result<()> {
    gpu.join_ranks(comm.rank(), comm.world_size(), channels, |id| {
        let bytes = comm.broadcast("the id of NCCL", id.map(Vec::from).unwrap_or_default())?;
        UniqueId::try_from(bytes).map_err(|_| Error::failed("rank 0 sent no id of NCCL"))
    })?;
    if let Some(nccl) = gpu.nccl() {
        let nccl = Arc::downgrade(nccl);
        comm.on_abort(Box::new(move |error| {
            if let Some(nccl) = nccl.upgrade() {
                nccl.abort(&error.clone().caused_by_other_rank());
            }
        }));
    }
    Ok(())
}
