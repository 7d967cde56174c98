//! Runs programs on a device, node by node.

mod bad;
mod communication;
mod connected;
mod engine;
mod graphs;
mod issued;
mod memory;
mod placement;
mod ran;
mod section;
mod state_copy;
mod timing;
mod transfer;

pub use bad::{NonFiniteOutput, NonFiniteTensor};
pub use communication::CommunicationTime;
pub use connected::shared_buffers;
pub use engine::Engine;
pub use memory::{StateMemory, padded_bytes, widened_bytes};
pub use placement::{Arena, BlockAllocator, FreeLists, Separate};
pub use section::{Section, collect, collect_node, compile_ahead, prepare};
pub use state_copy::{StateCopy, copy_bytes};
pub use timing::UnderLoad;
pub use transfer::Snapshot;
