//! Formulas in recipes: a small language of numbers, variables and functions, with its slopes, compiled to
//! the list of steps that ops and schedules compute. `docs/formulas.md` is its manual.
//!
//! ```text
//! text ─▶ parse (limits, carets) ─▶ Tree ─▶ canonical text, in recipes and hashes
//!                                    └────▶ Steps, with slopes ─▶ vectors on the CPU, CUDA code
//! ```
//!
//! The formula's text never becomes code: kernel source is generated step by step from the tree.

mod formula;
mod functions;
mod normal;
pub(crate) mod number;
mod numbers;
mod parse;
mod scope;
mod slopes;
mod steps;
#[cfg(test)]
mod tests;
mod tree;

pub use formula::{Formula, MAX_LENGTH, MAX_VARIABLES};
pub use functions::{CONSTANTS, Function};
pub use normal::erfc;
pub use numbers::power;
pub use parse::{MAX_DEPTH, MAX_EXPONENT, MAX_NODES, ParseError};
pub use scope::Scope;
pub use steps::{Binary, Step, Steps, Unary};
pub use tree::{Operator, Tree};
