//! Steps of every optimizer, each from PyTorch's state.

use crate::parity::fixture::Fixture;
use crate::parity::formula;
use crate::parity::numbers::{COUNT, COUNTS, Numbers};
use xrun::optim::Value;
use xrun::plan::Schedule;
use xrun::policy::Decay;
use xrun::recipe::LrScheduler;

const WEIGHT_DECAY: (&str, Value) = ("weight_decay", Value::Number(0.1));

#[test]
fn every_step_of_adamw_is_within_two_ulp() {
    let settings = [("betas", Value::Pair([0.9, 0.95])), ("eps", Value::Number(1e-8)), WEIGHT_DECAY];
    follow(Numbers::new("adamw", &settings, 1000), ("adamw.safetensors", ""), ["params", "m", "v"]);
}

#[test]
fn every_step_of_sgd_is_within_two_ulp() {
    let numbers = Numbers::new("sgd", &[("momentum", Value::Number(0.9)), WEIGHT_DECAY], 100);
    follow(numbers, ("optimizers.safetensors", "sgd."), ["params", "momentum"]);
}

#[test]
fn every_step_of_lion_is_within_two_ulp() {
    let numbers = Numbers::new("lion", &[("betas", Value::Pair([0.9, 0.99])), WEIGHT_DECAY], 100);
    follow(numbers, ("optimizers.safetensors", "lion."), ["params", "momentum"]);
}

/// Takes every step of a fixture, whose tensors begin with a prefix and have a row per step, from the state
/// before it, and compares what comes out.
fn follow<const N: usize>(mut numbers: Numbers, (file, prefix): (&str, &str), buffers: [&str; N]) {
    let fixture = Fixture::open(file);
    let after = buffers.map(|buffer| (buffer, fixture.get(&format!("{prefix}{buffer}"))));
    let steps = after[0].1.len() / COUNT;
    let gradients = formula::adamw_gradients(steps, COUNT);
    let mut before = buffers.map(|buffer| if buffer == "params" { start() } else { vec![0.0; COUNT] });
    let schedule = Schedule {
        lr: 3e-2,
        steps,
        shape: LrScheduler {
            warmup_steps: Some(steps / 10),
            min_lr_ratio: 0.1,
            decay: Decay::Cosine.into(),
            ..LrScheduler::default()
        },
    };
    numbers.set("control.clip", &[1.0]);
    numbers.set_rates((1..=steps).map(|t| schedule.at(t)));
    let (mut worst, mut different) = ([0; N], [0; N]);
    for t in 1..=steps {
        let now = (t - 1) * COUNT..t * COUNT;
        let g: Vec<f64> = gradients[now.clone()].iter().map(|&g| f64::from(g)).collect();
        numbers.spread("grads", &g);
        for ((buffer, _), values) in after.iter().zip(&before) {
            numbers.spread(buffer, values);
        }
        numbers.set("control.step", &[t as f64]);
        numbers.step();
        for (i, (buffer, theirs)) in after.iter().enumerate() {
            let ours = numbers.gather(buffer);
            for (k, (&a, &b)) in ours.iter().zip(&theirs[now.clone()]).enumerate() {
                let apart = ulps(a as f32, b as f32);
                assert!(apart <= 2, "step {t}: {buffer}[{k}] is {a:e}, PyTorch's {b:e}: {apart} ulp");
                worst[i] = worst[i].max(apart);
                different[i] += usize::from(apart > 0);
            }
            before[i] = theirs[now.clone()].to_vec();
        }
    }
    for (i, (buffer, theirs)) in after.iter().enumerate() {
        eprintln!(
            "{prefix}{buffer:<8} at most {} ulp apart, {} of {} not equal",
            worst[i],
            different[i],
            theirs.len()
        );
    }
}

/// Floats between two floats, plus one when they differ.
fn ulps(a: f32, b: f32) -> u64 {
    let order = |x: f32| {
        let magnitude = i64::from(x.to_bits() & 0x7fff_ffff);
        if x.is_sign_negative() { -magnitude } else { magnitude }
    };
    order(a).abs_diff(order(b))
}

fn start() -> Vec<f64> {
    let undecayed = formula::uniform("adamw.vector", COUNTS[1]).map(|u| 1.0 + u / 4.0);
    formula::uniform("adamw.matrix", COUNTS[0]).chain(undecayed).collect()
}
