//! The training loss of each source of a mixture: exact, the same however a step is divided, and without
//! effect on the training.

use crate::engine::harness::{Setup, relative};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use xrun::exec::Section;
use xrun::model::Programs;

const STEPS: usize = 5;
const SOURCES: [&str; 3] = ["code", "news", "web"];

/// Returns the keys of a mixture whose smallest source has a sequence in every other step of eight.
fn mixture() -> Vec<String> {
    static TEXTS: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = TEXTS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        for (name, words) in SOURCES.into_iter().zip(["let x = y; ", "It rains. ", "a list of pages "]) {
            let mut lines = String::new();
            for number in 0..60 {
                writeln!(lines, "{{\"text\": \"{}{number}\"}}", words.repeat(1 + number % 3)).unwrap();
            }
            std::fs::write(folder.path().join(format!("{name}.jsonl")), lines).unwrap();
        }
        folder
    });
    let source = |(name, weight): (&str, f64)| {
        let path = folder.path().join(format!("{name}.jsonl"));
        [
            format!("data.sources.{name}.path={}", path.display()),
            format!("data.sources.{name}.weight={weight}"),
        ]
    };
    let sources = SOURCES.into_iter().zip([0.5, 0.0625, 0.4375]).flat_map(source);
    sources.chain(["data.corpus=mixture".to_owned(), "data.validation=0.2".to_owned()]).collect()
}

fn setup(keys: &[&str]) -> Setup {
    let mixture = mixture();
    let all: Vec<&str> = mixture.iter().map(String::as_str).chain(keys.iter().copied()).collect();
    Setup::new(&all)
}

/// Returns the loss of every step, in total and by source.
fn losses(setup: &Setup) -> Vec<(f32, BTreeMap<String, f32>)> {
    let train = |rank: &mut xrun::train::Rank| -> xrun::Result<Vec<_>> {
        let report = |_| rank.train_step().map(|report| (report.loss, report.source_losses));
        (0..STEPS).map(report).collect()
    };
    let mut ranks = setup.on_ranks(|_| Arc::clone(&setup.plan), train).unwrap();
    assert!(ranks.iter().all(|rank| *rank == ranks[0]));
    ranks.remove(0)
}

/// Returns the targets of a step by source, counted in the text.
fn targets(setup: &Setup, step: u64) -> BTreeMap<String, f64> {
    let sequences = setup.plan.loader(0, 0).sequences(&setup.dataset, step, 0..usize::MAX).unwrap();
    let mut targets = BTreeMap::new();
    for sequence in sequences {
        let own: usize = sequence.pieces.iter().map(|piece| piece.tokens.len() - 1).sum();
        *targets.entry(sequence.source).or_default() += own as f64;
    }
    targets
}

/// Weighted by targets, the losses of the sources are the loss of the step, and a source has one exactly in
/// the steps that read it.
#[test]
fn the_losses_of_sources_add_up_however_a_step_is_divided() {
    let base = ["training.global_batch_size=8"];
    let terms = ["training.z_loss=1e-3", "training.label_smoothing=0.1"];
    let packed = ["data.packing=best_fit", "training.seq_len=64"];
    let ramp = ["training.batch_ramp=[[2, 4]]"];
    let mut blanks = 0;
    for keys in [&[][..], &terms, &packed, &ramp] {
        let mut first: Option<Vec<(f32, BTreeMap<String, f32>)>> = None;
        for way in [
            &["training.local_batch_size=4"][..],
            &["training.local_batch_size=1"],
            &["training.local_batch_size=2", "parallelism.world_size=2"],
            &["training.local_batch_size=2", "engine.fused=false", "activation_checkpoint.mode=full"],
        ] {
            let setup = setup(&[&base[..], keys, way].concat());
            let found = losses(&setup);
            for (step, (loss, by_source)) in (0..).zip(&found) {
                let targets = targets(&setup, step);
                assert!(by_source.keys().eq(targets.keys()), "{keys:?} {way:?}: {by_source:?} {targets:?}");
                blanks += usize::from(by_source.len() < SOURCES.len());
                let sum: f64 = by_source.iter().map(|(name, loss)| f64::from(*loss) * targets[name]).sum();
                let mean = sum / targets.values().sum::<f64>();
                assert!(relative(mean, (*loss).into()) < 3e-7, "{keys:?} {way:?}: {mean}, {loss}");
            }
            let first = first.get_or_insert_with(|| found.clone());
            for ((_, a), (_, b)) in first.iter().zip(&found) {
                for (name, loss) in a {
                    let apart = relative(b[name].into(), (*loss).into());
                    assert!(apart < 1e-5, "{keys:?} {way:?}: {name} {apart:e}");
                }
            }
        }
    }
    assert!(blanks > 0, "no step was without a source");
}

/// The losses are those of the rows of each source, as the program of evaluations computes them.
#[test]
fn the_losses_of_sources_are_those_of_their_rows() {
    for keys in [&["training.dtype=bf16"][..], &["data.packing=best_fit", "training.seq_len=64"]] {
        let setup = setup(&[&["training.local_batch_size=16"], keys].concat());
        let compare = |rank: &mut xrun::train::Rank| {
            let batch = rank.coming_batch()?;
            let mut rows = Vec::new();
            let losses = format!("head.losses[0..{}]", batch.tokens.len());
            rank.inspect_batch(&batch, &[&losses], usize::MAX, |_, found| rows.extend(found))?;
            Ok((batch, rows, rank.train_step()?.source_losses))
        };
        let (batch, rows, found) = setup.on_ranks(|_| Arc::clone(&setup.plan), compare).unwrap().remove(0);
        let seq_len = setup.plan.batch.seq_len;
        assert_eq!((rows.len(), found.len()), (16 * seq_len, SOURCES.len()));
        // Every window of 16 bytes shows its source.
        let source_in_text = |tokens: &[u32]| match ['=', 'I'].map(|mark| tokens.contains(&mark.into())) {
            [true, _] => 0,
            [_, true] => 1,
            _ => 2,
        };
        let in_text: Vec<u32> = batch.tokens.chunks(seq_len).map(source_in_text).collect();
        assert_eq!(batch.sources, in_text, "{keys:?}");
        for (at, name) in (0..).zip(SOURCES) {
            let own = batch.sources.iter().zip(rows.chunks(seq_len).zip(batch.targets.chunks(seq_len)));
            let own = own.filter(|(source, _)| **source == at).flat_map(|(_, (rows, targets))| {
                rows.iter().zip(targets).filter(|(_, target)| **target != u32::MAX).map(|(loss, _)| *loss)
            });
            let own: Vec<f64> = own.collect();
            let mean = own.iter().sum::<f64>() / own.len() as f64;
            assert!(relative(found[name].into(), mean) < 1e-6, "{keys:?} {name}: {} {mean}", found[name]);
        }
    }
}

/// Only the metrics read what the op writes.
#[test]
fn without_the_op_the_training_has_the_same_bits() {
    for keys in
        [&["training.local_batch_size=8"][..], &["training.local_batch_size=2", "parallelism.world_size=2"]]
    {
        let with = setup(&[&["training.global_batch_size=8"], keys].concat());
        let mut programs = Programs::clone(&with.programs);
        for (_, section) in &mut programs.micro {
            let mut program = section.program.clone();
            let nodes = program.nodes.len();
            program.nodes.retain(|node| node.op.name() != "sum_by_group");
            assert_eq!(program.nodes.len(), nodes - 1);
            *section = Section::new(program);
        }
        let without = Setup { programs: Arc::new(programs), ..with.clone() };
        assert_eq!(with.train(STEPS)[0].difference(&without.train(STEPS)[0]), None);
    }
}

#[test]
fn a_corpus_of_one_source_records_and_uploads_nothing_more() {
    let setup = Setup::new(&["training.local_batch_size=4"]);
    let listing = setup.listing();
    assert!(!listing.contains("sum_by_group") && !listing.contains("source"), "{listing}");
    assert!(losses(&setup).iter().all(|(_, by_source)| by_source.is_empty()));
    let mixture = self::setup(&["training.local_batch_size=4"]).listing();
    assert!(mixture.contains("sum_by_group") && mixture.contains("batch.sources"));
}
