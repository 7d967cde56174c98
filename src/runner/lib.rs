//! A run: from a recipe to a plan, to programs, to the files of a trained model.
//!
//! The engine's modules are re-exported, so that every module has one path, whichever package holds it.

pub mod forecast;
pub mod generation;
pub mod model;
pub mod plan;
pub mod ranks;
pub mod recipe;
pub mod results;
pub mod scoring;
pub mod task_evaluation;
pub mod train;

pub use xrun_engine::*;
