//! Monitoring of GPUs: load, clocks, power, temperature, other processes, memory, versions of libraries.

mod energy;
mod memory;
pub mod nvml;
mod power;
pub mod versions;
mod watch;

pub use energy::{EnergyCounter, EnergyMeter, EnergyReading};
pub use memory::{MemoryCause, UntrackedMemory};
pub(super) use memory::{MemorySample, UntrackedMeter};
pub use power::{PowerMeter, SETTLING};
pub use watch::{InitialState, IntervalMeans, Watch, WatchSummary, foreign_processes};
