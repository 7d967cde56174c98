//! xrun: a declarative experiment runner for training language models.
//!
//! A run goes from a recipe to a report, and modules import only what comes before them on that way:
//!
//! ```text
//! recipe (as written) ─▶ plan (resolved) ─▶ program (flat list of ops) ─▶ exec on a device
//!                                                │
//! report ◀── results/ (CSV, summary, plots) ◀── metrics rows
//! ```

pub mod atomic;
pub mod check;
pub mod checkpoint;
pub mod cli;
pub mod compare;
pub mod coordinates;
pub mod curve;
pub mod data;
pub mod device;
pub mod error;
pub mod evaluation;
pub mod exec;
pub mod executor;
pub mod expression;
pub mod forecast;
pub mod format;
pub mod hugging_face;
pub mod ir;
pub mod liveness;
pub mod machine;
pub mod metrics;
pub mod model;
pub mod ops;
pub mod optim;
pub mod passes;
pub mod plan;
pub mod policy;
pub mod ranks;
pub mod recipe;
pub mod replay;
pub mod report;
pub mod results;
pub mod statistics;
pub mod suggest;
pub mod sweep;
pub mod train;
#[cfg(feature = "view")]
pub mod view;
pub mod watch;

pub use error::{Error, Result};
