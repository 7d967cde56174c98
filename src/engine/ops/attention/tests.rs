//! Compares forms of attention with each other (flash, unfused, cached), and a batch with a split of it.

use super::reference::AttentionCase;
use super::*;
use crate::device::communicator::SingleRank;
use crate::device::cpu::Pool;
use crate::device::philox::philox;
use crate::exec::{Engine, Section};
use crate::ir::{Builder, Destination, Mode, Op, Precision, State, StateBuilder, Upstream};
use crate::ops::cached_attention::CachedAttention;
use crate::ops::copy::Copy;
use crate::passes::{differentiate, unfuse};
use crate::policy::Placement;
use std::sync::Arc;

/// The form in which attention is recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Flash,
    Unfused,
    /// Recorded as flash, then expanded by the pass.
    Expanded,
}

fn noise(count: usize, stream: u32) -> Vec<f64> {
    let unit = |bits: u32| f64::from(bits) / 4_294_967_296.0;
    (0..count)
        .map(|at| philox([at as u32, stream, 0, 0], [1, 2]).map(unit).iter().sum::<f64>() * 1.7 - 3.4)
        .collect()
}

fn engine(state: &Arc<State>, sections: &[&Section]) -> Engine {
    let arena = sections.iter().map(|s| s.memory.arena_bytes).max().unwrap_or(0);
    let pool = Arc::new(Pool::new(2).unwrap());
    Engine::new(pool, state, Arc::new(SingleRank), Placement::Arena, arena, true).unwrap()
}

/// Returns the output and the gradient of the packed rows. `sequences` selects the sequences to compute from
/// the data of [`noise`].
fn run(problem: AttentionCase, form: Form, dtype: DType, sequences: &[u32]) -> (Vec<f64>, Vec<f64>) {
    let attention = problem.attention;
    let t = attention.seq_len;
    let problem = AttentionCase { batch: sequences.len(), ..problem };
    let precision = Precision::for_act_dtype(dtype);
    let o_width = attention.heads.query * attention.heads.dim;
    let o_spec = Spec::new([problem.rows(), o_width], dtype);
    let (packed_spec, _) = problem.packed(precision);
    let mut layout = StateBuilder::empty(precision);
    let spans = Spec::new([2 * problem.rows()], DType::U32);
    let slots = layout.group(
        "in",
        [
            ("packed", packed_spec.clone()),
            ("d_packed", packed_spec.clone()),
            ("spans", spans),
            ("sequences", Spec::new([problem.batch], DType::U32)),
            ("step", Spec::new([1], DType::U32)),
            ("o", o_spec.clone()),
            ("do", o_spec),
        ],
    );
    let [packed, d_packed, spans_slot, sequence_indices, step, kept, d_o] = slots;
    layout.watch(packed, d_packed);
    let state = Arc::new(layout.finish());

    let mut b = Builder::new("attention", Arc::clone(&state));
    let rows = b.state_slot(packed);
    let inputs = Inputs {
        packed: b.emit1("packed", Copy, &[rows]).unwrap(),
        spans: (attention.mask == Mask::Spans).then(|| b.state_slot(spans_slot)),
        counters: attention.dropout.map(|_| [sequence_indices, step].map(|slot| b.state_slot(slot))),
    };
    let o = match form {
        Form::Unfused => attention_unfused(&mut b, attention, inputs).unwrap(),
        _ => b.emit("o", FlashAttention(attention), &inputs.list()).unwrap()[0],
    };
    let into = Destination::Into(b.state_slot(kept), Mode::Write);
    b.emit_into("keep", Arc::new(Copy), &[o], &[into]).unwrap();
    let upstream = Upstream::Tensor(b.state_slot(d_o));
    let mut program = b.finish();
    if form == Form::Expanded {
        program = unfuse(program).unwrap();
    }
    let flash = program.nodes.iter().any(|n| n.op.name() == "flash_attention");
    assert_eq!(flash, form == Form::Flash);
    let section = Section::new(differentiate(program, &[(o, upstream)], true).unwrap());

    let mut engine = engine(&state, &[&section]);
    let pick_sequences = |stream: u32, width: usize| -> Vec<f64> {
        let block = t * width;
        let all = noise(block * (*sequences.iter().max().unwrap() as usize + 1), stream);
        sequences.iter().flat_map(|s| all[*s as usize * block..][..block].to_vec()).collect()
    };
    engine.state.set_values(packed, &pick_sequences(0, attention.heads.width())).unwrap();
    engine.state.set_values(d_o, &pick_sequences(1, o_width)).unwrap();
    engine
        .state
        .set_values(sequence_indices, &sequences.iter().map(|s| f64::from(*s)).collect::<Vec<_>>())
        .unwrap();
    engine.state.set_values(step, &[3.0]).unwrap();
    if let [(_, crate::ir::Fill::Values(spans))] = problem.span_input().as_slice() {
        engine.state.set_values(spans_slot, spans).unwrap();
    }
    engine.run(&section).unwrap();
    (engine.state.values(kept).unwrap(), engine.state.values(d_packed).unwrap())
}

fn assert_close(a: &[f64], b: &[f64], tolerance: f64, what: &str) {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut a.iter().zip(b).map(|(x, y)| x - y)) / norm(&mut b.iter().copied());
    assert!(a.len() == b.len() && error <= tolerance, "{what}: {error:e} > {tolerance:e}");
}

#[test]
fn flash_equals_unfused_with_the_same_masks() {
    for problem in [
        AttentionCase::causal(2, 17, (4, 2, 32)),
        AttentionCase::causal(2, 67, (8, 1, 32)).dropped(0.2),
        AttentionCase::causal(2, 129, (2, 2, 64)).dropped(0.1),
        AttentionCase::causal(1, 301, (2, 1, 32)).spans().dropped(0.1),
        AttentionCase::causal(3, 1, (2, 1, 96)).dropped(0.5),
        AttentionCase::causal(2, 67, (4, 2, 32)).capped(1.5).dropped(0.1),
        AttentionCase::causal(1, 301, (2, 1, 32)).windowed(40),
        AttentionCase::causal(1, 301, (2, 1, 32)).spans().windowed(40).capped(3.0),
    ] {
        for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 2e-6)] {
            let flash = run(problem, Form::Flash, dtype, &[4, 0, 7][..problem.batch]);
            for form in [Form::Unfused, Form::Expanded] {
                let other = run(problem, form, dtype, &[4, 0, 7][..problem.batch]);
                let what = format!("{} {dtype} {form:?}", problem.name());
                assert_close(&flash.0, &other.0, tolerance, &what);
                assert_close(&flash.1, &other.1, tolerance, &format!("{what} gradient"));
            }
        }
    }
}

/// A sequence keeps its bits, including dropout, at any place in a batch.
#[test]
fn a_split_of_the_batch_changes_no_bit() {
    let problem = AttentionCase::causal(4, 33, (4, 2, 32)).dropped(0.2);
    let whole = run(problem, Form::Flash, DType::F32, &[0, 1, 2, 3]);
    for split in [[0, 2], [1, 3]] {
        let part = run(problem, Form::Flash, DType::F32, &split);
        for (i, s) in split.into_iter().enumerate() {
            for (whole, part) in [(&whole.0, &part.0), (&whole.1, &part.1)] {
                let block = whole.len() / 4;
                assert_eq!(whole[s as usize * block..][..block], part[i * block..][..block]);
            }
        }
    }
}

#[test]
fn generating_with_a_cache_gives_the_rows_of_flash_attention() {
    let plain = AttentionCase::causal(2, 19, (4, 2, 32));
    for problem in [plain, plain.capped(1.5), plain.windowed(5), plain.windowed(7).capped(1.5)] {
        generate(problem);
    }
}

fn generate(problem: AttentionCase) {
    let (batch, t) = (problem.batch, problem.attention.seq_len);
    let heads = problem.attention.heads;
    let flash = run(problem, Form::Flash, DType::F32, &[0, 1]).0;
    let packed = noise(batch * t * heads.width(), 0);

    let mut layout = StateBuilder::empty(Precision::for_act_dtype(DType::F32));
    let (score_cap, window) = (problem.attention.score_cap, problem.attention.window);
    let score_scale = problem.attention.score_scale;
    let attention = CachedAttention { heads, score_scale, score_cap, window, sinks: false, capacity: t };
    let rows = Spec::new([batch, heads.width()], DType::F32);
    let positions = Spec::new([batch], DType::U32);
    let cache = attention.infer(&[rows.clone(), positions.clone()]).unwrap().remove(1);
    let o_width = heads.query * heads.dim;
    let o = Spec::new([batch, o_width], DType::F32);
    let arrivals = Spec::new([batch, heads.query], DType::U32);
    let slots = layout.group(
        "s",
        [("rows", rows), ("positions", positions), ("cache", cache), ("o", o), ("arrivals", arrivals)],
    );
    let state = Arc::new(layout.finish());
    let mut b = Builder::new("generate", Arc::clone(&state));
    let [rows, positions, cache, o, arrivals] = slots.map(|slot| b.state_slot(slot));
    let outs = [(o, Mode::Write), (cache, Mode::Add), (arrivals, Mode::Add)]
        .map(|(tensor, mode)| Destination::Into(tensor, mode));
    b.emit_into("o", Arc::new(attention), &[rows, positions], &outs).unwrap();
    let section = Section::new(b.finish());
    let mut engine = engine(&state, &[&section]);
    let [rows, positions, _, o, _] = slots;
    for at in 0..t {
        let row = |b: usize| packed[(b * t + at) * heads.width()..][..heads.width()].to_vec();
        engine.state.set_values(rows, &(0..batch).flat_map(row).collect::<Vec<_>>()).unwrap();
        engine.state.set_values(positions, &vec![at as f64; batch]).unwrap();
        engine.run(&section).unwrap();
        let have = engine.state.values(o).unwrap();
        for b in 0..batch {
            let want = &flash[(b * t + at) * o_width..][..o_width];
            assert_close(&have[b * o_width..][..o_width], want, 1e-6, &format!("row {at}"));
        }
    }
    engine.state.set_values(positions, &vec![t as f64; batch]).unwrap();
    let error = engine.run(&section).unwrap_err();
    assert!(error.message().contains("beyond the cache"), "{}", error.message());
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let attention = AttentionCase::causal(2, 8, (4, 2, 32)).dropped(0.1).attention;
    let op = FlashAttention(attention);
    let packed = |rows: usize, width: usize| Spec::new([rows, width], DType::F32);
    let u32s = |n: usize| Spec::new([n], DType::U32);
    assert!(op.infer(&[packed(16, 256), u32s(2), u32s(1)]).is_ok());
    for wrong in [
        vec![],
        vec![packed(16, 256)],
        vec![packed(15, 256), u32s(2), u32s(1)],
        vec![packed(16, 255), u32s(2), u32s(1)],
        vec![packed(16, 256), u32s(3), u32s(1)],
        vec![packed(16, 256), u32s(2), u32s(2)],
        vec![packed(16, 256), packed(1, 2), u32s(1)],
    ] {
        assert!(op.infer(&wrong).is_err(), "{wrong:?}");
    }
    for bad in [
        Attention { score_cap: Some(0.0), ..attention },
        Attention { score_cap: Some(f64::NAN), ..attention },
        Attention { window: Some(4), ..attention },
        Attention { window: Some(0), mask: Mask::Spans, ..attention },
    ] {
        let spans = (bad.mask == Mask::Spans).then(|| u32s(32));
        let inputs: Vec<Spec> =
            [packed(16, 256)].into_iter().chain(spans).chain([u32s(2), u32s(1)]).collect();
        assert!(FlashAttention(bad).infer(&inputs).is_err(), "{bad:?}");
    }
    let uneven = Attention { heads: Heads { query: 3, kv: 2, dim: 32 }, dropout: None, ..attention };
    assert!(FlashAttention(uneven).infer(&[packed(16, 224)]).is_err());
}

/// Products count the pairs of the causal half, or exactly the pairs inside the window.
#[test]
fn a_window_counts_the_pairs_inside_it() {
    let heads = Heads { query: 3, kv: 1, dim: 8 };
    let packed = Spec::new([2 * 10, heads.width()], DType::F32);
    for window in [1, 4, 10] {
        let attention = Attention { mask: Mask::Spans, window: Some(window), ..Attention::causal(heads, 10) };
        let pairs: usize = (0..10).map(|t| window.min(t + 1)).sum();
        assert_eq!(attention.flops(&packed, 2), (2 * 2 * 2 * pairs * 3 * 8) as f64, "{window}");
    }
}
