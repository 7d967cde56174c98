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

use super::groups::{GroupRole, RoleRule};
use super::hyperparameters::Values;
use super::optimizer::Entry;
use super::width::{Power, Sides, WidthRule};
use crate::policy::WeightDecay;

impl Entry {
    /// Returns the rule of this optimizer with these hyperparameters for the parameters of a role; `None` where it
    /// has none, and the parametrization refuses it.
    pub fn width_rule(&self, values: &Values, role: GroupRole) -> Option<WidthRule> {
        let sides = match role {
            GroupRole::Embedding | GroupRole::Positions | GroupRole::Vector => Sides::Outputs,
            GroupRole::Matrix => Sides::Both,
            GroupRole::Head => Sides::Inputs,
        };
        (self.width_rule)(values, sides)
    }
}

impl RoleRule {
    /// Returns the rule at a ratio of widths: the same at 1. `None` where its optimizer has no rule for its role.
    pub fn at_width(self, ratio: f64) -> Option<Self> {
        let rule = self.entry.width_rule(&self.values, self.role)?;
        // Independent decay is no multiple of the rate.
        let decay = match self.decay {
            WeightDecay::Coupled => rule.decay,
            WeightDecay::Independent => Power::Zero,
        };
        let values =
            self.values.scaled("eps", rule.eps.factor(ratio)).scaled("weight_decay", decay.factor(ratio));
        Some(Self { lr: self.lr * rule.lr.factor(ratio), values, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::hyperparameters::Value;
    use crate::optim::{OPTIMIZERS, find};
    use crate::policy::RateAdjustment;
    use std::collections::BTreeMap;

    /// The factors of rate, epsilon and decay at four times the base width.
    fn factors(optimizer: &str) -> [[f64; 3]; 5] {
        GroupRole::ALL.map(|role| {
            let rule = find(optimizer).unwrap().width_rule(&Values::default(), role).unwrap();
            [rule.lr, rule.eps, rule.decay].map(|power| power.factor(4.0))
        })
    }

    /// Rules of every optimizer for every role that it has one for.
    fn rules() -> Vec<RoleRule> {
        let all = OPTIMIZERS.iter().flat_map(|entry| GroupRole::ALL.map(|role| (entry, role)));
        let known = all.filter(|(entry, role)| entry.width_rule(&Values::default(), *role).is_some());
        let rule = |(entry, role): (&'static Entry, GroupRole)| RoleRule {
            role,
            entry,
            values: Values::from_written(entry.hyperparameters, &BTreeMap::new()),
            lr: 1e-3,
            decay: WeightDecay::Coupled,
            decays: role.decays(),
        };
        known.map(rule).collect()
    }

    #[test]
    fn rules_are_those_of_table_8() {
        // Embedding, positions, head, matrices, vectors.
        let (others, matrix) = ([1.0, 0.25, 1.0], [0.25, 0.25, 4.0]);
        assert_eq!(factors("adamw"), [others, others, others, matrix, others]);
        let (others, matrix) = ([1.0; 3], [0.25, 1.0, 4.0]);
        assert_eq!(factors("lion"), [others, others, others, matrix, others]);
        let (others, matrix) = ([4.0, 1.0, 0.25], [1.0; 3]);
        assert_eq!(factors("sgd"), [others, others, others, matrix, others]);
    }

    #[test]
    fn the_rule_of_muon_follows_its_adjustment() {
        let entry = find("muon").unwrap();
        let rule = |adjust: RateAdjustment, role| {
            let word = Value::Word(adjust.word().into());
            let written = BTreeMap::from([("adjust".to_owned(), word)]);
            let rule = entry.width_rule(&Values::from_written(entry.hyperparameters, &written), role)?;
            Some([rule.lr, rule.eps, rule.decay].map(|power| power.factor(4.0)))
        };
        assert_eq!(rule(RateAdjustment::Original, GroupRole::Matrix), Some([1.0; 3]));
        assert_eq!(rule(RateAdjustment::MatchRmsAdamw, GroupRole::Matrix), Some([0.5, 1.0, 2.0]));
        assert_eq!(rule(RateAdjustment::Original, GroupRole::Head), None);
    }

    #[test]
    fn at_the_base_width_nothing_changes() {
        for rule in rules() {
            let same = rule.clone().at_width(1.0).unwrap();
            assert_eq!((same.lr, &same.values), (rule.lr, &rule.values), "{}", rule.entry.name);
        }
    }

    /// A step shrinks a matrix by the product of rate and decay.
    #[test]
    fn what_decay_does_in_a_step_stays() {
        for rule in rules() {
            let number = |rule: &RoleRule, name| match rule.values.get(name) {
                Some(Value::Number(x)) => *x,
                _ => 0.0,
            };
            let wide = rule.clone().at_width(4.0).unwrap();
            let shrinks = |rule: &RoleRule| rule.lr * number(rule, "weight_decay");
            assert_eq!(shrinks(&wide), shrinks(&rule), "{} {:?}", rule.entry.name, rule.role);
            let independent = RoleRule { decay: WeightDecay::Independent, ..rule.clone() };
            let wide = independent.at_width(4.0).unwrap();
            assert_eq!(number(&wide, "weight_decay"), number(&rule, "weight_decay"));
        }
    }

    #[test]
    fn a_matrix_of_adamw_has_another_epsilon_and_the_same_betas() {
        let matrix = |rule: &RoleRule| rule.role == GroupRole::Matrix && rule.entry.name == "adamw";
        let rule = rules().into_iter().find(matrix).unwrap();
        let wide = rule.clone().at_width(8.0).unwrap();
        assert_eq!((wide.lr, wide.values.number("eps")), (1e-3 / 8.0, 1e-8 / 8.0));
        assert_eq!(wide.values.pair("betas"), rule.values.pair("betas"));
    }
}
