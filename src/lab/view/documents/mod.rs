//! The documents that the page shows, as JSON: one file per kind.
//!
//! A number is in the unit that stands beside it. A blank is `null` or not there; a value that is not finite
//! is one of the texts `NaN`, `inf` and `-inf`.

pub mod comparison;
pub mod coordinates;
pub mod curves;
pub mod differences;
pub mod log;
pub mod memory;
mod number;
pub mod profile;
pub mod rows;
pub mod run;
pub mod sweep;
