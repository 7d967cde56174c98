//! The JSON documents that the page shows, one file per kind.
//!
//! Every number comes with its unit. A missing value is `null` or left out; a value that is not finite is one
//! of the texts `NaN`, `inf` and `-inf`.

pub mod comparison;
pub mod coordinates;
pub mod curves;
pub mod differences;
pub mod labels;
pub mod log;
pub mod memory;
pub mod model;
mod number;
pub mod planned;
pub mod profile;
pub mod rows;
pub mod run;
pub mod sweep;
