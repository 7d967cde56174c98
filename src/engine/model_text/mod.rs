//! Model texts: a small language that describes a decoder in three parts, `embed`, `block` and `head`.
//! `docs/model-texts.md` is its manual.
//!
//! ```text
//! text ─▶ tokens ─▶ parse (limits, carets) ─▶ ModelText ─▶ canonical text, hash
//!                                                └─ resolve for keys ─▶ Graph (shapes, operations)
//! ```
//!
//! Resolution computes every number, decides every `if` and repeats the part `block` for each layer. No loop
//! and no recursion can be written, so it ends within the limits.

mod built_in;
mod canonical;
mod dropout;
mod functions;
mod graph;
mod keys;
mod mistake;
mod names;
mod parse;
mod reads;
mod remarks;
mod resolve;
#[cfg(test)]
mod tests;
mod token;
mod tree;

pub use built_in::{BUILT_IN, BUILT_IN_NAMES, IDEAS, built_in, texts};
pub use dropout::{DROPOUT_RATES, rounded_dropout};
pub use functions::{Argument, FUNCTIONS, Signature, element_functions};
pub use graph::{Elementwise, Graph, MAX_GRAPH_NODES, MAX_PARAMETER_ELEMENTS, MAX_WIDTH};
pub use graph::{
    Initial, Node, Norm, NormKind, Operation, Outcome, Parameter, ParameterKind, Reduction, Shape,
};
pub use keys::{KeyValue, Keys};
pub use mistake::Mistake;
pub use names::{BLOCK_NAMES, KEY_NAMES, ROLES};
pub use parse::{MAX_DEPTH, MAX_NODES, MAX_STATEMENTS};
pub use remarks::Remark;
pub use resolve::{MAX_SHIFT, resolve};
pub use token::{MAX_BYTES, MAX_NAME};
pub use tree::{ModelText, Part};
