//! What each line of a model text costs for a recipe, and what it computes.

mod beside;
mod cost;
mod interpret;
#[cfg(test)]
mod tests;

pub use beside::Beside;
pub use cost::{LineCost, ParameterRow, TextCost, cost, fitted};
pub use interpret::{Tokens, interpret};
