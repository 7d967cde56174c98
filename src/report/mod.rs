//! What is made from stored results, and from nothing else: pictures now, tables later.
//!
//! Everything here reads files of a run folder, so that it can be made again long after the run, on any machine.

mod chart;
pub mod plots;
mod raster;
mod series;
mod theme;
