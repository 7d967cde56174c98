//! The moving average of the weights is a correct average, and training does not depend on it.

use crate::engine::harness::Setup;
use crate::engine::optimizers::meta;
use crate::engine::update_groups::MIXED;
use std::collections::BTreeMap;
use xrun::Result;
use xrun::checkpoint::{Loaded, Snapshot, Store, TensorView, newest};
use xrun::ir::FlatBuffer;
use xrun::train::{Evaluation, Rank, StepRequest};

const STEPS: usize = 5;
const DECAY: f64 = 0.75;
const KEPT: &str = "ema.decay=0.75";
const EVALUATED: &str = "ema.evaluate=true";
const DTYPES: [&str; 2] = ["training.dtype=fp32", "training.dtype=bf16"];
const TWO: &str = "parallelism.world_size=2";
const THREE: &str = "parallelism.world_size=3";
const SHARDED: &str = "parallelism.shard=optimizer";
/// Numbers of ranks, with the average whole or sharded.
const RANKS: [&[&str]; 5] =
    [&[], &[TWO], &[TWO, SHARDED], &[THREE, SHARDED], &["parallelism.world_size=4", SHARDED]];

type Tensors = BTreeMap<String, Vec<u8>>;

/// Losses, gradient norms and evaluations after every step, and rank 0's state after some of the steps.
struct Seen {
    curve: Vec<(u32, u32)>,
    evaluations: Vec<Evaluation>,
    states: Vec<Tensors>,
}

impl Seen {
    fn last(&self) -> &Tensors {
        self.states.last().expect("it trains")
    }

    /// Returns the last state without the average.
    fn without_average(&self) -> Tensors {
        self.last()
            .iter()
            .filter(|(name, _)| !name.starts_with("ema."))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    fn val_losses(&self) -> Vec<u64> {
        self.evaluations.iter().map(|found| found.sets[0].loss().to_bits()).collect()
    }
}

fn state(rank: &mut Rank) -> Result<Tensors> {
    rank.gather_parameters()?;
    let mut tensors = Tensors::new();
    if rank.engine().comm.rank() > 0 {
        rank.answer_snapshot()?;
        return Ok(tensors);
    }
    for tensor in rank.snapshot().tensors() {
        tensors.insert(tensor.name.clone(), tensor.bytes()?.into_owned());
    }
    rank.end_snapshot()?;
    Ok(tensors)
}

/// Trains, and evaluates after every step.
fn train(overrides: &[&str]) -> Seen {
    let setup = Setup::new(overrides);
    let seen = setup.on_ranks(
        |_| setup.plan.clone(),
        |rank| {
            let mut seen = Seen { curve: vec![], evaluations: vec![], states: vec![] };
            for _ in 0..STEPS {
                rank.launch_step()?;
                let report = rank.finish_step(StepRequest::default())?;
                seen.curve.push((report.loss.to_bits(), report.grad_norm.to_bits()));
                seen.evaluations.push(rank.evaluate(false, |_, _| {})?);
                rank.check_replicas()?;
                seen.states.push(state(rank)?);
            }
            Ok(seen)
        },
    );
    let mut seen = seen.unwrap_or_else(|e| panic!("{overrides:?}: {e}"));
    let zero = seen.remove(0);
    for other in seen {
        assert_eq!(other.curve, zero.curve, "{overrides:?}");
        assert_eq!(other.evaluations, zero.evaluations, "{overrides:?}");
    }
    zero
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks::<4>().0.iter().map(|&x| f64::from(f32::from_le_bytes(x))).collect()
}

/// The mean of the weights after each step, in which newer weights have a larger share, in f64.
#[test]
fn it_is_the_corrected_average_of_the_weights_of_all_steps() {
    for ranks in RANKS {
        for dtype in DTYPES {
            let seen = train(&[&[KEPT, dtype], ranks].concat());
            let parameters: Vec<&String> =
                seen.last().keys().filter(|name| !name.contains("adam.")).collect();
            let (averages, weights): (Vec<&String>, Vec<&String>) =
                parameters.into_iter().partition(|name| name.starts_with("ema."));
            assert_eq!(averages.len(), weights.len());
            for name in weights {
                let average = |at: usize| &seen.states[at][&format!("ema.{name}")];
                assert_eq!(average(0), &seen.states[0][name], "{name}: the first step takes the weights");
                let weights_by_step: Vec<Vec<f64>> =
                    seen.states.iter().map(|state| numbers(&state[name])).collect();
                let shares: Vec<f64> = (0..STEPS).map(|at| DECAY.powi((STEPS - 1 - at) as i32)).collect();
                let sum: f64 = shares.iter().sum();
                for (i, found) in numbers(average(STEPS - 1)).into_iter().enumerate() {
                    let mean =
                        weights_by_step.iter().zip(&shares).map(|(step, share)| step[i] * share).sum::<f64>()
                            / sum;
                    let most = weights_by_step.iter().map(|step| step[i].abs()).fold(0.0, f64::max);
                    // Each step rounds once in the difference and once in the sum.
                    let bound = 2.0 * STEPS as f64 * most * f64::from(f32::EPSILON);
                    assert!((found - mean).abs() <= bound, "{ranks:?} {dtype} {name}[{i}]: {found}, {mean}");
                }
            }
        }
    }
}

/// Neither the average nor its evaluations change a bit of what is trained.
#[test]
fn training_does_not_depend_on_it() {
    for ranks in RANKS {
        for dtype in DTYPES {
            let plain = train(&[&[dtype], ranks].concat());
            let kept = train(&[&[dtype, KEPT], ranks].concat());
            let evaluated = train(&[&[dtype, KEPT, EVALUATED], ranks].concat());
            let what = format!("{dtype} {ranks:?}");
            for seen in [&kept, &evaluated] {
                assert_eq!(seen.curve, plain.curve, "{what}");
                assert_eq!(seen.val_losses(), plain.val_losses(), "{what}");
                assert!(seen.without_average() == *plain.last(), "{what}");
            }
            assert!(kept.states == evaluated.states, "{what}: weights and average come back to the bit");
            assert!(kept.evaluations.iter().all(|found| found.ema.is_empty()));
            let differs = |found: &Evaluation| found.ema[0].loss() != found.sets[0].loss();
            assert!(
                !differs(&evaluated.evaluations[0]) && differs(&evaluated.evaluations[STEPS - 1]),
                "{what}"
            );
        }
    }
}

#[test]
fn it_does_not_matter_how_a_step_is_computed() {
    for dtype in DTYPES {
        let base = ["training.accumulation=2", KEPT, EVALUATED, TWO, dtype];
        let whole = train(&base);
        for variant in [
            &[SHARDED][..],
            &["activation_checkpoint.mode=full", "engine.poison=true"],
            &["engine.placement=naive", SHARDED],
            &["parallelism.reduction=grouped", "engine.threads=1"],
            &["parallelism.overlap=false", "parallelism.bucket_mib=0.001", SHARDED],
        ] {
            let seen = train(&[&base[..], variant].concat());
            assert_eq!(seen.evaluations, whole.evaluations, "{dtype} {variant:?}");
            assert!(seen.states == whole.states, "{dtype} {variant:?}");
        }
    }
}

/// With several optimizers, each has slots only for its own parameters, but the average covers all
/// parameters.
#[test]
fn groups_with_rules_of_their_own_share_one_average() {
    for dtype in DTYPES {
        let base = [MIXED, &[TWO, dtype]].concat();
        let plain = train(&base);
        let [whole, sharded] =
            [&[][..], &[SHARDED]].map(|more| train(&[&base[..], &[KEPT, EVALUATED], more].concat()));
        assert_eq!(whole.curve, plain.curve, "{dtype}");
        assert!(whole.without_average() == *plain.last(), "{dtype}");
        assert_eq!(sharded.evaluations, whole.evaluations, "{dtype}");
        assert!(sharded.states == whole.states, "{dtype}");
        let averages = whole.last().keys().filter(|name| name.starts_with("ema.")).count();
        assert_eq!(averages, Setup::new(&base).programs.state.params.len());
    }
}

/// Saves a state with its tensors renamed by `stored`; a tensor for which `stored` returns `None` is left
/// out.
fn save(
    setup: &Setup,
    state: &Tensors,
    stored: impl Fn(&str) -> Option<String>,
) -> (tempfile::TempDir, Loaded) {
    let folder = tempfile::tempdir().unwrap();
    let shape = |name: &str| {
        let param = ["", "ema.", "adam.m.", "adam.v."]
            .into_iter()
            .find_map(|prefix| setup.programs.state.param(name.strip_prefix(prefix)?));
        param.expect("a tensor belongs to a parameter").spec.shape.clone()
    };
    let view =
        |(name, bytes): (&String, &'static [u8])| Some(TensorView::new(stored(name)?, shape(name), bytes));
    let is_slot = |name: &String| name.starts_with("ema.") || name.starts_with("adam.");
    // Views borrow; a test may leak its bytes.
    let leaked = state.iter().map(|(name, bytes)| (name, &*bytes.clone().leak()));
    let (slots, parameters): (Vec<_>, Vec<_>) = leaked.filter_map(view).partition(|view| is_slot(&view.name));
    let store = Store::open(folder.path(), 1).unwrap();
    store.save(&meta(STEPS as u64), &Snapshot::new(parameters, slots)).unwrap();
    let loaded = newest(folder.path()).unwrap().unwrap();
    (folder, loaded)
}

/// The average is evaluated like weights: with the average as weights, the loss has the same bits.
#[test]
fn its_loss_is_that_of_a_model_with_these_weights() {
    for ranks in [&[][..], &[TWO, SHARDED]] {
        for dtype in DTYPES {
            let overrides = [&[KEPT, EVALUATED, dtype], ranks].concat();
            let (setup, seen) = (Setup::new(&overrides), train(&overrides));
            let last = &seen.evaluations[STEPS - 1];
            let mut state = seen.last().clone();
            for (name, average) in seen.last().iter().filter_map(|(k, v)| Some((k.strip_prefix("ema.")?, v)))
            {
                state.insert(name.to_owned(), average.clone());
            }
            let (_folder, loaded) = save(&setup, &state, |name| Some(name.to_owned()));
            let found = setup.on_ranks(
                |_| setup.plan.clone(),
                |rank| {
                    let loaded = (rank.engine().comm.rank() == 0).then_some(&loaded);
                    rank.restore(STEPS as u64, loaded)?;
                    rank.evaluate(false, |_, _| {})
                },
            );
            for found in found.unwrap() {
                assert_eq!(found.sets, last.ema, "{dtype} {ranks:?}");
                assert_eq!(found.ema, last.ema, "{dtype} {ranks:?}");
            }
        }
    }
}

/// A checkpoint has whole tensors under the names of parameters, which any number of ranks restores to the
/// bit.
#[test]
fn a_checkpoint_is_resumed_by_any_number_of_ranks() {
    for dtype in DTYPES {
        let from = [KEPT, dtype, TWO, SHARDED];
        let (setup, seen) = (Setup::new(&from), train(&from));
        let half = &seen.states[STEPS - 3];
        let (_folder, loaded) = save(&setup, half, |name| Some(name.to_owned()));
        for ranks in RANKS {
            let setup = Setup::new(&[&[KEPT, dtype], ranks].concat());
            let goes_on = *ranks == [TWO, SHARDED] || *ranks == [TWO];
            let states = setup.on_ranks(
                |_| setup.plan.clone(),
                |rank| {
                    let loaded = (rank.engine().comm.rank() == 0).then_some(&loaded);
                    rank.restore(STEPS as u64 - 2, loaded)?;
                    let mut states = vec![state(rank)?];
                    for _ in 0..2 {
                        rank.train_step()?;
                        states.push(state(rank)?);
                    }
                    Ok(states)
                },
            );
            let states = states.unwrap().remove(0);
            assert!(states[0] == *half, "{dtype} {ranks:?}");
            assert_eq!(states[2] == *seen.last(), goes_on, "{dtype} {ranks:?}");
        }
        let (_folder, without) =
            save(&setup, half, |name| (!name.starts_with("ema.")).then(|| name.to_owned()));
        let alone = Setup::new(&[KEPT, dtype]);
        let refused =
            alone.on_ranks(|_| alone.plan.clone(), |rank| rank.restore(STEPS as u64 - 2, Some(&without)));
        assert!(refused.unwrap_err().message().contains("no tensor ema."));
    }
}

/// After a step that is not finite, the average is unchanged.
#[test]
fn a_step_that_is_not_finite_leaves_it_alone() {
    let setup = Setup::new(&[KEPT]);
    let states = setup.on_ranks(
        |_| setup.plan.clone(),
        |rank| {
            rank.train_step()?;
            let slot = rank.engine().state.slot(FlatBuffer::Params.param("head"))?;
            let before = state(rank)?;
            rank.engine_mut().state.update::<f32>(slot, |head| head[0] = f32::NAN)?;
            assert!(rank.train_step()?.bad.is_some());
            Ok((before, state(rank)?))
        },
    );
    let (before, after) = states.unwrap().remove(0);
    for (name, average) in before.iter().filter(|(name, _)| name.starts_with("ema.")) {
        assert!(after[name] == *average, "{name}");
    }
}
