//! One batch of conversations, cut into ranks and micro-batches, packed or one a row: the same training, up
//! to the order of sums. A loss that is a mean of the means of its parts is found by the same comparison.

use crate::engine::harness::{Setup, get, relative};
use std::fmt::Write;
use std::sync::OnceLock;
use xrun::Result;
use xrun::check::worst;
use xrun::data::Loader;
use xrun::device::DType;
use xrun::ir::{BatchSlot, Precision};
use xrun::train::Rank;

const EXAMPLES: usize = 24;
const ROWS_OF_PACKED: usize = 12;
const STEPS: usize = 10;

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' \
     %}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

/// How a batch of conversations is laid into rows, and its rows into parts.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cut {
    packing: &'static str,
    rows: usize,
    local_batch_size: usize,
    ranks: usize,
}

/// The whole batch at once, a conversation a row.
const WHOLE: Cut = Cut { packing: "document", rows: EXAMPLES, local_batch_size: EXAMPLES, ranks: 1 };

/// Bounds of relative differences: in the loss and the gradients of the first step, and in the losses and the
/// parameters of all steps.
type Bounds = [f64; 3];
const IN_F64: Bounds = [1e-12, 1e-12, 1e-9];
const IN_FP32: Bounds = [1e-6, 1e-5, f64::INFINITY];

/// Every cut of both layouts into micro-batches of 1, 2, 3, 4 and 8 rows on 1, 2, 3 and 4 ranks.
fn cuts() -> Vec<Cut> {
    let mut cuts = Vec::new();
    for (packing, rows) in [("document", EXAMPLES), ("best_fit", ROWS_OF_PACKED)] {
        for local_batch_size in [1, 2, 3, 4, 8, rows] {
            for ranks in 1..=4 {
                if rows % (local_batch_size * ranks) == 0 {
                    cuts.push(Cut { packing, rows, local_batch_size, ranks });
                }
            }
        }
    }
    cuts
}

/// What a training has: the loss and the gradients of the first step, the losses of all steps, and the
/// parameters at the end.
#[derive(Debug, Default)]
struct Found {
    gradients: Vec<Vec<f64>>,
    losses: Vec<f64>,
    parameters: Vec<Vec<f64>>,
}

/// Makes the conversations, two of which fill most of a row: their answers have from 1 to 25 letters.
fn conversations() -> &'static tempfile::TempDir {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut train, mut held) = (String::new(), String::new());
        for i in 0..EXAMPLES {
            // Two roles and the end token take 18 tokens; a row has 96.
            let length = if i % 2 == 0 { 52 + i / 2 } else { 40 - i / 2 };
            let answer = 1 + if i % 2 == 0 { 2 * (i * 5 % 13) } else { i * 5 % 13 / 2 };
            let question = "q".repeat(length - 18 - answer);
            let letter = char::from(b'a' + i as u8);
            let write = |to: &mut String, answer: &str| {
                writeln!(to, "{{\"prompt\": \"{question}\", \"completion\": \"{answer}\"}}").expect("a text");
            };
            write(&mut train, &letter.to_string().repeat(answer));
            write(&mut held, "held");
        }
        for (name, text) in [("train.jsonl", train), ("held.jsonl", held), ("t.jinja", TEMPLATE.to_owned())] {
            std::fs::write(folder.path().join(name), text).expect("a temporary folder takes a file");
        }
        folder
    })
}

fn setup(cut: Cut, format: DType) -> Setup {
    let path = |name: &str| conversations().path().join(name).display().to_string();
    let keys = [
        format!("data.corpus={}", path("train.jsonl")),
        format!("data.validation={}", path("held.jsonl")),
        format!("data.chat_template={}", path("t.jinja")),
        format!("data.packing={}", cut.packing),
        format!("training.global_batch_size={}", cut.rows),
        format!("training.local_batch_size={}", cut.local_batch_size),
        format!("parallelism.world_size={}", cut.ranks),
        "data.format=chat".to_owned(),
        "training.seq_len=96".to_owned(),
        "model.n_layers=1".to_owned(),
    ];
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let setup = Setup::planned(&keys, |plan| plan.precision = Precision::for_act_dtype(format));
    let packed = setup.dataset.packed.expect("conversations are laid into rows");
    assert_eq!((packed.rows, packed.documents, packed.cut), (cut.rows, EXAMPLES, 0), "{cut:?}");
    setup
}

fn tensors(setup: &Setup, rank: &Rank, of: &str) -> Vec<Vec<f64>> {
    let params = setup.programs.state.params.iter();
    params.map(|param| get(rank.engine(), &format!("{of}.{}", param.name))).collect()
}

/// Trains as runs do.
fn train(cut: Cut, format: DType, steps: usize) -> Found {
    let setup = setup(cut, format);
    let body = |rank: &mut Rank| -> Result<Found> {
        let mut found = Found::default();
        for step in 0..steps {
            rank.train_step()?;
            found.losses.push(get(rank.engine(), "control.loss")[0]);
            if step == 0 {
                found.gradients = tensors(&setup, rank, "grads");
            }
        }
        found.parameters = tensors(&setup, rank, "params");
        Ok(found)
    };
    setup.on_ranks(|_| setup.plan.clone(), body).expect("a tiny model trains").remove(0)
}

/// Runs the micro-steps of one step, each of which divides its losses by the number of targets that
/// `denominator` says: `(of the whole step, of the micro-batch, micro-batches)`.
fn one_step(cut: Cut, format: DType, denominator: fn(u64, usize, usize) -> u64) -> Found {
    let setup = setup(cut, format);
    let mut engine = setup.engine();
    let mut loader = Loader::new(setup.dataset.clone(), setup.plan.loader(0, 0)).expect("a loader");
    let count = cut.rows / cut.local_batch_size;
    for micro in 0..count {
        let batch = loader.next().expect("a batch");
        let whole = batch.step_targets.iter().sum();
        let tokens = [denominator(whole, batch.target_count(), count) as u32];
        for (name, values) in [
            (BatchSlot::Tokens, &batch.tokens[..]),
            (BatchSlot::Targets, &batch.targets),
            (BatchSlot::Positions, &batch.positions),
            (BatchSlot::Spans, &batch.spans),
            (BatchSlot::Sequences, &batch.sequences),
            (BatchSlot::StepTokens, &tokens),
        ] {
            let slot = engine.state.slot(name).expect("a slot of the batch");
            engine.state.write(slot, values).expect("values of the slot's size");
        }
        engine.run(setup.programs.micro_step(micro, count)).expect("a micro-step");
    }
    let gradients = setup.programs.state.params.iter().map(|p| get(&engine, &format!("grads.{}", p.name)));
    Found {
        gradients: gradients.collect(),
        losses: vec![get(&engine, "control.loss")[0]],
        parameters: Vec::new(),
    }
}

/// Returns ‖a − b‖ / ‖b‖ of the tensor that differs most.
fn distance(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    worst(
        a.iter()
            .zip(b)
            .map(|(a, b)| norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())),
    )
}

/// Returns the relative differences that [`Bounds`] are for.
fn differences(a: &Found, b: &Found) -> [f64; 3] {
    let losses: Vec<f64> = a.losses.iter().zip(&b.losses).map(|(a, b)| relative(*a, *b)).collect();
    let later = worst(losses.iter().copied().chain([distance(&a.parameters, &b.parameters)]));
    [losses[0], distance(&a.gradients, &b.gradients), later]
}

fn agree(found: [f64; 3], bounds: Bounds) -> bool {
    found.iter().zip(bounds).all(|(found, bound)| *found <= bound)
}

/// Compares cuts with the whole batch, and prints the largest differences.
fn compare(cuts: &[Cut], format: DType, steps: usize, bounds: Bounds) {
    let whole = train(WHOLE, format, steps);
    assert!(steps == 1 || whole.losses[steps - 1] < 0.9 * whole.losses[0], "{:?}", whole.losses);
    let mut most = [0.0f64; 3];
    for &cut in cuts {
        let found = differences(&train(cut, format, steps), &whole);
        assert!(agree(found, bounds), "{format:?}, {cut:?}: {found:?} > {bounds:?}");
        most = [0, 1, 2].map(|i| most[i].max(found[i]));
    }
    let [loss, gradients, later] = most;
    println!(
        "{format:?}, {} cuts: loss {loss:.1e}, gradients {gradients:.1e}; {steps} steps: {later:.1e}",
        cuts.len()
    );
}

/// One step of every cut.
#[test]
fn every_cut_gives_one_step() {
    compare(&cuts(), DType::F64, 1, IN_F64);
    compare(&cuts(), DType::F32, 1, IN_FP32);
}

/// Ten steps of some cuts: of each layout on one rank and on most ranks.
#[test]
fn cuts_train_alike() {
    let some: Vec<Cut> = cuts()
        .into_iter()
        .filter(|cut| [(1, 1), (3, 4)].contains(&(cut.local_batch_size, cut.ranks)))
        .collect();
    assert_eq!(some.len(), 4);
    compare(&some, DType::F64, STEPS, IN_F64);
}

#[test]
#[ignore = "takes half a minute"]
fn every_cut_trains_alike() {
    compare(&cuts(), DType::F64, STEPS, IN_F64);
}

/// The comparison finds a mean of means, which trains the tokens of short answers more than others.
#[test]
fn a_mean_of_means_is_found() {
    for (format, bounds) in [(DType::F64, IN_F64), (DType::F32, IN_FP32)] {
        let whole = train(WHOLE, format, 1);
        let step_of = |cut, denominator| {
            let step = one_step(cut, format, denominator);
            differences(&Found { parameters: whole.parameters.clone(), ..step }, &whole)
        };
        for local_batch_size in [1, 3, 8] {
            let cut = Cut { local_batch_size, ..WHOLE };
            let right = step_of(cut, |whole, _, _| whole);
            assert!(agree(right, bounds), "{format:?}, {cut:?}: {right:?}");
            let planted = step_of(cut, |_, own, micro_batches| (own * micro_batches) as u64);
            assert!(!agree(planted, bounds), "{format:?}, {cut:?}: {planted:?}");
            assert!(planted[0] > 1e-5 && planted[1] > 1e-3, "{format:?}, {cut:?}: {planted:?}");
        }
    }
}
