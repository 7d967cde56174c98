//! 100 steps of SGD against the formula of `torch.optim.SGD`, to the bit.
//!
//! The reference below is `_single_tensor_sgd` of PyTorch's torch/optim/sgd.py without dampening,
//! maximization and Nesterov's form, one number at a time: `grad.add(param, alpha=weight_decay)` and
//! `param.add_(grad, alpha=-lr)` round once, as PyTorch's vectorized kernels do; the first step makes the
//! momentum a copy of the gradient.

use crate::parity::formula;
use crate::parity::numbers::{COUNT, COUNTS, Numbers};
use xrun::optim::Value;

const STEPS: usize = 100;
const LR: f32 = 0.02;
const WEIGHT_DECAY: f32 = 0.1;
const CLIP: f32 = 0.5;

/// One number with its momentum, as PyTorch keeps them.
struct Torch {
    param: f32,
    buffer: Option<f32>,
    weight_decay: f32,
}

impl Torch {
    fn step(&mut self, gradient: f32, momentum: f32) {
        let mut grad = gradient;
        if self.weight_decay != 0.0 {
            grad = self.weight_decay.mul_add(self.param, grad);
        }
        if momentum != 0.0 {
            let buffer = self.buffer.map_or(grad, |buffer| buffer * momentum + grad);
            self.buffer = Some(buffer);
            grad = buffer;
        }
        self.param = (-LR).mul_add(grad, self.param);
    }
}

#[test]
fn every_step_has_the_bits_of_the_formula() {
    for momentum in [0.9, 0.0] {
        follow(momentum);
    }
}

fn follow(momentum: f32) {
    let settings = [("momentum", momentum), ("weight_decay", WEIGHT_DECAY)];
    let mut numbers = Numbers::new("sgd", &settings.map(|(name, x)| (name, Value::Number(f64::from(x)))), 1);
    numbers.set("control.clip", &[f64::from(CLIP)]);
    numbers.set_rates(std::iter::once(f64::from(LR)));
    numbers.set("control.step", &[1.0]);

    let gradients = formula::adamw_gradients(STEPS, COUNT);
    let weight_decay = |i: usize| if i < COUNTS[0] { WEIGHT_DECAY } else { 0.0 };
    let start = |i: usize| (i as f32 - 11.5) / 7.0;
    let mut torch: Vec<Torch> =
        (0..COUNT).map(|i| Torch { param: start(i), buffer: None, weight_decay: weight_decay(i) }).collect();
    let wide = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let bits = |values: Vec<f64>| values.into_iter().map(|x| (x as f32).to_bits()).collect::<Vec<_>>();
    numbers.spread("params", &wide(&torch.iter().map(|t| t.param).collect::<Vec<_>>()));
    for step in 0..STEPS {
        let grads = &gradients[step * COUNT..][..COUNT];
        numbers.spread("grads", &wide(grads));
        numbers.step();
        torch.iter_mut().zip(grads).for_each(|(t, g)| t.step(g * CLIP, momentum));
        let params: Vec<u32> = torch.iter().map(|t| t.param.to_bits()).collect();
        assert_eq!(bits(numbers.gather("params")), params, "params after step {step}");
        if momentum != 0.0 {
            let buffers: Vec<u32> = torch.iter().filter_map(|t| t.buffer).map(f32::to_bits).collect();
            assert_eq!(bits(numbers.gather("momentum")), buffers, "momentum after step {step}");
        }
    }
    assert_eq!(numbers.state.slot_by_text("momentum.flat").is_some(), momentum != 0.0);
}
