//! Plots of runs and blocks of Markdown pages, rendered from stored results.
//!
//! Everything here reads only files of a run folder, so it can be rendered again at any time, on any machine.

mod axis;
pub mod blocks;
mod chart;
pub mod coordinate_plots;
mod glyphs;
mod heat_map;
mod picture;
pub mod plots;
#[cfg(feature = "png")]
mod raster;
pub mod sweep_plots;
mod theme;
