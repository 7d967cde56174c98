//! Random model texts through everything that a model goes through.

mod generator;

use crate::engine::harness::{Setup, Trained};
use crate::engine::optimizers::meta;
use generator::{CONSTRUCTS, RandomText, random_text};
use std::collections::BTreeMap;
use xrun::checkpoint::{Store, newest};
use xrun::device::DType;
use xrun::ir::Precision;
use xrun::train::check_model;

/// Texts in a run of the tests. `XRUN_RANDOM_TEXTS` sets another number, or `FIRST..END`.
const TEXTS: u64 = 30;

/// Steps of training.
const STEPS: usize = 2;

/// Largest relative difference of losses, which are reported in fp32, between programs in f64 that add up in
/// another order.
const ROUNDING: f64 = 3e-7;

fn numbers() -> std::ops::Range<u64> {
    let Ok(wanted) = std::env::var("XRUN_RANDOM_TEXTS") else { return 0..TEXTS };
    let number = |text: &str| text.parse().expect("XRUN_RANDOM_TEXTS is a number or FIRST..END");
    match wanted.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => 0..number(&wanted),
    }
}

fn setup_of(text: &str, dtype: DType, more: &[&str]) -> Setup {
    let definition = format!("model.definition={text}");
    let batch = ["training.global_batch_size=16", "data.cross_documents=false"];
    let keys = [&[definition.as_str()], &batch[..], more].concat();
    Setup::planned(&keys, |plan| plan.precision = Precision::for_act_dtype(dtype))
}

/// Trains the last step of a text from a checkpoint after the others.
fn train_resumed(text: &str) -> Trained {
    let setup = setup_of(text, DType::F32, &[]);
    let folder = tempfile::tempdir().unwrap();
    let first = STEPS as u64 - 1;
    let save = setup.on_ranks(
        |_| setup.plan.clone(),
        |rank| {
            for _ in 0..first {
                rank.train_step()?;
            }
            Store::open(folder.path(), 1)?.save(&meta(first), &rank.snapshot())
        },
    );
    save.unwrap();
    let resume = setup.on_ranks(
        |_| setup.plan.clone(),
        |rank| {
            rank.restore(first, newest(folder.path()).unwrap().as_ref())?;
            Trained::new(rank, 1)
        },
    );
    resume.unwrap().remove(0)
}

/// Says how the losses of two trainings differ, but for rounding.
fn unlike(a: &Trained, b: &Trained) -> Option<String> {
    if a.bad.is_some() || b.bad.is_some() {
        return Some(format!("{:?}, {:?}", a.bad, b.bad));
    }
    let losses = |run: &Trained| [run.losses(), vec![run.val_loss]].concat();
    let (a, b) = (losses(a), losses(b));
    let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= ROUNDING * b.abs();
    (!a.iter().zip(&b).all(is_near)).then(|| format!("{a:?} and {b:?}"))
}

/// Returns what is wrong with a text: that it is refused though it is a model, or accepted though it is none,
/// or something that it does not compute as it must.
fn fault(random: &RandomText) -> Option<String> {
    let setup = Setup::try_new(&[&format!("model.definition={}", random.text)]);
    let setup = match (setup, random.refusal) {
        (Err(error), Some(reason)) if error.to_string().contains(reason) => return None,
        (Err(error), Some(reason)) => return Some(format!("refused, but not because of {reason}: {error}")),
        (Ok(_), Some(reason)) => return Some(format!("accepted despite {reason}")),
        (Err(error), None) => return Some(error.to_string()),
        (Ok(setup), None) => setup,
    };
    match check_model(&setup.plan, None) {
        Ok(checks) if checks.passed() => {}
        Ok(checks) => return Some(checks.to_string()),
        Err(error) => return Some(error.to_string()),
    }
    let run = |more: &[&str]| setup_of(&random.text, DType::F64, more).train(STEPS).remove(0);
    let one = run(&[]);
    let two = run(&["parallelism.world_size=2"]);
    let sharded = run(&["parallelism.world_size=2", "parallelism.shard=optimizer"]);
    let recomputed = run(&["activation_checkpoint.mode=full"]);
    let resumed = train_resumed(&random.text);
    // Checkpoints have no masters in f64.
    let mut last = setup_of(&random.text, DType::F32, &[]).train(STEPS).remove(0);
    last.curve.drain(..STEPS - 1);
    let found = [
        ("resumed", resumed.difference(&last)),
        ("recomputed", recomputed.difference(&one)),
        ("on two ranks", unlike(&two, &one)),
        ("with a sharded optimizer", sharded.difference(&two)),
    ];
    found.into_iter().find_map(|(what, difference)| Some(format!("{what}: {}", difference?)))
}

/// Every accepted text has the gradients of differences, sees no later row, computes the same with fused ops
/// and without, generates as it evaluates, and trains alike when it is resumed, recomputed and on two ranks,
/// with a sharded optimizer and without. Every mistake is refused with its reason.
#[test]
fn random_texts_are_models_or_are_refused() {
    let (mut accepted, mut faults, mut counts) = (0, Vec::new(), BTreeMap::new());
    let numbers = numbers();
    for number in numbers.clone() {
        let random = random_text(number);
        if let Some(fault) = fault(&random) {
            faults.push(format!("text {number}: {fault}\n{}", random.text));
        } else if random.refusal.is_none() {
            accepted += 1;
            random.constructs.iter().for_each(|construct| *counts.entry(*construct).or_insert(0) += 1);
        }
    }
    println!("{accepted} of {} texts are models: {counts:?}", numbers.end - numbers.start);
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n\n"));
    assert!(counts.keys().all(|construct| CONSTRUCTS.contains(construct)));
    if accepted >= 1500 {
        let rare = CONSTRUCTS.iter().filter(|construct| counts.get(*construct).copied().unwrap_or(0) < 100);
        assert_eq!(rare.collect::<Vec<_>>(), Vec::<&&str>::new(), "in fewer than 100 texts: {counts:?}");
    }
}
