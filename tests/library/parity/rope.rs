//! Every scaling, direction and share of RoPE, and the places of the norms of queries and keys, against
//! transformers: `scripts/rope_parity.py` makes the fixture.

use crate::parity::fixture::{Fixture, relative};
use crate::parity::formula;
use std::sync::Arc;
use xrun::device::DType;
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::{Engine, Section};
use xrun::ir::{Builder, Destination, Mode, Op, Precision, SlotId, Spec, StateBuilder, Upstream};
use xrun::ops::attention::Heads;
use xrun::ops::qk_norm_rope::{HeadRotation, QkNorm, QkNormRope};
use xrun::ops::rope::Rope;
use xrun::ops::rotary::{Rotary, Scaling};
use xrun::passes::differentiate;
use xrun::policy::Placement;

const POSITIONS: [f64; 6] = [0.0, 1.0, 2.0, 17.0, 64.0, 127.0];
const EPS: f64 = 1e-6;

/// A norm beside the rotation.
#[derive(Clone, Copy)]
struct Norm {
    weighted: bool,
    rotates_first: bool,
}

/// The cases of the script: name, width of a head, rotation, norm.
fn cases() -> Vec<(&'static str, usize, Rotary, Option<Norm>)> {
    let yarn = Scaling::Yarn {
        factor: 4.0,
        original_context: 32_768,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: Scaling::yarn_attention_factor(4.0),
    };
    let yarn_set = Scaling::Yarn {
        factor: 8.0,
        original_context: 512,
        beta_fast: 16.0,
        beta_slow: 2.0,
        attention_factor: 1.25,
    };
    let llama3 =
        Scaling::Llama3 { factor: 8.0, original_context: 8192, low_freq_factor: 1.0, high_freq_factor: 4.0 };
    let plain = Rotary::with_whole_heads(64, 1e4);
    let (before, after) =
        (Norm { weighted: true, rotates_first: false }, Norm { weighted: false, rotates_first: true });
    vec![
        ("default", 64, plain, None),
        ("linear", 64, Rotary { scaling: Scaling::Linear { factor: 4.0 }, ..plain }, None),
        ("yarn", 128, Rotary { scaling: yarn, ..Rotary::with_whole_heads(128, 1e6) }, None),
        ("yarn_set", 64, Rotary { scaling: yarn_set, ..plain }, None),
        ("llama3", 128, Rotary { scaling: llama3, ..Rotary::with_whole_heads(128, 5e5) }, None),
        ("partial", 64, Rotary { rotated_dim: 16, ..plain }, None),
        ("nanochat", 64, Rotary { reversed: true, ..plain }, Some(after)),
        ("qwen3", 64, Rotary::with_whole_heads(64, 1e6), Some(before)),
    ]
}

#[test]
fn frequencies_and_factors_are_those_of_transformers() {
    let fixture = Fixture::open("rope.safetensors");
    for (name, _, rotary, _) in cases() {
        let theirs = fixture.get(&format!("{name}.frequencies"));
        let ours = rotary.frequencies();
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let apart = ours.iter().zip(&theirs).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max);
        eprintln!("{name:<9} frequencies {apart:.1e}");
        assert!(apart <= 1e-6, "{name}: frequencies are {apart:.1e} apart");
        let factor = fixture.number(&format!("{name}.attention_factor"));
        assert!((rotary.cos_sin_factor() / factor - 1.0).abs() < 1e-15, "{name}: {factor}");
    }
}

#[test]
fn rotated_heads_and_their_gradients_are_those_of_transformers() {
    let fixture = Fixture::open("rope.safetensors");
    for (name, dim, rotary, norm) in cases() {
        let heads = Heads { query: 1, kv: 1, dim };
        let found = match norm {
            None => run(name, heads, Rope { heads, rotary, inverse: false }, false),
            Some(Norm { weighted, rotates_first }) => {
                let norm = QkNorm { heads, eps: EPS, weighted, weight_offset: 0.0 };
                let rotation = Some(HeadRotation { rotary, first: rotates_first });
                run(name, heads, QkNormRope { norm, rotation, values_apart: false }, weighted)
            }
        };
        for (part, values) in found {
            let apart = relative(&values, &fixture.get(&format!("{name}.{part}")));
            eprintln!("{name:<9} {part:<10} {apart:.1e}");
            assert!(apart <= 2e-6, "{name}: {part} is {apart:.1e} apart");
        }
    }
}

/// Runs an op and its gradient in fp32 on the numbers of a case; returns what the fixture holds of it.
fn run(name: &str, heads: Heads, op: impl Op + 'static, weighted: bool) -> Vec<(&'static str, Vec<f64>)> {
    let (rows, dim) = (POSITIONS.len(), heads.dim);
    let packed = Spec::new([rows, heads.width()], DType::F32);
    let weight = Spec::new([dim], DType::F32);
    let mut inputs = vec![("qkv", packed.clone())];
    if weighted {
        inputs.extend([("wq", weight.clone()), ("wk", weight)]);
    }
    let mut layout = StateBuilder::empty(Precision::for_act_dtype(DType::F32));
    let grads = layout.group_from_iter("grads", inputs.clone());
    let differentiated: Vec<&str> = inputs.iter().map(|(part, _)| *part).collect();
    inputs.push(("positions", Spec::new([rows], DType::U32)));
    let read = layout.group_from_iter("in", inputs);
    let [out, seed] = layout.group("out", [("packed", packed.clone()), ("d_packed", packed)]);
    for (&read, &grad) in read.iter().zip(&grads) {
        layout.watch(read, grad);
    }
    let state = Arc::new(layout.finish());

    let mut b = Builder::new("rope", Arc::clone(&state));
    let tensors: Vec<_> = read.iter().map(|&slot| b.state_slot(slot)).collect();
    let (to, upstream) = (b.state_slot(out), b.state_slot(seed));
    b.emit_into("packed", Arc::new(op), &tensors, &[Destination::Into(to, Mode::Write)]).unwrap();
    let program = differentiate(b.finish(), &[(to, Upstream::Tensor(upstream))], true).unwrap();
    let section = Section::new(program);
    let pool = Arc::new(Pool::new(1).unwrap());
    let mut engine = Engine::new(pool, &state, Arc::new(SingleRank), Placement::Naive, 0, true).unwrap();
    let mut set = |slot: SlotId, values: &[f64]| engine.state.set_values(slot, values).unwrap();
    set(read[grads.len()], &POSITIONS);
    set(read[0], &with_values(name, "qkv", dim));
    set(seed, &with_values(name, "d_packed", dim));
    for (&slot, part) in read.iter().zip(&differentiated).skip(1) {
        set(slot, &formula::weights(&format!("rope.{name}.{part}"), &[dim]));
    }
    engine.run(&section).unwrap();

    let get = |slot: SlotId| engine.state.values(slot).unwrap();
    let without_values = |row: Vec<f64>| -> Vec<f64> {
        row.chunks(heads.width()).flat_map(|row| row[..2 * dim].to_vec()).collect()
    };
    let mut found = vec![("packed", without_values(get(out))), ("grads.qkv", without_values(get(grads[0])))];
    if weighted {
        found.extend([("grads.wq", get(grads[1])), ("grads.wk", get(grads[2]))]);
    }
    found
}

/// Returns rows of a query and a key head by the formula, and a value head of zeros, which the script leaves
/// out.
fn with_values(name: &str, part: &str, dim: usize) -> Vec<f64> {
    let numbers: Vec<f64> =
        formula::uniform(&format!("rope.{name}.{part}"), POSITIONS.len() * 2 * dim).collect();
    numbers.chunks(2 * dim).flat_map(|row| [row, &vec![0.0; dim]].concat()).collect()
}
