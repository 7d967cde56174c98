//! What each line of a model text costs for a recipe.

mod cost;
#[cfg(test)]
mod tests;

pub use cost::{LineCost, ParameterRow, TextCost, cost};
