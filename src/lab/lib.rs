//! xrun: a declarative experiment runner for training language models.
//!
//! A run leads from a recipe to a report, and each module imports only modules before it on that path:
//!
//! ```text
//! recipe (as written) ─▶ plan (resolved) ─▶ program (flat list of ops) ─▶ exec on a device
//!                                                │
//! report ◀── results/ (CSV, summary, plots) ◀── metrics rows
//! ```
//!
//! Three packages share the modules: the engine (`src/engine`), the runner of one run (`src/runner`), and
//! this one: experiments of many runs, and all that shows them. Each package re-exports the one below it, so
//! that a module has one path, whichever package holds it.

pub mod cli;
pub mod compare;
pub mod coordinates;
pub mod curve;
pub mod eval;
pub mod executor;
pub mod replay;
pub mod report;
pub mod sweep;
#[cfg(feature = "view")]
pub mod view;
pub mod watch;

pub use xrun_runner::*;
