//! What all ranks take over from rank 0 before the first step.

use crate::device::Device;
use crate::device::comm::Communicator;
use crate::device::cuda::nccl::UniqueId;
use crate::device::cuda::{Algorithms, Gpu};
use crate::error::{Error, Result};
use crate::exec::prepare;
use crate::model::Programs;

/// The bytes of rank 0, on every rank: rank 0 gives `Some`, the others `None`.
///
/// # Errors
/// When a rank is lost.
fn from_rank_0(comm: &dyn Communicator, mine: Option<&[u8]>) -> Result<Vec<u8>> {
    let len = comm.all_reduce_max(mine.map_or(0, |bytes| bytes.len() as u64))? as usize;
    // A byte is a number that a float holds, and the others add nothing to it.
    let mut numbers: Vec<f32> = match mine {
        Some(bytes) => bytes.iter().map(|&byte| f32::from(byte)).collect(),
        None => vec![0.0; len],
    };
    comm.all_reduce_sum_f32(&mut numbers)?;
    Ok(numbers.into_iter().map(|number| number as u8).collect())
}

/// Compiles the kernels of all programs and chooses the algorithms of products: rank 0 does, and the others take over its
/// table, since what is fastest by a hair may be another one on another card, and has other bits.
///
/// # Errors
/// When a kernel does not compile, or ranks are on different GPUs or libraries.
pub(super) fn prepare_alike(device: &Device, programs: &Programs, comm: &dyn Communicator) -> Result<()> {
    let Some(gpu) = device.gpu().filter(|_| comm.world() > 1) else {
        return prepare(device, programs.sections());
    };
    if comm.rank() == 0 {
        prepare(device, programs.sections())?;
        return from_rank_0(comm, Some(gpu.algorithms().to_json().as_bytes())).map(|_| ());
    }
    let text = String::from_utf8_lossy(&from_rank_0(comm, None)?).into_owned();
    let table = Algorithms::parse(&text).map_err(|e| Error::failed(format!("what rank 0 sent {e}")))?;
    if !gpu.products().adopt(&table) {
        return Err(Error::failed(format!(
            "rank {} is on {}, and rank 0 on {} with cuBLASLt {}: ranks need one model of GPU and one version",
            comm.rank(),
            gpu.algorithms().gpu,
            table.gpu,
            table.cublaslt
        )));
    }
    prepare(device, programs.sections())
}

/// Joins the GPUs of all ranks.
///
/// # Errors
/// As [`Gpu::join`].
pub(super) fn meet(gpu: &Gpu, comm: &dyn Communicator) -> Result<()> {
    gpu.join(comm.rank(), comm.world(), |id| {
        let bytes = from_rank_0(comm, id.as_ref().map(|id| id.as_slice()))?;
        UniqueId::try_from(bytes).map_err(|_| Error::failed("rank 0 sent no id of NCCL"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::comm::InProcess;

    #[test]
    fn every_rank_has_what_rank_0_gave() {
        let bytes: Vec<u8> = (0..=255).rev().collect();
        std::thread::scope(|scope| {
            for comm in InProcess::group(3) {
                let bytes = &bytes;
                scope.spawn(move || {
                    let mine = (comm.rank() == 0).then_some(bytes.as_slice());
                    assert_eq!(&from_rank_0(&comm, mine).unwrap(), bytes);
                    assert_eq!(from_rank_0(&comm, mine.map(|_| &[][..])).unwrap(), [0u8; 0]);
                });
            }
        });
    }
}
