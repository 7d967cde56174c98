//! Test cases of a rule: whole buffers, a non-finite step, shards, and a group.

use super::super::optimizer::Rates;
use super::rule::Rule;
use crate::device::DType;
use crate::ir::{Array, Case, Cases, Fill, Mode, Op, Precision, Shards, Spec};
use crate::ops::segments::{Places, Segments, owner_case, whole_case};
use std::ops::Range;

/// Number of elements, and how many of them decay: the first ones.
const COUNT: usize = 20_011;
const DECAYED: usize = 12_345;

/// Ranges with and without decay.
const RANGES: [(Range<usize>, bool); 2] = [(0..DECAYED, true), (DECAYED..COUNT, false)];

/// A group of two ranges that begin inside blocks of a kernel.
const GROUP: [Range<usize>; 2] = [192..2176, 12_288..19_968];

/// The step of the cases, and the number of rows in their schedules. Only the step's own row is right for it.
const STEP: usize = 2;
const ROWS: usize = 4;

/// Returns the cases of a rule, whose ops `op` creates.
pub(super) fn cases<R: Rule<N>, O: Op, const N: usize>(
    precision: Precision,
    op: impl Fn(R, Segments) -> O,
) -> Cases {
    let case = |name: &str, bad: f64, (segments, places): (Segments, Places)| {
        let (rule, slots) = R::example();
        let tensor = |shape: &[usize]| Spec::new(shape, precision.master);
        let number = |value: f64| (Spec::new([1], DType::U32), Fill::Values(vec![value]));
        let rates = |row: usize| Rates { lr: 0.06 / (row + 1) as f64, decay: 0.03 / (row + 1) as f64 };
        let table = (0..ROWS).flat_map(|row| rule.schedule_row(rates(row), row as u64 + 1)).collect();
        let inputs = vec![
            (tensor(&[COUNT]), Fill::Normal(0.0, 1.0)),
            (tensor(&[ROWS, R::COLUMNS]), Fill::Values(table)),
            number(STEP as f64),
            (tensor(&[1]), Fill::Values(vec![0.5])),
            number(bad),
        ];
        let mut outputs = vec![(Mode::Add, Fill::Normal(0.0, 1.0))];
        outputs.extend(slots.map(|fill| (Mode::Add, fill)));
        outputs.extend(precision.has_compute_copy().then_some((Mode::Add, Fill::Normal(0.0, 1.0))));
        Case::new(name, op(rule.clone(), segments), inputs, move |arrays| reference(&rule, arrays, &places))
            .without_gradient()
            .outputs(outputs)
    };
    let owned = |from: usize| owner_case(&RANGES, from, precision);
    Cases::Own(vec![
        case("a step", 0.0, whole_case(&RANGES)),
        case("after a bad step nothing moves", 1.0, whole_case(&RANGES)),
        case("what rank 0 of two owns", 0.0, owned(0)),
        case("what it owns of the second half", 0.0, owned(12_288)),
        case("a group", 0.0, group()),
    ])
}

/// Returns what an update of [`GROUP`] changes.
fn group() -> (Segments, Places) {
    let [first, second] = GROUP;
    let ranges = [(first, true), (second.start..DECAYED, true), (DECAYED..second.end, false)];
    let places = Shards::new(&[COUNT], 1, COUNT).restricted(&GROUP);
    let elements = GROUP.into_iter().flatten().enumerate().map(|(at, i)| (i, i, at)).collect();
    (Segments::new(&ranges, &places, None, COUNT), elements)
}

/// Updates the elements one by one with the rule's reference.
fn reference<R: Rule<N>, const N: usize>(rule: &R, i: &[Array], places: &Places) -> Vec<Array> {
    let (grads, clip, bad) = (&i[0].data, i[3].data[0], i[4].data[0]);
    let row = &i[1].data[i[2].data[0] as usize * R::COLUMNS..];
    let mut out: Vec<Array> = i[5..].to_vec();
    if bad != 0.0 {
        return out;
    }
    for &(flat, master, slot) in places {
        let slots = std::array::from_fn(|k| out[1 + k].data[slot]);
        let (p, slots) = rule.reference(row, flat < DECAYED, out[0].data[master], slots, grads[flat] * clip);
        out[0].data[master] = p;
        for (k, kept) in slots.into_iter().enumerate() {
            out[1 + k].data[slot] = kept;
        }
        if let Some(compute_copy) = out.get_mut(1 + N) {
            compute_copy.data[flat] = p;
        }
    }
    out
}
