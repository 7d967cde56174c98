//! Activations and norms, forward and gradients, in fp32.

use crate::parity::fixture::{Fixture, relative};
use crate::parity::formula;
use std::sync::Arc;
use xrun::device::DType;
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::{Engine, Section};
use xrun::ir::{Builder, Destination, Mode, Op, Precision, Spec, StateBuilder, Upstream};
use xrun::ops::activate::Activate;
use xrun::ops::activation::Activation;
use xrun::ops::affine::Affine;
use xrun::ops::copy::Copy;
use xrun::ops::gated::Gated;
use xrun::ops::layer_norm::LayerNorm;
use xrun::ops::rms_norm::RmsNorm;
use xrun::passes::differentiate;
use xrun::policy::Placement;

/// As in `scripts/layer_parity.py`.
const ROWS: usize = 6;
const WIDTH: usize = 40;
const EPS: f64 = 1e-5;

/// Most relative distance of an output or a gradient from PyTorch's.
const BOUND: f64 = 1e-5;

/// The numbers of an input.
fn numbers(name: &str, shape: &[usize]) -> Vec<f64> {
    let key = format!("layers.{name}");
    let numbers = formula::uniform(&key, shape.iter().product());
    let mut numbers: Vec<f64> = match name {
        "x" => numbers.map(|u| 4.0 * u).collect(),
        "w" => numbers.map(|u| 1.0 + u / 4.0).collect(),
        "b" => numbers.map(|u| u / 2.0).collect(),
        _ => numbers.collect(),
    };
    if name == "x" {
        numbers[0] = 0.0;
    }
    numbers
}

/// Runs an op and its gradient on the inputs of those names, and compares what they give with the fixture.
fn compare(fixture: &Fixture, name: &str, op: impl Op + 'static, inputs: &[(&str, Vec<usize>)]) {
    let spec = |shape: &Vec<usize>| Spec::new(shape.clone(), DType::F32);
    let specs: Vec<(&str, Spec)> = inputs.iter().map(|(name, shape)| (*name, spec(shape))).collect();
    let y = op.infer(&specs.iter().map(|(_, spec)| spec.clone()).collect::<Vec<_>>()).unwrap();
    let outputs = [("y", y[0].clone()), ("dy", y[0].clone())];
    let mut builder = StateBuilder::empty(Precision::for_act_dtype(DType::F32));
    let read = builder.group_from_iter("in", specs.clone());
    let [out, upstream] = builder.group("out", outputs);
    let grads = builder.group_from_iter("grad", specs);
    for (&input, &grad) in read.iter().zip(&grads) {
        builder.watch(input, grad);
    }
    let state = Arc::new(builder.finish());
    let mut b = Builder::new(name, Arc::clone(&state));
    let tensors: Vec<_> = read.iter().map(|&slot| b.state_slot(slot)).collect();
    let result = b.emit1("y", op, &tensors).unwrap();
    let into = Destination::Into(b.state_slot(out), Mode::Write);
    b.emit_into("out", Arc::new(Copy), &[result], &[into]).unwrap();
    let seed = Upstream::Tensor(b.state_slot(upstream));
    let program = differentiate(b.finish(), &[(result, seed)], true).unwrap();
    let pool = Arc::new(Pool::new(1).unwrap());
    let mut engine = Engine::new(pool, &state, Arc::new(SingleRank), Placement::Naive, 0, false).unwrap();
    for (&slot, (input, shape)) in read.iter().zip(inputs) {
        engine.state.set_values(slot, &numbers(input, shape)).unwrap();
    }
    engine.state.set_values(upstream, &numbers("dy", &y[0].shape)).unwrap();
    engine.run(&Section::new(program)).unwrap();
    let mut found = vec![("y".to_owned(), engine.state.values(out).unwrap())];
    for (&grad, (input, _)) in grads.iter().zip(inputs) {
        found.push((format!("d{input}"), engine.state.values(grad).unwrap()));
    }
    for (part, ours) in found {
        let apart = relative(&ours, &fixture.get(&format!("{name}.{part}")));
        eprintln!("{name:<12} {part:<2} {apart:.1e}");
        assert!(apart <= BOUND, "{name}.{part} is {apart:.1e} from PyTorch's");
    }
}

#[test]
fn activations_are_those_of_torch() {
    let fixture = Fixture::open("layers.safetensors");
    use Activation::{Gelu, GeluTanh, Relu, Relu2, Silu};
    for (name, f) in [("silu", Silu), ("gelu", Gelu), ("gelu_tanh", GeluTanh), ("relu2", Relu2)] {
        compare(&fixture, name, Activate::new(f), &[("x", vec![ROWS, WIDTH])]);
    }
    for (name, f) in [("swiglu", Silu), ("geglu", Gelu), ("geglu_tanh", GeluTanh), ("reglu", Relu)] {
        compare(&fixture, name, Gated(f.into()), &[("x", vec![ROWS, 2, WIDTH])]);
    }
}

#[test]
fn norms_are_those_of_torch() {
    let fixture = Fixture::open("layers.safetensors");
    let [x, w, b] = [("x", vec![ROWS, WIDTH]), ("w", vec![WIDTH]), ("b", vec![WIDTH])];
    let layer_norm = |affine| LayerNorm { eps: EPS, affine };
    let both = [x.clone(), w.clone(), b];
    compare(&fixture, "layer_norm.wb", layer_norm(Affine::WeightAndBias), &both);
    let weighted = [x.clone(), w];
    compare(&fixture, "layer_norm.w", layer_norm(Affine::Weight), &weighted);
    compare(&fixture, "rms_norm.w", RmsNorm { eps: EPS, weight: true, weight_offset: 0.0 }, &weighted);
    compare(&fixture, "layer_norm", layer_norm(Affine::None), std::slice::from_ref(&x));
    compare(&fixture, "rms_norm", RmsNorm { eps: EPS, weight: false, weight_offset: 0.0 }, &[x]);
}
