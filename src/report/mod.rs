//! Plots of runs and blocks of Markdown pages, made from stored results alone.
//!
//! Everything here reads files of a run folder, so that it can be made again long after the run, on any
//! machine.

pub mod blocks;
mod chart;
pub mod plots;
mod raster;
mod series;
mod theme;
