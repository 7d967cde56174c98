//! Checks that every op passes in every format, and that a faulty op fails.

use super::differences::directions;
use super::*;
use crate::device::{Elem, ProductPrecision, Real};
use crate::dispatch_float;
use crate::ir::{Cases, CpuNode, Emission, Fill, GpuNode, Node, Op, Phase, Shards, Spec, Vjp};
use crate::ops::attention::unfused::AttentionScores;
use crate::ops::attention::{Heads, Mask};
use crate::ops::embedding_owners::{EmbeddingGradAtOwners, OwnedRows, TokenOrder};
use crate::ops::gather_rows::GatherRows;
use crate::ops::grad_norm::GradNormPartials;
use crate::ops::kv_cache::CacheFill;
use crate::ops::linear::{Linear, LinearInputGrad, LinearWeightGrad};
use crate::ops::linear_add::LinearAdd;
use crate::ops::scale::Scale;
use crate::ops::share_rows::ShareRows;
use crate::ops::sort_tokens::RankInterleaved;
use crate::ops::window_spans::WindowSpans;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

fn all_hold(dtype: DType) {
    let precision = Precision::for_act_dtype(dtype);
    let wide = cases(Precision::for_act_dtype(DType::F64));
    let checked = |case| check(case, counterpart(case, &wide)?, precision, &Target::Cpu);
    let failures: Vec<String> = cases(precision)
        .par_iter()
        .flat_map_iter(|case| match checked(case) {
            Ok(findings) => findings
                .into_iter()
                .filter(|f| !f.holds())
                .map(|f| format!("{} [{}] {}: {:.3e} > {:.3e}", f.op, f.case, f.mode, f.error, f.bound))
                .collect::<Vec<_>>(),
            Err(e) => vec![format!("{case:?}: {e}")],
        })
        .collect();
    assert!(failures.is_empty(), "{} findings\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_case_holds_in_f64() {
    all_hold(DType::F64);
}

#[test]
fn every_case_holds_in_f32() {
    all_hold(DType::F32);
}

#[test]
fn every_case_holds_in_bf16() {
    all_hold(DType::Bf16);
}

/// Reads the names of types that implement `Op` from the sources below a folder.
fn ops_in_sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(ops_in_sources(&path));
        } else {
            let text = std::fs::read_to_string(&path).unwrap();
            found.extend(text.lines().filter_map(|line| {
                let implemented = line.strip_prefix("impl")?;
                let (_, op) =
                    implemented.split_once(" Op for ").or_else(|| implemented.split_once(" RowNorm for "))?;
                // Every `RowNorm` is an op by one `impl` for a type parameter.
                let op = op.split(|c: char| !c.is_alphanumeric()).next().filter(|op| op.len() > 1)?;
                Some(op.to_owned())
            }));
        }
    }
    found
}

/// An op missing from the registries would never be checked.
#[test]
fn every_op_is_registered() {
    let registered: Vec<&str> = op_types().map(|op| (op.name)()).collect();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ops = ["ops", "optim"].map(|room| ops_in_sources(&sources.join(room))).concat();
    assert!(ops.len() > 50, "the sources are found");
    for op in ops {
        let names =
            |path: &&str| path.split('<').next().is_some_and(|path| path.ends_with(&format!("::{op}")));
        assert!(registered.iter().any(names), "{op} is in no registry");
    }
}

/// A backward op is only tested if a case of its forward really records it.
#[test]
fn every_gradient_op_is_recorded_by_its_forward() {
    let precision = Precision::for_act_dtype(DType::F64);
    for op in op_types() {
        let Cases::GradientOf(forward) = (op.cases)(precision) else { continue };
        let recorded = cases(precision).iter().filter(|c| c.op.as_ref().type_id() == forward).any(|case| {
            let bench = Bench::new(case, precision, Target::Cpu.device(1).unwrap()).unwrap();
            bench.program().nodes.iter().any(|n| n.op.as_ref().type_id() == (op.id)())
        });
        assert!(recorded, "no case of its forward records {}", (op.name)());
    }
}

/// Returns ops that differ in one constant, for op types whose cases all have the same constants.
fn neighbors() -> Vec<Arc<dyn Op>> {
    let products = ProductPrecision::Tf32;
    let heads = Heads { query: 1, kv: 1, dim: 2 };
    let fill = |capacity| CacheFill { heads, samples: 1, prompts: 1, capacity };
    let partials = |block| GradNormPartials { shards: Arc::new(Shards::new(&[1], 1, block)) };
    let rows = |ranks| OwnedRows { layout: RankInterleaved { ranks, sequence: 1 }, owners: Vec::new() };
    vec![
        Arc::new(fill(1)),
        Arc::new(fill(2)),
        Arc::new(TokenOrder(rows(1))),
        Arc::new(TokenOrder(rows(2))),
        Arc::new(EmbeddingGradAtOwners(rows(1))),
        Arc::new(EmbeddingGradAtOwners(rows(2))),
        Arc::new(GatherRows { ranks: 2 }),
        Arc::new(AttentionScores { heads, seq_len: 1 }),
        Arc::new(AttentionScores { heads, seq_len: 2 }),
        Arc::new(Scale { factor: 1.0 }),
        Arc::new(Scale { factor: 2.0 }),
        Arc::new(partials(1)),
        Arc::new(partials(2)),
        Arc::new(Linear { products }),
        Arc::new(LinearAdd(Linear { products })),
        Arc::new(LinearInputGrad { products, adds: false }),
        Arc::new(LinearWeightGrad { products }),
        Arc::new(ShareRows { ranks: 2 }),
        Arc::new(WindowSpans { rows: 1, seq_len: 1, window: 2, mask: Mask::Causal }),
    ]
}

/// Returns the ops of every case and its gradient, once for each set of constants.
fn all_ops() -> BTreeMap<String, Arc<dyn Op>> {
    let mut ops: Vec<Arc<dyn Op>> = Vec::new();
    ops.extend(neighbors());
    for precision in [DType::F64, DType::F32, DType::Bf16].map(Precision::for_act_dtype) {
        for case in &cases(precision) {
            if !case.differentiable.is_empty() {
                let program = Layout::new(case, precision).unwrap().recomputed(case).unwrap();
                ops.extend(program.nodes.into_iter().map(|node| node.op));
            }
            ops.push(Arc::clone(&case.op));
        }
    }
    ops.into_iter().map(|op| (format!("{op:#?}"), op)).collect()
}

/// The derived Debug prints each constant on its own line.
#[test]
fn ops_that_differ_in_one_constant_are_not_the_same() {
    let ops = all_ops();
    let mut apart = BTreeSet::new();
    for (text, op) in &ops {
        for (other_text, other) in &ops {
            assert_eq!(op.same_as(&**other), text == other_text, "{text}\n{other_text}");
            if text.lines().next() == other_text.lines().next() {
                let differing = text.lines().zip(other_text.lines()).filter(|(line, other)| line != other);
                let one = differing.count() == 1 && text.lines().count() == other_text.lines().count();
                apart.extend(one.then(|| op.name()));
            }
        }
    }
    let has_constants = ops.iter().filter(|(text, _)| text.lines().count() > 1);
    let with_constants: BTreeSet<&str> = has_constants.map(|(_, op)| op.name()).collect();
    let missing: Vec<_> = with_constants.difference(&apart).collect();
    assert!(missing.is_empty(), "no two cases differ in one constant alone: {missing:?}");
}

/// Returns true if a node is a gradient that also emits its forward's output.
fn emits(node: &Node) -> bool {
    node.op.emission().is_some_and(|emission| emission.gradient.same_as(&*node.op))
}

/// A gradient that claims it can emit a tensor does so in every case, and no node recomputes that tensor.
#[test]
fn every_emission_takes_the_place_of_a_recomputation() {
    let precision = Precision::for_act_dtype(DType::F64);
    let (mut able, mut emitting) = (HashSet::new(), HashSet::new());
    for case in cases(precision).iter().filter(|case| !case.differentiable.is_empty()) {
        let layout = Layout::new(case, precision).unwrap();
        let (kept, dropped) = (layout.with_gradient(case, true).unwrap(), layout.recomputed(case).unwrap());
        assert!(!kept.nodes.iter().any(emits), "{case:?}");
        if kept.nodes.iter().any(|node| node.op.emission().is_some()) {
            assert!(dropped.nodes.iter().any(emits), "{case:?}");
            assert!(dropped.nodes.iter().all(|node| node.phase != Phase::Recompute), "{case:?}");
        }
        able.extend(kept.nodes.iter().filter(|node| node.op.emission().is_some()).map(|node| node.op.name()));
        emitting.extend(dropped.nodes.iter().filter(|node| emits(node)).map(|node| node.op.name()));
    }
    assert_eq!(emitting, able);
    assert!(!able.is_empty());
}

/// An error planted in [`Square`] or its gradient.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// Leaves the output unchanged.
    WritesNothing,
    /// Stores this value at one element instead of the right one.
    Stores {
        value: f64,
        element: usize,
    },
    /// Changes the sign of one element.
    Negates {
        element: usize,
    },
}

/// Compares stored values by their bits, so that a NaN equals itself.
impl PartialEq for Fault {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stores { value: a, element: at }, Self::Stores { value: b, element }) => {
                a.to_bits() == b.to_bits() && at == element
            }
            (Self::Negates { element: at }, Self::Negates { element }) => at == element,
            (Self::None, Self::None) | (Self::WritesNothing, Self::WritesNothing) => true,
            _ => false,
        }
    }
}

/// `y = x²` with planted faults.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Square {
    forward: Fault,
    gradient: Fault,
    /// Fault in the tensor that the gradient emits, if it emits one.
    emitted: Fault,
    /// Fault in the gradient when it also emits.
    gradient_if_emitting: Fault,
    /// True if the f64 implementation has the faults too. A GPU kernel is compared with a correct f64 run on
    /// the CPU.
    faulty_in_f64: bool,
    /// Number of elements that the reference returns.
    reference_len: usize,
    /// Number of outputs that the reference returns.
    reference_outputs: usize,
}

/// Computes `dx = 2·x·dy` from `(x, dy)`, and `y = x²` if it emits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SquareGrad {
    of: Square,
    emits: bool,
}

/// Number of elements, many more than a gradient check perturbs one by one.
const LEN: usize = 3000;

/// Returns an element that no single-element probe perturbs and whose gradient is not small: in a narrow
/// format, an error in an element near zero would not count as an error of the tensor.
fn unprobed() -> usize {
    let case = planted_case(Square::CORRECT, Precision::for_act_dtype(DType::Bf16));
    let data = Data::new(&case).unwrap();
    let probes: Vec<usize> =
        directions(&case.name, 0, LEN).iter().filter(|d| d.len() == 1).map(|d| d[0].0).collect();
    let large = |i: &usize| data.inputs[0][*i].abs() > 1.0 && data.seeds[0][*i].abs() > 1.0;
    (0..LEN).filter(large).find(|i| !probes.contains(i)).unwrap()
}

fn planted_case(op: Square, precision: Precision) -> Case {
    let x = (Spec::new([LEN], precision.act_dtype), Fill::Normal(0.0, 1.0));
    let (len, outputs) = (op.reference_len, op.reference_outputs);
    Case::new("planted", op, vec![x], move |inputs: &[Array]| {
        let y = Array { shape: vec![len], data: inputs[0].data[..len].iter().map(|x| x * x).collect() };
        vec![y; outputs]
    })
}

impl Square {
    const CORRECT: Self = Self {
        forward: Fault::None,
        gradient: Fault::None,
        emitted: Fault::None,
        gradient_if_emitting: Fault::None,
        faulty_in_f64: false,
        reference_len: LEN,
        reference_outputs: 1,
    };

    fn fault_in(self, fault: Fault, dtype: DType) -> Fault {
        if dtype == DType::F64 && !self.faulty_in_f64 { Fault::None } else { fault }
    }
}

/// Writes `f(i)` to every element of an output, except where the fault changes it.
fn store<E: Elem>(cx: &CpuNode<'_>, output: usize, fault: Fault, f: impl Fn(usize) -> f64) {
    if fault == Fault::WritesNothing {
        return;
    }
    let add = cx.adds(output);
    let y = cx.output::<E>(output);
    for (i, y) in y.slice(0, LEN).iter_mut().enumerate() {
        let value = match fault {
            Fault::Stores { value, element } if i == element => value,
            Fault::Negates { element } if i == element => -f(i),
            _ => f(i),
        };
        let before = if add { y.up() } else { E::Acc::ZERO };
        *y = E::down(before + E::Acc::from_f64(value));
    }
}

impl Op for Square {
    fn name(&self) -> &'static str {
        "square"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        Ok(inputs.to_vec())
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (x, dy) = (v.input(0), v.output_grad(0)?);
        v.backward(SquareGrad { of: *self, emits: false }, &[x, dy], &[0]).map(drop)
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let x = cx.input::<E>(0);
            let x = x.slice(0, LEN);
            store::<E>(cx, 0, self.fault_in(self.forward, E::DTYPE), |i| (x[i].up() * x[i].up()).to_f64());
        });
        Ok(())
    }

    fn gpu(&self, _cx: &GpuNode<'_>) -> Result<()> {
        Err(Error::failed("square runs on the CPU alone"))
    }

    fn cases(precision: Precision) -> Cases {
        Cases::Own(vec![planted_case(Self::CORRECT, precision)])
    }
}

impl Op for SquareGrad {
    fn name(&self) -> &'static str {
        "square_grad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        Ok(vec![inputs[0].clone(); 1 + usize::from(self.emits)])
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn emission(&self) -> Option<Emission> {
        let by = Arc::new(Self { emits: true, ..*self });
        Some(Emission { of: Arc::new(self.of), inputs: vec![0], gradient: by })
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, dy) = (cx.input::<E>(0), cx.input::<E>(1));
            let (x, dy) = (x.slice(0, LEN), dy.slice(0, LEN));
            let when_emitting = self.of.gradient_if_emitting;
            let fault = if self.emits && when_emitting != Fault::None { when_emitting } else { self.of.gradient };
            let fault = self.of.fault_in(fault, E::DTYPE);
            store::<E>(cx, 0, fault, |i| 2.0 * x[i].up().to_f64() * dy[i].up().to_f64());
            if self.emits {
                let fault = self.of.fault_in(self.of.emitted, E::DTYPE);
                store::<E>(cx, 1, fault, |i| (x[i].up() * x[i].up()).to_f64());
            }
        });
        Ok(())
    }

    fn gpu(&self, _cx: &GpuNode<'_>) -> Result<()> {
        Err(Error::failed("square_grad runs on the CPU alone"))
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<Square>()
    }
}

/// Returns the modes in which the op's case fails, in one format. If the check itself fails, returns `error`.
fn failing_modes(op: Square, dtype: DType) -> Vec<&'static str> {
    let [precision, wide] = [dtype, DType::F64].map(Precision::for_act_dtype);
    match check(&planted_case(op, precision), &planted_case(op, wide), precision, &Target::Cpu) {
        Ok(findings) => findings.iter().filter(|f| !f.holds()).map(|f| f.mode).collect(),
        Err(_) => vec!["error"],
    }
}

const FORMATS: [DType; 3] = [DType::F64, DType::F32, DType::Bf16];

/// Asserts that a faulty op fails in `mode` in every format. In the narrow formats, it must also fail when
/// compared with a correct f64.
fn assert_caught(op: Square, mode: &str) {
    for dtype in FORMATS {
        for faulty_in_f64 in [true, false] {
            if dtype == DType::F64 && !faulty_in_f64 {
                continue;
            }
            // A gradient that is equally wrong in f64 is caught by the finite differences of the f64 run.
            if mode == "gradient" && dtype != DType::F64 && faulty_in_f64 {
                continue;
            }
            let op = Square { faulty_in_f64, ..op };
            let modes = failing_modes(op, dtype);
            assert!(modes.contains(&mode), "{dtype}: {op:?} fails in {modes:?}, not in {mode}");
        }
    }
}

#[test]
fn a_correct_op_holds() {
    for dtype in FORMATS {
        assert_eq!(failing_modes(Square::CORRECT, dtype), Vec::<&str>::new(), "{dtype}");
    }
}

#[test]
fn an_op_that_writes_nothing_fails() {
    assert_caught(Square { forward: Fault::WritesNothing, ..Square::CORRECT }, "forward");
}

#[test]
fn nan_and_infinity_in_one_element_fail() {
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let forward = Fault::Stores { value, element: unprobed() };
        assert_caught(Square { forward, ..Square::CORRECT }, "forward");
    }
}

#[test]
fn a_wrong_element_fails() {
    assert_caught(Square { forward: Fault::Negates { element: unprobed() }, ..Square::CORRECT }, "forward");
}

#[test]
fn a_gradient_that_writes_nothing_fails() {
    let op = Square { gradient: Fault::WritesNothing, ..Square::CORRECT };
    assert_caught(op, "gradient");
}

/// Tests an element that single-element probes miss, and the first one they perturb: finite results of later
/// probes must not hide its error.
#[test]
fn nan_infinity_and_a_wrong_element_of_a_gradient_fail() {
    let first_probe = directions("planted", 0, LEN)[0][0].0;
    for element in [unprobed(), first_probe] {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let gradient = Fault::Stores { value, element };
            assert_caught(Square { gradient, ..Square::CORRECT }, "gradient");
        }
        let gradient = Fault::Negates { element };
        assert_caught(Square { gradient, ..Square::CORRECT }, "gradient");
    }
}

#[test]
fn an_output_with_a_different_length_than_the_reference_fails() {
    assert_caught(Square { reference_len: LEN - 1, ..Square::CORRECT }, "forward");
}

#[test]
fn a_different_number_of_outputs_than_the_reference_fails() {
    for reference_outputs in [0, 2] {
        assert_caught(Square { reference_outputs, ..Square::CORRECT }, "forward");
    }
}

/// The faults must be found even if the forward and the gradient without emission are correct.
#[test]
fn a_faulty_emission_and_a_faulty_gradient_beside_one_fail() {
    let (value, element) = (f64::NAN, unprobed());
    for fault in [Fault::WritesNothing, Fault::Negates { element }, Fault::Stores { value, element }] {
        for op in [
            Square { emitted: fault, ..Square::CORRECT },
            Square { gradient_if_emitting: fault, ..Square::CORRECT },
        ] {
            for dtype in FORMATS {
                let op = Square { faulty_in_f64: true, ..op };
                assert_eq!(failing_modes(op, dtype), ["recomputed bits"], "{dtype}: {op:?}");
            }
        }
    }
}
