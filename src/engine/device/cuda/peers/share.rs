//! How ranks agree to share their memory.

use super::copies::PeerCopies;
use super::map::{Offer, map_all};
use super::memory::SharedMemory;
use crate::device::cuda::gpu::Gpu;
use crate::error::{Error, Result};
use std::sync::Arc;

/// Whether ranks share their memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All ranks share their memory.
    Shared,
    /// No rank does, for this reason, which one of them gave.
    Refused(String),
}

impl Gpu {
    /// Connects this GPU to the GPUs of the other ranks by access to each other's memory. Every rank calls
    /// it. `gather` returns the bytes of all ranks in rank order. If a rank cannot access another's memory,
    /// no rank is connected, and all get the same reason.
    ///
    /// # Errors
    /// If a rank is lost, ranks have different buffers, or the driver reports an error.
    pub fn share_memory(
        &self,
        rank: usize,
        memory: SharedMemory,
        mut gather: impl FnMut(&str, Vec<u8>) -> Result<Vec<Vec<u8>>>,
    ) -> Result<Sharing> {
        self.make_current()?;
        // The flags must be zero before another rank can set them.
        self.synchronize()?;
        let offer = Offer::new(&self.context, &memory);
        let bytes = serde_json::to_vec(&offer).map_err(|e| Error::failed(e.to_string()))?;
        let offers = gather("the memory of ranks", bytes)?;
        let offers: Vec<Offer> = offers
            .iter()
            .map(|bytes| serde_json::from_slice(bytes))
            .collect::<std::result::Result<_, _>>()
            .map_err(|e| Error::failed(format!("cannot parse a rank's description of its memory: {e}")))?;
        let mapped = map_all(&self.context, rank, &offers);
        let refusal = mapped.as_ref().err().cloned().unwrap_or_default();
        let refusals = gather("access to the memory of ranks", refusal.into_bytes())?;
        if let Some((by, reason)) = refusals.iter().enumerate().find(|(_, reason)| !reason.is_empty()) {
            return Ok(Sharing::Refused(format!("rank {by}: {}", String::from_utf8_lossy(reason))));
        }
        let mapped = mapped.map_err(Error::failed)?;
        let kernels = Arc::clone(&self.kernels);
        let peers = PeerCopies::new(&self.context, kernels, rank, memory, mapped)?;
        self.connect(Arc::new(peers))?;
        Ok(Sharing::Shared)
    }
}
