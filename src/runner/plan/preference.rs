//! Training on pairs of answers.

use crate::evaluation::HeldOutLoss;
use crate::policy::{PairLoss, TextFormat};
use crate::recipe::Recipe;

/// The loss of pairs of answers, in place of the mean loss of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preference {
    /// The loss of a pair.
    pub loss: PairLoss,
    /// How closely the model is held to the one that the run begins with.
    pub beta: f64,
}

impl Preference {
    /// Returns the loss of pairs that a recipe asks for; `None` if its corpus has no pairs.
    pub fn from_recipe(recipe: &Recipe) -> Option<Self> {
        let values = recipe.values();
        let preference = &values.preference;
        (values.data.format == TextFormat::Preference)
            .then_some(Self { loss: preference.loss, beta: preference.beta })
    }
}

/// Returns what the held-out loss of a recipe is a mean of.
pub fn held_out_loss(recipe: &Recipe) -> HeldOutLoss {
    let values = recipe.values();
    match Preference::from_recipe(recipe) {
        Some(Preference { loss, beta }) => {
            HeldOutLoss::Pairs { loss, beta, seq_len: values.training.seq_len }
        }
        None => HeldOutLoss::Tokens { documents: values.validation.documents },
    }
}
