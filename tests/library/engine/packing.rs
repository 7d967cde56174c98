//! Rows of packed documents: each target counts once, whatever the padding, and however a step is divided.

use crate::engine::harness::{Setup, relative};

const STEPS: usize = 4;

/// Stories have some 200 tokens each.
const STORIES: [&str; 5] = [
    "data.corpus=stories",
    "data.tokenizer=stories",
    "data.train_tokens=20000",
    "data.validation_tokens=2000",
    "training.seq_len=512",
];

const PACKED: [&str; 3] = ["data.packing=best_fit", "training.global_batch_size=8", "model.dropout=0.1"];

fn setup(keys: &[&[&str]]) -> Setup {
    Setup::new(&[&STORIES[..], &keys.concat()].concat())
}

/// If every logit is 0, every target has the loss of a uniform guess, and so has their mean. Padding must not
/// be counted.
#[test]
fn the_loss_is_the_mean_over_targets_and_not_over_padding() {
    for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
        let zero =
            ["model.head_init=zero", "model.tie_embeddings=false", "training.local_batch_size=4", dtype];
        let setup = setup(&[&PACKED, &zero]);
        let packed = setup.dataset.packed.expect("documents were packed");
        assert!(packed.padding > 0.005 && packed.documents > packed.rows, "{packed:?}");
        let loss = setup.train_one(1).losses()[0];
        let uniform = (setup.plan.model.vocab_size as f64).ln();
        assert!(relative(loss, uniform) < 1e-6, "{dtype}: {loss}, {uniform}");
    }
}

#[test]
fn however_it_is_divided_the_steps_are_the_same() {
    let train = |way: &[&str]| setup(&[&PACKED, way]).train(STEPS).remove(0);
    let first = train(&["training.local_batch_size=8"]);
    assert!(first.bad.is_none() && first.losses()[STEPS - 1] < first.losses()[0]);
    for way in [
        &["training.local_batch_size=2"][..],
        &["training.local_batch_size=4", "parallelism.world_size=2"],
        &["training.local_batch_size=1", "parallelism.world_size=4", "parallelism.shard=optimizer"],
        &["training.local_batch_size=4", "engine.fused=false"],
    ] {
        let other = train(way);
        for (a, b) in first.losses().into_iter().zip(other.losses()) {
            assert!(relative(b, a) < 1e-5, "{way:?}: {b}, {a}");
        }
        assert!(relative(other.val_loss, first.val_loss) < 1e-5, "{way:?}");
    }
}

/// Held-out windows are those of a stream whose documents are masked from each other.
#[test]
fn held_out_windows_do_not_depend_on_the_packing() {
    let loss = |keys: &[&str]| setup(&[keys]).train_one(0).val_loss;
    let packed = loss(&["data.packing=best_fit"]);
    assert_eq!(packed.to_bits(), loss(&["data.cross_documents=false"]).to_bits());
    assert_ne!(packed.to_bits(), loss(&[]).to_bits());
}
