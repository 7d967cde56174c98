//! Forecasts a run before it starts: parameters, FLOPs, tokens, memory to the byte, predicted time, and fit.
//!
//! Reads only the plan and the engine's own programs and memory plans; allocates no tensor.

mod budget;
mod conversations;
pub mod disk;
mod exchange;
mod figures;
pub mod fit;
mod fp8_gain;
mod lines;
mod lines_text;
pub mod listing;
pub mod memory;
mod needs;
mod node_pace;
pub mod parameters;
mod planned;
mod run_time;
mod saving;
mod scoring;
mod shared;
mod text;
pub mod time;
mod timeline;
mod update_groups;
mod verdict;

pub use budget::{Budget, RESERVE_BYTES};
pub use disk::Disk;
pub use exchange::{ExchangeForecast, ExchangeTime};
pub use figures::{BatchForecast, Forecast, SourceForecast, TrainingForecast};
pub use fit::{Advice, FitRow, fit_local_batch};
pub use fp8_gain::Fp8Gain;
pub use lines::{ModelLine, ModelLines, StepCosts};
pub use memory::Memory;
pub use needs::{RunNeeds, TotalNeeds};
pub use parameters::Parameters;
pub use planned::{Planned, with_steps_of_budget};
pub use run_time::{Basis, RunTime};
pub use saving::Saving;
pub use scoring::check_scoring_fits;
pub use shared::{SharedParameters, SharedRandomness, Sharing, shared_randomness};
pub use text::fit_table;
pub use time::StepTime;
pub use timeline::{MemoryTimeline, SectionTimeline, TimelineBlock, TimelineNode};
pub use update_groups::GroupForecast;
pub use verdict::{DeviceFit, FitHere, check_fits, smaller};
