//! What several ranks compute, on every launch path.

use super::launched::{LAUNCHERS, Launcher, metrics, same_bits};
use crate::place::{Place, Run};
use xrun::check::worst;
use xrun::checkpoint::Loaded;
use xrun::results::{Phase, TimingRow};

/// Twenty steps of the recipe, with a global batch that splits into up to four.
const GATE: [&str; 6] = [
    "tiny.toml",
    "--quiet",
    "training.steps=20",
    "training.global_batch_size=8",
    "training.local_batch_size=2",
    "generation.interval=0",
];

fn trained(launcher: Launcher, world: usize, more: &[&str]) -> (Place, Run) {
    let place = Place::new();
    launcher.trains(&place, world, &[&GATE[..], more].concat());
    let run = place.run();
    (place, run)
}

/// Returns ‖a − b‖ / ‖a‖ over the parameters.
fn relative_distance(a: &Loaded, b: &Loaded) -> f64 {
    let numbers = |of: &Loaded| -> Vec<f64> {
        let names = of.names().into_iter().filter(|name| !name.starts_with("adam."));
        let bytes = names.flat_map(|name| of.read(name, of.shape(name).unwrap()).unwrap());
        let bytes: Vec<u8> = bytes.collect();
        bytes.chunks_exact(4).map(|c| f64::from(f32::from_le_bytes(c.try_into().unwrap()))).collect()
    };
    let (a, b) = (numbers(a), numbers(b));
    assert_eq!(a.len(), b.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(&b).map(|(x, y)| x - y)) / norm(&mut a.iter().copied())
}

fn losses(run: &Run) -> Vec<f64> {
    metrics(run).iter().map(|row| f64::from(row.loss)).collect()
}

fn largest_relative_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    worst(a.iter().zip(b).map(|(a, b)| ((a - b) / a).abs()))
}

/// Compares N ranks with one over 20 steps, with dropout: the same masks and batches, but sums in another
/// order. All launchers must give the same bits.
#[test]
fn several_ranks_are_one_rank() {
    for (dtype, first, all) in [("fp32", 1e-6, 1e-6), ("bf16", 1e-6, 2e-3)] {
        let dtype = format!("training.dtype={dtype}");
        let settings = [dtype.as_str(), "model.dropout=0.2", "optimizer.lr=1e-3"];
        let (_kept, one) = trained(Launcher::Thread, 1, &settings);
        for world in [2, 4] {
            let mut before: Option<(Place, Run)> = None;
            for launcher in LAUNCHERS {
                let (place, run) = trained(launcher, world, &settings);
                let (a, b) = (losses(&one), losses(&run));
                assert!(b.iter().all(|loss| loss.is_finite()));
                assert!(
                    largest_relative_difference(&a[..1], &b[..1]) <= first,
                    "{launcher:?} {world} {dtype}: {a:?} {b:?}"
                );
                assert!(
                    largest_relative_difference(&a, &b) <= all,
                    "{launcher:?} {world} {dtype}: {a:?} {b:?}"
                );
                let distance = relative_distance(&one.newest(), &run.newest());
                assert!(distance <= 1e-3, "{launcher:?} {world} {dtype}: parameters are {distance:e} apart");
                if let Some((_, before)) = &before {
                    same_bits(before, &run, &format!("{launcher:?}, {world} ranks, {dtype}"));
                }
                before = Some((place, run));
            }
        }
    }
}

#[test]
fn dropout_of_zero_is_no_dropout() {
    let recipe = crate::place::RECIPE.replace("dropout = 0.1\n", "");
    for launcher in LAUNCHERS {
        let place = Place::new();
        place.write("tiny.toml", recipe.as_bytes());
        launcher.trains(&place, 2, &GATE);
        let (_kept, zero) = trained(launcher, 2, &["model.dropout=0"]);
        same_bits(&place.run(), &zero, &format!("{launcher:?}"));
    }
}

/// Dropout was once silently off on one path. It must change the curve, and still do so after an evaluation.
#[test]
fn dropout_acts_and_stays_alive_across_evaluations() {
    for launcher in LAUNCHERS {
        let (_a, without) = trained(launcher, 2, &["model.dropout=0", "validation.interval=0"]);
        let (_b, with) = trained(launcher, 2, &["model.dropout=0.2", "validation.interval=0"]);
        let (_c, evaluated) = trained(launcher, 2, &["model.dropout=0.2", "validation.interval=3"]);
        for (step, (a, b)) in losses(&without).iter().zip(losses(&with)).enumerate() {
            assert!((a - b).abs() > 1e-3, "{launcher:?}: step {} has the loss of no dropout: {a}", step + 1);
        }
        let bits = |run: &Run| -> Vec<(u32, u32)> {
            metrics(run).iter().map(|row| (row.loss.to_bits(), row.grad_norm.to_bits())).collect()
        };
        assert_eq!(bits(&with), bits(&evaluated), "{launcher:?}: an evaluation changes training");
        assert!(metrics(&evaluated).iter().filter(|row| row.val_loss.is_some()).count() > 5);
    }
}

/// A reader of a result sees the command that the user gave, not the one with which a parent starts its
/// children.
#[test]
fn every_launcher_tells_the_command() {
    for launcher in LAUNCHERS {
        let (_kept, run) = trained(launcher, 2, &[]);
        let command = run.json("env.json")["command"].clone();
        assert_eq!((&command[0], &command[1]), (&"xrun".into(), &"tiny.toml".into()), "{launcher:?}");
    }
}

/// Everything at once, as in the recipe of that name, but small enough for a test.
#[test]
fn the_full_stack_on_every_path() {
    let recipe =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/v9-full-stack.toml")).unwrap();
    let small = [
        "stack.toml",
        "--quiet",
        "model.dim=32",
        "model.n_layers=2",
        "model.n_heads=4",
        "model.n_kv_heads=2",
        "model.head_dim=16",
        "model.ffn_dim=64",
        "training.seq_len=32",
        "training.global_batch_size=8",
        "training.local_batch_size=2",
        "training.accumulation=2",
        "training.steps=20",
        "lr_scheduler.warmup_steps=2",
        "data.corpus=stories",
        "data.tokenizer=stories",
        "data.train_tokens=20_000",
        "data.validation_tokens=600",
        "validation.interval=6",
        "validation.steps=2",
        "generation.tokens=8",
    ];
    let mut before: Option<(Place, Run)> = None;
    for launcher in LAUNCHERS {
        let place = Place::new();
        place.write("stack.toml", recipe.as_bytes());
        launcher.trains(&place, 2, &small);
        let folder = std::fs::read_dir(place.path().join("results/stack")).unwrap().next().unwrap().unwrap();
        let run = Run { path: folder.path() };
        assert!(losses(&run).iter().all(|loss| loss.is_finite()));
        if let Some((_, before)) = &before {
            same_bits(before, &run, &format!("{launcher:?}"));
        }
        before = Some((place, run));
    }
}

/// A comparison of replicas has its own timing row, so that it does not count in the next step.
#[test]
fn comparisons_of_ranks_are_timed_by_themselves() {
    let checks = |world, more: &[&str]| -> Vec<u64> {
        let more = [&["parallelism.check_interval=8", "checkpoint.interval=0"], more].concat();
        let (_place, run) = trained(Launcher::Thread, world, &more);
        let rows: Vec<TimingRow> = xrun::results::rows::read(&run.path.join("timing.csv")).unwrap();
        rows.iter().filter(|row| row.phase == Phase::Check).map(|row| row.step).collect()
    };
    assert_eq!(checks(2, &[]), [8, 16, 20]);
    assert!(checks(1, &[]).is_empty(), "a rank alone has nothing to compare");
    assert!(checks(2, &["engine.communication=off"]).is_empty(), "ranks that do not exchange differ");
}
