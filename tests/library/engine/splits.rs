//! One global batch, split over ranks, micro-steps and products: the same training, up to the order of sums.

use crate::engine::harness::{Setup, Trained, relative};
use xrun::check::worst;
use xrun::device::DType;
use xrun::ir::Precision;

const STEPS: usize = 20;

/// The global batch is fixed, with dropout, at the default learning rate.
const BASE: [&str; 3] = ["training.global_batch_size=32", "model.dropout=0.2", "optimizer.lr=1e-3"];

/// Every way to train on 32 sequences; the others are compared with the first.
const SPLITS: [(&str, &[&str]); 6] = [
    ("1 rank, 1 × 32", &["training.local_batch_size=32"]),
    ("1 rank, 4 × 8", &["training.local_batch_size=8", "training.accumulation=4"]),
    ("2 ranks, 1 × 16", &["training.local_batch_size=16", "parallelism.world_size=2"]),
    ("2 ranks, 2 × 8", &["training.local_batch_size=8", "parallelism.world_size=2"]),
    ("4 ranks, 1 × 8", &["training.local_batch_size=8", "parallelism.world_size=4"]),
    ("1 rank, one sequence at a time", &["training.local_batch_size=32", "engine.batching=looped"]),
];

fn train(overrides: &[&str]) -> Trained {
    train_in(overrides, None)
}

/// Trains, in `format` if one is given, even one that no recipe can ask for.
fn train_in(overrides: &[&str], format: Option<DType>) -> Trained {
    let setup = Setup::planned(&[&BASE[..], overrides].concat(), |plan| {
        plan.precision = format.map_or(plan.precision, Precision::for_act_dtype);
    });
    let mut ranks = setup.train(STEPS);
    for (number, rank) in ranks.iter().enumerate() {
        assert_eq!(rank.difference(&ranks[0]), None, "{overrides:?}: rank {number} and rank 0");
        assert_eq!((rank.curve.len(), &rank.bad), (STEPS, &None), "{overrides:?}");
    }
    ranks.remove(0)
}

/// Returns relative differences: in the loss and the gradient norm of the first step, in the losses of all
/// steps (the largest), in the final held-out loss, and in the final parameters.
fn differences(a: &Trained, b: &Trained) -> [f64; 5] {
    let losses: Vec<f64> = a.losses().iter().zip(b.losses()).map(|(a, b)| relative(*a, b)).collect();
    let all = worst(losses.iter().copied());
    let norm = |run: &Trained| f64::from(run.curve[0].1);
    [losses[0], relative(norm(a), norm(b)), all, relative(a.val_loss, b.val_loss), a.distance(b)]
}

/// Compares every split with the first.
fn agree(train: impl Fn(&[&str]) -> Trained, bounds: [f64; 5]) {
    let whole = train(SPLITS[0].1);
    for (name, split) in &SPLITS[1..] {
        let found = differences(&train(split), &whole);
        let within = found.iter().zip(bounds).all(|(found, bound)| *found <= bound);
        assert!(within, "{name}: {found:?} > {bounds:?}");
    }
}

#[test]
fn in_fp32() {
    agree(train, [1e-6, 1e-6, 1e-6, 1e-6, 1e-3]);
}

#[test]
fn in_bf16() {
    agree(|split| train(&[split, &["training.dtype=bf16"]].concat()), [1e-6, 1e-6, 2e-3, 2e-3, 1e-3]);
}

/// If more than the order of sums differed, f64 would not make the difference disappear. Losses and norms are
/// reported as f32, which may round to the next number.
#[test]
fn in_f64() {
    let ulp = f64::from(f32::EPSILON);
    agree(|split| train_in(split, Some(DType::F64)), [ulp, ulp, ulp, 1e-12, 1e-9]);
}

/// More rows than one chunk of the head has: two chunks on one rank, or one on each of two ranks.
#[test]
fn chunks_of_the_head() {
    let large = ["training.global_batch_size=1024", "model.n_layers=1", BASE[1], BASE[2]];
    let train = |split: &[&str]| Setup::new(&[&large[..], split].concat()).train(3).remove(0);
    let one = Setup::new(&[&large[..], &["training.local_batch_size=1024"]].concat());
    let heads = one.programs.micro_step(0, 1).program.nodes.iter().filter(|n| n.op.name() == "head_loss");
    assert_eq!(heads.count(), 2);
    let found = differences(&train(&["parallelism.world_size=2"]), &one.train_one(3));
    let within = found.iter().zip([1e-6, 1e-6, 1e-6, 1e-6, 1e-3]).all(|(found, bound)| *found <= bound);
    assert!(within, "{found:?}");
}

/// Dropout has an effect, the same for every split; another mask would be as far off as another rate.
#[test]
fn dropout_is_felt() {
    let with = train(SPLITS[0].1);
    let without = Setup::new(&["training.global_batch_size=32", "training.local_batch_size=32"]).train_one(1);
    let other = Setup::new(&[&BASE[..], SPLITS[0].1, &["training.seed=4"]].concat()).train_one(1);
    // Compare gradient norms, because before the first update the loss is hardly above a guess.
    let norm = |trained: &Trained| f64::from(trained.curve[0].1);
    assert!(relative(norm(&with), norm(&without)) > 1e-3);
    assert!(relative(norm(&with), norm(&other)) > 1e-3);
}

/// An evaluation of `steps` batches reads the same held-out windows, however a batch is split.
#[test]
fn a_shortened_evaluation() {
    let evaluated = |steps: &str, split: &[&str]| {
        let shared = [BASE[0], "data.validation_tokens=2000", steps];
        Setup::new(&[&shared, split].concat()).train(1).remove(0).val_loss
    };
    let (short, full) = ("validation.steps=2", "validation.steps=0");
    let whole = evaluated(short, SPLITS[0].1);
    assert!(relative(whole, evaluated(full, SPLITS[0].1)) > 1e-5, "a part of the held-out windows");
    for (name, split) in &SPLITS[1..] {
        let found = relative(evaluated(short, split), whole);
        assert!(found <= 1e-6, "{name}: {found:e}");
    }
}
