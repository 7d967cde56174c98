//! The maximal update parametrization (muP): how a parameter's rate, epsilon and decay follow the width of
//! its model, depending on its role and its optimizer.
//!
//! `m` is the width divided by the base width. `dim`, the feed-forward layer and the number of heads grow by
//! `m`; the width of a head stays the same. Of the equivalent forms this is table 8 of Yang and Hu (Tensor
//! Programs V, arXiv:2203.03466, 2022): only products from width to width have initial values that depend on
//! the width (variance proportional to 1 / inputs), and logits have the factor 1/m. Every gradient is then m
//! times smaller than at the base width. The rules compensate for that:
//!
//! - AdamW and Lion: updates do not depend on the size of gradients. A product from width to width sums m
//!   times as many terms that all agree in sign, so the rate of its matrix is divided by m. For the head, the
//!   factor of the logits does that. AdamW's epsilon is divided by m, like the gradients it is compared with.
//! - SGD: updates are proportional to gradients. A matrix from width to width sums m times as many terms that
//!   are m times smaller, so its rate stays; all other parameters get m times the rate.
//! - Muon: with the adjustment `original`, the rate alone sets the spectral norm of an update, and so the
//!   change of a product. With `match_rms_adamw` that norm grows with the root of the width.
//! - Decay: a step shrinks a matrix by rate · decay, which must stay as at the base width (Wang and
//!   Aitchison, How to set AdamW's weight decay as you scale model and dataset size, arXiv:2405.13698, 2024;
//!   Dey et al., CompleteP, arXiv:2505.01618, 2025). Where the rate is divided by m, the decay is multiplied
//!   by m.
//!
//! Attention keeps its scale, one over the root of a head's width. Tables with a scale of one over that width
//! assume that heads get wider; here their number grows.

use super::groups::RoleRule;
use super::width::Power;
use crate::policy::WeightDecay;

impl RoleRule {
    /// Returns the rule at a ratio of widths; a ratio of 1 changes nothing. `None` if the optimizer has no
    /// width rule for the role.
    pub fn at_width(self, ratio: f64) -> Option<Self> {
        let rule = (self.entry.width_rule)(&self.values, self.role)?;
        // Independent decay is not a multiple of the rate.
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
    use crate::optim::{Entry, GroupRole, OPTIMIZERS, Value, Values, find};
    use crate::policy::RateAdjustment;
    use std::collections::BTreeMap;

    /// Returns the factors of rate, epsilon and decay at four times the base width.
    fn factors(optimizer: &str) -> [[f64; 3]; 5] {
        GroupRole::ALL.map(|role| {
            let rule = (find(optimizer).unwrap().width_rule)(&Values::default(), role).unwrap();
            [rule.lr, rule.eps, rule.decay].map(|power| power.factor(4.0))
        })
    }

    /// Returns a rule for every pair of an optimizer and a role with a width rule.
    fn rules() -> Vec<RoleRule> {
        let all = OPTIMIZERS.iter().flat_map(|entry| GroupRole::ALL.map(|role| (entry, role)));
        let known = all.filter(|(entry, role)| (entry.width_rule)(&Values::default(), *role).is_some());
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
    fn rules_match_table_8() {
        // Order: embedding, positions, head, matrices, vectors.
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
            let values = Values::from_written(entry.hyperparameters, &written);
            let rule = (entry.width_rule)(&values, role)?;
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

    /// Each step shrinks a matrix by the product of rate and decay.
    #[test]
    fn the_decay_of_a_step_does_not_depend_on_width() {
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
    fn adamw_scales_the_epsilon_of_a_matrix_and_keeps_the_betas() {
        let matrix = |rule: &RoleRule| rule.role == GroupRole::Matrix && rule.entry.name == "adamw";
        let rule = rules().into_iter().find(matrix).unwrap();
        let wide = rule.clone().at_width(8.0).unwrap();
        assert_eq!((wide.lr, wide.values.number("eps")), (1e-3 / 8.0, 1e-8 / 8.0));
        assert_eq!(wide.values.pair("betas"), rule.values.pair("betas"));
    }
}
