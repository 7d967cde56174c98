//! Tests the binary as a person or a launcher uses it: what it runs, leaves, prints and rejects, and how it
//! ends.
#![cfg(unix)]

mod answers;
mod compare;
mod fooling;
#[cfg(target_os = "linux")]
mod launch;
mod model;
mod place;
mod quality;
mod replay;
mod report;
mod run;
mod slurm;
mod submitted_comparisons;
mod sweep;
mod tutorial;
#[cfg(feature = "view")]
mod view;
