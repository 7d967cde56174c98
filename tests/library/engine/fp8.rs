//! Training with products of 8-bit floats: bits, cuts of a batch, checkpoints, models of every form.

use crate::engine::harness::{Setup, Trained, relative};
use crate::engine::optimizers::meta;
use xrun::checkpoint::{Store, newest};

const STEPS: usize = 7;

const FP8: &str = "training.dtype=fp8";

/// The products of the blocks, which a wide model has by default.
const BLOCKS: &str = "fp8.products=[\"attention\", \"feed_forward\"]";

/// Also the products of a head whose weight is the embedding.
const TIED_HEAD: [&str; 2] =
    ["fp8.products=[\"attention\", \"feed_forward\", \"head\"]", "model.tie_embeddings=true"];

fn setup(settings: &[&str]) -> Setup {
    let says = settings.iter().any(|setting| setting.starts_with("fp8.products="));
    let blocks = if says { None } else { Some(BLOCKS) };
    let settings = settings.iter().copied();
    Setup::new(&[FP8].into_iter().chain(blocks).chain(settings).collect::<Vec<_>>())
}

#[test]
fn bits_do_not_depend_on_recomputation_or_placement() {
    for with in [&[][..], &TIED_HEAD] {
        let setup = |settings: &[&str]| setup(&[with, settings].concat());
        let whole = setup(&["activation_checkpoint.mode=none"]).train_one(STEPS);
        for settings in [
            ["activation_checkpoint.mode=emitted", "engine.threads=1"],
            ["activation_checkpoint.mode=selective", "engine.placement=caching"],
            ["activation_checkpoint.mode=full", "engine.poison=true"],
        ] {
            let other = setup(&settings).train_one(STEPS);
            assert_eq!(whole.difference(&other), None, "{with:?} {settings:?}");
        }
    }
}

#[test]
fn the_loss_follows_that_of_bf16() {
    let ways: [&[&str]; 9] = [
        &[],
        &TIED_HEAD,
        &["fp8.products=[\"head\"]", "training.z_loss=1e-3"],
        &["fp8.gradients=e4m3"],
        &["fp8.scaling=current"],
        &["engine.fused=false"],
        &["fp8.products=[\"attention\"]"],
        &["optimizer.name=muon"],
        &["ema.decay=0.9"],
    ];
    for settings in ways {
        let others: Vec<&str> =
            settings.iter().copied().filter(|setting| !setting.starts_with("fp8.")).collect();
        let bf16 = Setup::new(&[&["training.dtype=bf16"], &others[..]].concat()).train_one(STEPS);
        let fp8 = setup(settings).train_one(STEPS);
        for (step, (a, b)) in fp8.losses().into_iter().zip(bf16.losses()).enumerate() {
            assert!(relative(a, b) < 0.01, "{settings:?}, step {}: {a}, {b}", step + 1);
        }
        assert!(fp8.difference(&bf16).is_some(), "{settings:?} computes as bf16 does");
    }
}

/// Scales come from the whole batch, so the first step has the same forward however it is cut. Later ones
/// differ by the rounding of sums, which 8-bit floats enlarge.
#[test]
fn scales_do_not_depend_on_how_a_batch_is_cut() {
    let cuts: [&[&str]; 4] = [
        &["training.local_batch_size=4", "training.global_batch_size=8"],
        &["training.local_batch_size=2", "training.global_batch_size=8"],
        &["training.local_batch_size=4", "parallelism.world_size=2"],
        &["training.local_batch_size=4", "parallelism.world_size=2", "parallelism.shard=optimizer"],
    ];
    for with in [&[][..], &TIED_HEAD] {
        let whole = setup(with).train_one(STEPS);
        let train = |cut: &&[&str]| setup(&[with, *cut].concat()).train(STEPS).remove(0);
        let trained: Vec<Trained> = cuts.iter().map(train).collect();
        for (cut, trained) in cuts.iter().zip(&trained) {
            let first = |curve: &[(f32, f32)]| curve[0];
            let ((a, a_norm), (b, b_norm)) = (first(&trained.curve), first(&whole.curve));
            assert!(relative(a.into(), b.into()) < 1e-6, "{with:?} {cut:?}: {a}, {b}");
            assert!(relative(a_norm.into(), b_norm.into()) < 1e-5, "{with:?} {cut:?}: {a_norm}, {b_norm}");
            for (a, b) in trained.losses().into_iter().zip(whole.losses()) {
                assert!(relative(a, b) < 2e-3, "{with:?} {cut:?}: {a}, {b}");
            }
        }
        let [whole, divided] = [&trained[2], &trained[3]].map(|trained| &trained.curve);
        assert_eq!(whole, divided, "{with:?}: a divided optimizer changes no bit");
    }
}

/// Trains `from` steps of one setup and saves, then continues with another up to [`STEPS`]. Returns losses
/// and norms of the steps after the checkpoint.
fn continued(before: &Setup, from: u64, after: &Setup) -> Vec<(f32, f32)> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let saved = before.on_ranks(
        |_| before.plan.clone(),
        |rank| {
            (0..from).try_for_each(|_| rank.train_step().map(drop))?;
            if rank.comm().rank() == 0 {
                Store::open(folder.path(), 1)?.save(&meta(from), &rank.snapshot())?;
                return rank.end_snapshot();
            }
            rank.answer_snapshot()
        },
    );
    saved.expect("it trains and saves");
    let loaded = newest(folder.path()).expect("a checkpoint");
    let curves = after.on_ranks(
        |_| after.plan.clone(),
        |rank| {
            let zero = rank.comm().rank() == 0;
            rank.restore(from, loaded.as_ref().filter(|_| zero))?;
            Ok(Trained::new(rank, STEPS - from as usize)?.curve)
        },
    );
    curves.expect("it continues").remove(0)
}

#[test]
fn a_resumed_run_has_the_bits_of_one_that_went_on() {
    let ways: [&[&str]; 4] = [
        &[],
        &TIED_HEAD,
        &["training.local_batch_size=4", "parallelism.world_size=2"],
        &["training.local_batch_size=4", "parallelism.world_size=2", "parallelism.shard=optimizer"],
    ];
    for way in ways {
        let setup = setup(way);
        let whole = setup.train(STEPS).remove(0).curve;
        // Among the steps whose scales are measured before, and after them.
        for from in [2, 5] {
            let rest = continued(&setup, from, &setup);
            assert_eq!(rest, whole[from as usize..], "{way:?} from step {from}");
        }
    }
}

/// A checkpoint of a bf16 run has no scales: they are measured before the first step.
#[test]
fn checkpoints_are_exchanged_with_bf16() {
    let losses =
        |curve: Vec<(f32, f32)>| curve.into_iter().map(|(loss, _)| f64::from(loss)).collect::<Vec<_>>();
    for tied in ["model.tie_embeddings=false", "model.tie_embeddings=true"] {
        let (fp8, bf16) = (setup(&[TIED_HEAD[0], tied]), Setup::new(&["training.dtype=bf16", tied]));
        let whole = bf16.train_one(STEPS).losses();
        for (before, after) in [(&fp8, &bf16), (&bf16, &fp8)] {
            let rest = losses(continued(before, 5, after));
            for (a, b) in rest.iter().zip(&whole[5..]) {
                assert!(relative(*a, *b) < 0.01, "{tied}: {rest:?}, {whole:?}");
            }
        }
    }
}

#[test]
fn every_text_of_a_family_trains_in_fp8() {
    for family in ["llama", "qwen3", "gpt2"] {
        let definition = format!("model.definition={family}");
        let settings = ["model.n_kv_heads=4", &definition];
        let bf16 = Setup::new(&[&["training.dtype=bf16"], &settings[..]].concat()).train_one(3);
        let setup = setup(&settings);
        let fp8 = setup.train_one(3);
        for (a, b) in fp8.losses().into_iter().zip(bf16.losses()) {
            assert!(relative(a, b) < 0.01, "{family}: {a}, {b}");
        }
        let weights = &setup.programs.state.fp8.as_ref().expect("an fp8 state").weights;
        let blocks = setup.plan.graph.nodes.iter().filter_map(|node| node.block).max();
        assert!(weights.len() > 4 * blocks.unwrap_or(0), "{family}: {} weights", weights.len());
    }
}

/// A number that is not finite would become the largest of its format, and the loss would not show it.
#[test]
fn a_number_that_is_not_finite_ends_the_run() {
    let setup = setup(&[]);
    for value in [f64::INFINITY, f64::NAN] {
        let report = setup.on_ranks(
            |_| setup.plan.clone(),
            |rank| {
                (0..5).try_for_each(|_| rank.train_step().map(drop))?;
                let state = &mut rank.engine_mut().state;
                let slot = state.layout().slot_by_text("params.blocks.1.ffn_norm").expect("a norm");
                let mut norm = state.values(slot)?;
                norm[3] = value;
                state.set_values(slot, &norm)?;
                rank.train_step()
            },
        );
        let bad = report.expect("it runs").remove(0).bad.expect("a bad step");
        assert!(format!("{bad:?}").contains("blocks.1"), "{bad:?}");
    }
}

#[test]
fn sizes_that_no_product_takes_are_refused() {
    let error = Setup::try_new(&[FP8, "training.seq_len=9", "training.local_batch_size=1"]).err();
    let error = error.expect("9 tokens are no multiple of 16");
    assert!(error.message().contains("the tokens of a micro-step (9) must be multiples of 16"), "{error}");
    let error = Setup::try_new(&[FP8, "fp8.bf16_first=1", "fp8.bf16_last=1"]).err().expect("no block");
    assert!(error.message().contains("the model has 2 blocks"), "{error}");
}
