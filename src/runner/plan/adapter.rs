//! Adapters: products of low rank beside the matrices of a model, which are trained in their place.

use crate::policy::{AdapterKind, AdapterTarget};
use crate::recipe::Recipe;

/// Adapters of a model, whose own weights are frozen.
///
/// A matrix `W` that maps `x` to `x·Wᵀ` gets `A` of `rank` rows and `B` of `rank` columns, and gives
/// `x·Wᵀ + factor·(x·Aᵀ)·Bᵀ` (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021).
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Rank of the products.
    pub rank: usize,
    /// Factor of the products: `alpha / rank`, or `alpha / √rank` if it is rank-stabilized (Kalajdzievski, "A
    /// Rank Stabilization Scaling Factor for Fine-Tuning with LoRA", 2023).
    pub factor: f64,
    /// Probability with which an element of an adapter's input is dropped in training.
    pub dropout: f64,
    /// The matrices of the blocks that get adapters.
    pub targets: Vec<AdapterTarget>,
}

impl Adapter {
    /// Returns the adapters that a recipe asks for; `None` if it trains the weights.
    pub fn from_recipe(recipe: &Recipe) -> Option<Self> {
        let adapter = &recipe.values().adapter;
        let rank = adapter.rank as f64;
        match adapter.kind {
            AdapterKind::None => None,
            AdapterKind::Lora => Some(Self {
                rank: adapter.rank,
                factor: adapter.alpha / if adapter.rslora { rank.sqrt() } else { rank },
                dropout: adapter.dropout,
                targets: adapter.targets.clone(),
            }),
        }
    }
}
