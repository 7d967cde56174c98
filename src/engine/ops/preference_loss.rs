//! The loss of pairs of answers, of which one is preferred, from the losses of their tokens.

use super::cross_entropy::IGNORED;
use super::sum::Factor;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, Op, Precision, Spec};
use crate::policy::PairLoss;

/// `(token_losses[n], targets[n], spans[2n], reference[2P] f64)`, and the count if the [`Factor`] has one, `→
/// (losses[P], factors[n], rewards[2P], correct[P], log_probs[2P] f64)`, of `P` pairs of `n / P` tokens.
///
/// A pair is a row of a batch: the chosen answer begins it, with what it answers, and the rejected one
/// follows as a document of its own, which its spans show. An answer's log-probability is the sum over its
/// targets, in nats. `reference` has those of the reference model, and `[2P]` is always the chosen answers of
/// all pairs, then the rejected ones. With the log ratios `r = log_prob - reference`, the loss of a pair is
///
/// - [`PairLoss::Dpo`]: `-ln σ(beta·(r_chosen - r_rejected))` (Rafailov et al. 2023, equation 7);
/// - [`PairLoss::Ipo`]: `(r_chosen / n_chosen - r_rejected / n_rejected - 1 / (2·beta))²` (Azar et al. 2023,
///   equation 17), with log ratios per target, of which an answer has `n`, as TRL computes it.
///
/// `factors` are the derivatives of `scale` times the sum of the losses by the losses of the tokens.
/// `rewards` are `beta·r`, and `correct` is 1 where the chosen answer has the higher one. All sums are in
/// f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PreferenceLoss {
    /// The formula.
    pub loss: PairLoss,
    /// How closely the model is held to the reference: the larger, the closer.
    pub beta: f64,
    /// The factor of the sum of losses in the objective, such as 1 / pairs of a batch.
    pub scale: Factor,
}

/// Returns the name of a formula in attributes and kernels.
const fn name(loss: PairLoss) -> &'static str {
    match loss {
        PairLoss::Dpo => "DPO",
        PairLoss::Ipo => "IPO",
    }
}

/// Returns the log ratio of an answer as the formula takes it, or its derivative, from that of the sum over
/// its targets.
fn of_answer(loss: PairLoss, sum: f64, tokens: f64) -> f64 {
    match loss {
        PairLoss::Dpo => sum,
        PairLoss::Ipo => sum / tokens.max(1.0),
    }
}

/// Returns the loss of a pair, and its derivative by the difference of log ratios.
fn of_pair(loss: PairLoss, difference: f64, beta: f64) -> (f64, f64) {
    match loss {
        PairLoss::Dpo => {
            let margin = beta * difference;
            let small = (-margin.abs()).exp();
            let larger = if margin < 0.0 { 1.0 } else { small };
            // `f64::max` would lose a NaN.
            let linear = if margin < 0.0 { -margin } else { 0.0 };
            (linear + small.ln_1p(), -beta * larger / (1.0 + small))
        }
        PairLoss::Ipo => {
            let distance = difference - 0.5 / beta;
            (distance * distance, 2.0 * distance)
        }
    }
}

/// Index of the output with the losses of pairs.
pub const LOSSES: usize = 0;
/// Index of the output with the factors of the tokens' losses.
pub const FACTORS: usize = 1;
/// Index of the output with the rewards.
pub const REWARDS: usize = 2;
/// Index of the output that tells where the chosen answer has the higher reward.
pub const CORRECT: usize = 3;
/// Index of the output with the log-probabilities of answers.
pub const LOG_PROBS: usize = 4;

/// What the op computes of a pair.
struct Pair {
    loss: f64,
    /// Factors of the losses of the tokens of both answers.
    factors: [f64; 2],
    rewards: [f64; 2],
    log_probs: [f64; 2],
}

impl PreferenceLoss {
    /// Computes a pair from the loss of each target and whether it belongs to the rejected answer.
    fn pair(&self, targets: impl Iterator<Item = (f64, bool)>, reference: [f64; 2], scale: f64) -> Pair {
        let (mut sums, mut tokens) = ([0.0; 2], [0.0; 2]);
        for (loss, is_rejected) in targets {
            sums[usize::from(is_rejected)] -= loss;
            tokens[usize::from(is_rejected)] += 1.0;
        }
        let log_ratios = [0, 1].map(|side| sums[side] - reference[side]);
        let [chosen, rejected] = [0, 1].map(|side| of_answer(self.loss, log_ratios[side], tokens[side]));
        let (loss, slope) = of_pair(self.loss, chosen - rejected, self.beta);
        // A log-probability is the negative of a loss.
        let factors = [-scale * slope, scale * slope];
        Pair {
            loss,
            factors: [0, 1].map(|side| of_answer(self.loss, factors[side], tokens[side])),
            rewards: log_ratios.map(|ratio| self.beta * ratio),
            log_probs: sums,
        }
    }
}

impl Op for PreferenceLoss {
    fn name(&self) -> &'static str {
        "preference_loss"
    }

    fn attributes(&self) -> String {
        format!("{} beta={:e} {}", name(self.loss), self.beta, self.scale.attribute())
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [token_losses, targets, spans, reference] = self.scale.split(inputs)? else {
            return Err(
                "takes losses and targets of tokens, spans, and log-probabilities of the reference".into()
            );
        };
        let n = token_losses.elements();
        if !token_losses.dtype.is_float() || *token_losses != Spec::new([n], token_losses.dtype) {
            return Err("the losses of tokens must be a float vector".into());
        }
        if *targets != Spec::new([n], DType::U32) || *spans != Spec::new([2 * n], DType::U32) {
            return Err("targets must be u32 [n] and spans u32 [2n]".into());
        }
        let pairs = reference.elements() / 2;
        if pairs == 0 || *reference != Spec::new([2 * pairs], DType::F64) || !n.is_multiple_of(pairs) {
            return Err("the reference must be f64, two for each of the equal rows of losses".into());
        }
        let vector = |len: usize| Spec::new([len], token_losses.dtype);
        Ok(vec![vector(pairs), vector(n), vector(2 * pairs), vector(pairs), reference.clone()])
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (targets, spans, reference) = (cx.input_u32(1), cx.input_u32(2), cx.input::<f64>(3));
        let pairs = reference.len() / 2;
        let len = targets.len() / pairs;
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (token_losses, scale) = (cx.input::<E>(0), self.scale.value(cx));
            let (losses, factors) = (cx.output::<E>(LOSSES), cx.output::<E>(FACTORS));
            let (rewards, correct) = (cx.output::<E>(REWARDS), cx.output::<E>(CORRECT));
            let log_probs = cx.output::<f64>(LOG_PROBS);
            let down = |x: f64| E::down(<E as Elem>::Acc::from_f64(x));
            cx.pool.run(pairs, #[inline(always)] |pair| {
                let tokens = pair * len..(pair + 1) * len;
                let is_rejected = |t: usize| spans[2 * t] != 0;
                let of_target = |t: usize| (token_losses.get(t).to_f64(), is_rejected(t));
                let is_target = |t: &usize| targets[*t] != IGNORED;
                let of_reference = [0, 1].map(|side| reference.get(side * pairs + pair));
                let found =
                    self.pair(tokens.clone().filter(is_target).map(of_target), of_reference, scale);
                losses.slice(pair, 1)[0] = down(found.loss);
                let is_correct = found.rewards[0] > found.rewards[1];
                correct.slice(pair, 1)[0] = down(f64::from(u8::from(is_correct)));
                for side in [0, 1] {
                    rewards.slice(side * pairs + pair, 1)[0] = down(found.rewards[side]);
                    log_probs.slice(side * pairs + pair, 1)[0] = found.log_probs[side];
                }
                let of_row = factors.slice(pair * len, len);
                for (t, factor) in tokens.zip(of_row) {
                    *factor = down(found.factors[usize::from(is_rejected(t))]);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        const THREADS: u32 = 256;
        let pairs = cx.input_spec(3).elements() / 2;
        let (scale, count) = self.scale.kernel_args(cx);
        let kernel = Kernel::new("preference", "preference_loss")
            .with("LOSS", name(self.loss))
            .with("THREADS", THREADS);
        let tensors = (0..4).map(|i| cx.input(i)).chain((0..5).map(|k| cx.output(k)));
        let mut args: Vec<Arg> = tensors.map(Arg::Ptr).collect();
        args.extend([
            pairs.into(),
            (cx.input_spec(0).elements() / pairs).into(),
            Arg::U64(self.beta.to_bits()),
            Arg::U64(scale.to_bits()),
            count.into(),
        ]);
        cx.queue.launch(kernel, Grid::new(pairs, THREADS), &args)
    }

    fn cases(precision: Precision) -> Cases {
        let losses = [(PairLoss::Dpo, 0.1), (PairLoss::Dpo, 2.0), (PairLoss::Ipo, 0.1)];
        let of_loss = |(loss, beta): (PairLoss, f64)| {
            let constant = PreferenceLoss { loss, beta, scale: Factor::Constant(0.25) };
            let counted = PreferenceLoss { scale: Factor::Reciprocal, ..constant };
            [
                case(precision, constant, &[[1, 2]], 3, -1.0),
                case(precision, constant, &[[5, 9], [17, 3], [1, 1]], 32, -20.0),
                case(precision, counted, &[[150, 700], [600, 400]], 1024, -900.0),
                // A row without a pair, as an evaluation's last batch has them.
                case(precision, counted, &[[4, 8], [0, 0]], 24, -9.0),
            ]
        };
        Cases::Own(losses.into_iter().flat_map(of_loss).collect())
    }
}

/// Returns a test case of pairs with this many targets in both answers, in rows of `len` tokens. Each answer
/// follows a token that is no target, and the rest of a row is padding. The reference is about `reference`.
fn case(precision: Precision, op: PreferenceLoss, pairs: &[[usize; 2]], len: usize, reference: f64) -> Case {
    let (mut targets, mut spans) = (Vec::new(), Vec::new());
    for &[chosen, rejected] in pairs {
        let mut row = Vec::new();
        for (start, answer) in [(0, chosen), (chosen.max(1), rejected)] {
            row.extend((0..answer).map(|t| (start, if t == 0 && answer > 1 { IGNORED } else { 7 })));
        }
        let padding = row.len();
        row.resize(len, (padding, IGNORED));
        targets.extend(row.iter().map(|&(_, target)| f64::from(target)));
        spans.extend(row.iter().enumerate().flat_map(|(t, &(start, _))| [start as f64, (t + 1) as f64]));
    }
    let (n, count) = (pairs.len() * len, pairs.len());
    let mut inputs = vec![
        (Spec::new([n], precision.master), Fill::Normal(1.5, 1.0)),
        (Spec::new([n], DType::U32), Fill::Values(targets)),
        (Spec::new([2 * n], DType::U32), Fill::Values(spans)),
        (Spec::new([2 * count], DType::F64), Fill::Normal(reference, 3.0)),
    ];
    if op.scale == Factor::Reciprocal {
        inputs.push((Spec::new([1], DType::U32), Fill::Values(vec![7.0])));
    }
    let name = format!("{} beta {} {pairs:?} {}", name(op.loss), op.beta, op.scale.attribute());
    Case::new(name, op, inputs, move |inputs: &[Array]| reference_of(op, inputs, count, len))
        .without_gradient()
        .depth(n)
}

/// Computes the outputs from the definitions, with the derivatives by differences of sides.
fn reference_of(op: PreferenceLoss, inputs: &[Array], pairs: usize, len: usize) -> Vec<Array> {
    let [token_losses, targets, spans, reference] = [0, 1, 2, 3].map(|i| &inputs[i].data);
    let scale = match op.scale {
        Factor::Constant(scale) => scale,
        Factor::Reciprocal => 1.0 / inputs[4].data[0],
    };
    let zeros = |len: usize| Array::zeros(&[len]);
    let (mut losses, mut factors, mut correct) = (zeros(pairs), zeros(pairs * len), zeros(pairs));
    let (mut rewards, mut log_probs) = (zeros(2 * pairs), zeros(2 * pairs));
    for pair in 0..pairs {
        let answer = |is_rejected: bool| -> Vec<usize> {
            let tokens = pair * len..(pair + 1) * len;
            tokens.filter(|&t| (spans[2 * t] != 0.0) == is_rejected).collect()
        };
        let answers = [answer(false), answer(true)];
        let targets_of = |side: usize| {
            answers[side].iter().copied().filter(|&t| targets[t] != f64::from(IGNORED)).collect::<Vec<_>>()
        };
        let mut ratios = [0.0; 2];
        let mut weights = [1.0; 2];
        for side in [0, 1] {
            let own = targets_of(side);
            if op.loss == PairLoss::Ipo {
                weights[side] = 1.0 / own.len().max(1) as f64;
            }
            let log_prob = -own.iter().map(|&t| token_losses[t]).sum::<f64>();
            log_probs.data[side * pairs + pair] = log_prob;
            ratios[side] = weights[side] * (log_prob - reference[side * pairs + pair]);
            rewards.data[side * pairs + pair] = op.beta * (log_prob - reference[side * pairs + pair]);
        }
        let difference = ratios[0] - ratios[1];
        let slope = match op.loss {
            PairLoss::Dpo => {
                losses.data[pair] = -(1.0 / (1.0 + (-op.beta * difference).exp())).ln();
                -op.beta / (1.0 + (op.beta * difference).exp())
            }
            PairLoss::Ipo => {
                losses.data[pair] = (difference - 0.5 / op.beta).powi(2);
                2.0 * difference - 1.0 / op.beta
            }
        };
        let [chosen, rejected] = [0, 1].map(|side| rewards.data[side * pairs + pair]);
        correct.data[pair] = f64::from(u8::from(chosen > rejected));
        for side in [0, 1] {
            let sign = if side == 0 { -1.0 } else { 1.0 };
            answers[side].iter().for_each(|&t| factors.data[t] = sign * scale * slope * weights[side]);
        }
    }
    vec![losses, factors, rewards, correct, log_probs]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slope of both formulas is the limit of differences of the loss.
    #[test]
    fn slopes_are_those_of_the_losses() {
        for loss in [PairLoss::Dpo, PairLoss::Ipo] {
            for (difference, beta) in [(0.0, 0.1), (-30.0, 0.1), (40.0, 0.5), (2.5, 0.01), (-700.0, 2.0)] {
                let step = 1e-4;
                let of = |at: f64| of_pair(loss, at, beta).0;
                let slope = of_pair(loss, difference, beta).1;
                let found = (of(difference + step) - of(difference - step)) / (2.0 * step);
                assert!((found - slope).abs() < 1e-6 * slope.abs().max(1e-3), "{loss:?} {difference} {beta}");
            }
        }
    }

    #[test]
    fn equal_models_lose_ln_2_and_a_nan_stays() {
        let (loss, slope) = of_pair(PairLoss::Dpo, 0.0, 0.1);
        assert_eq!((loss, slope), (std::f64::consts::LN_2, -0.05));
        for loss in [PairLoss::Dpo, PairLoss::Ipo] {
            let (loss, slope) = of_pair(loss, f64::NAN, 0.1);
            assert!(loss.is_nan() && slope.is_nan());
        }
        let op = PreferenceLoss { loss: PairLoss::Dpo, beta: 0.1, scale: Factor::Constant(1.0) };
        let pair = op.pair([(1.0, false), (f64::NAN, true)].into_iter(), [0.0; 2], 1.0);
        assert!(pair.loss.is_nan() && pair.factors[0].is_nan() && !pair.rewards[0].is_nan());
    }
}
