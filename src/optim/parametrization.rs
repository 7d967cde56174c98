//! The maximal update parametrization (muP): how rate, epsilon and decay of a parameter follow the width of its
//! model, by the parameter's role and by its optimizer.
//!
//! `m` is the width over the base width: `dim`, the feed-forward layer and the number of heads grow by it, and
//! a head stays as wide as it is. Of the equivalent forms it is that of table 8 of Yang and Hu (Tensor Programs
//! V, arXiv:2203.03466, 2022), in which only a product from width to width has initial values that depend on
//! the width (its variance is over its inputs), and logits have the factor 1/m. Every gradient is then m times
//! smaller than at the base width, which is what the table below makes up for:
//!
//! - the updates of AdamW and of Lion do not depend on the size of gradients. A product sums m times as many
//!   terms that all agree in sign, so the rate of a matrix from width to width is over m; of the head, the
//!   factor of logits does that. AdamW's epsilon is over m like the gradients that it is compared with.
//! - SGD's updates are as large as gradients. A matrix from width to width sums m times as many terms that are
//!   m times smaller; all others make up for their gradients by the rate.
//! - Muon's updates have a spectral norm that the rate alone decides with the adjustment `original`, and so has
//!   the change of a product. With `match_rms_adamw` it grows with the root of the width.
//! - decay shrinks a matrix by rate · decay in a step, which stays as at the base width (Wang and Aitchison, How
//!   to set AdamW's weight decay as you scale model and dataset size, arXiv:2405.13698, 2024; Dey et al.,
//!   CompleteP, arXiv:2505.01618, 2025): where the rate is over m, the decay is times m.
//!
//! Attention keeps its scale of one over the root of a head's width. Tables with one over that width are for
//! models whose heads grow, and here heads become more.

use super::hyperparameters::Values;
use crate::ir::{Role, Sublayer};

/// A power of the ratio of widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Over it.
    Inverse,
    /// Over its root.
    InverseRoot,
    /// As at the base width.
    Zero,
    /// Times its root.
    Root,
    /// Times it.
    One,
}

impl Power {
    /// Returns the factor at a ratio of widths: exactly 1 at the base width.
    pub fn of(self, ratio: f64) -> f64 {
        match self {
            Self::Inverse => 1.0 / ratio,
            Self::InverseRoot => 1.0 / ratio.sqrt(),
            Self::Zero => 1.0,
            Self::Root => ratio.sqrt(),
            Self::One => ratio,
        }
    }
}

/// What follows the width of a parameter's update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WidthRule {
    /// Factor of the learning rate.
    pub lr: Power,
    /// Factor of epsilon, where the optimizer has one that gradients are compared with.
    pub eps: Power,
    /// Factor of the decay, where it is a multiple of the rate.
    pub decay: Power,
}

/// Which sides of a parameter grow with the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sides {
    /// The outputs alone: tables of vectors, and vectors.
    Outputs,
    /// Both: matrices of blocks.
    Both,
    /// The inputs alone: the head.
    Inputs,
}

impl Sides {
    fn of(role: Role) -> Self {
        match role {
            Role::Embedding | Role::Positions | Role::Vector | Role::Bias(_) => Self::Outputs,
            Role::Matrix(_) => Self::Both,
            Role::Head => Self::Inputs,
        }
    }
}

/// Returns the rule of an optimizer for the parameters of a role; `None` where it has
/// none, and the parametrization refuses it.
pub fn width_rule(optimizer: &str, role: Role) -> Option<WidthRule> {
    use Power::{Inverse, One, Zero};
    let [lr, eps, decay] = match (optimizer, Sides::of(role)) {
        ("adamw", Sides::Both) => [Inverse, Inverse, One],
        ("adamw", Sides::Outputs | Sides::Inputs) => [Zero, Inverse, Zero],
        ("sgd", Sides::Both) => [Zero, Zero, Zero],
        // Decay is added to gradients, which are over the ratio.
        ("sgd", Sides::Outputs | Sides::Inputs) => [One, Zero, Inverse],
        _ => return None,
    };
    Some(WidthRule { lr, eps, decay })
}

/// Returns true if an optimizer has a rule for some role.
pub fn has_width_rules(optimizer: &str) -> bool {
    width_rule(optimizer, Role::Matrix(Sublayer::Attention)).is_some()
}

impl WidthRule {
    /// Returns hyperparameters at a ratio of widths.
    pub fn scale(&self, values: &Values, ratio: f64) -> Values {
        let factors = [("eps", self.eps), ("weight_decay", self.decay)];
        factors.into_iter().fold(values.clone(), |values, (name, power)| values.scaled(name, power.of(ratio)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::OPTIMIZERS;

    const ROLES: [Role; 6] = [
        Role::Embedding,
        Role::Positions,
        Role::Head,
        Role::Matrix(Sublayer::Attention),
        Role::Bias(Sublayer::FeedForward),
        Role::Vector,
    ];

    /// The factors of rate, epsilon and decay at four times the base width.
    fn factors(optimizer: &str) -> Vec<[f64; 3]> {
        let rules = ROLES.iter().map(|&role| width_rule(optimizer, role).unwrap());
        rules.map(|rule| [rule.lr, rule.eps, rule.decay].map(|power| power.of(4.0))).collect()
    }

    #[test]
    fn rules_are_those_of_table_8() {
        let looked_up = [1.0, 0.25, 1.0];
        let matrix = [0.25, 0.25, 4.0];
        assert_eq!(factors("adamw"), [looked_up, looked_up, looked_up, matrix, looked_up, looked_up]);
        let looked_up = [4.0, 1.0, 0.25];
        let matrix = [1.0, 1.0, 1.0];
        assert_eq!(factors("sgd"), [looked_up, looked_up, looked_up, matrix, looked_up, looked_up]);
        assert_eq!(width_rule("another", Role::Head), None);
    }

    #[test]
    fn at_the_base_width_nothing_changes() {
        for entry in OPTIMIZERS {
            let values = Values::from_written(entry.hyperparameters, &Default::default());
            for rule in ROLES.iter().filter_map(|&role| width_rule(entry.name, role)) {
                assert_eq!(rule.lr.of(1.0), 1.0);
                assert_eq!(rule.scale(&values, 1.0), values);
            }
        }
    }

    /// A step shrinks a matrix by the product of rate and decay.
    #[test]
    fn what_decay_does_in_a_step_stays() {
        for entry in OPTIMIZERS {
            for rule in ROLES.iter().filter_map(|&role| width_rule(entry.name, role)) {
                assert_eq!(rule.lr.of(4.0) * rule.decay.of(4.0), 1.0, "{}", entry.name);
            }
        }
    }

    #[test]
    fn epsilon_and_decay_are_scaled_where_an_optimizer_has_them() {
        let rule = width_rule("adamw", ROLES[3]).unwrap();
        let values = |name: &str| {
            let entry = crate::optim::find(name).unwrap();
            Values::from_written(entry.hyperparameters, &Default::default())
        };
        let scaled = rule.scale(&values("adamw"), 8.0);
        assert_eq!((scaled.number("eps"), scaled.number("weight_decay")), (1e-8 / 8.0, 0.1 * 8.0));
        assert_eq!(scaled.pair("betas"), values("adamw").pair("betas"));
        assert_eq!(rule.scale(&values("sgd"), 8.0).get("eps"), None);
    }
}
