//! A model that is large enough for its data memorizes it.

use crate::engine::harness::{Setup, get};
use std::sync::Arc;
use xrun::data::{Loader, LoaderSpec, Ramp, Shuffle};
use xrun::ir::BatchSlot;

/// Random tokens have no structure, so a model can only predict them by storing them.
#[test]
fn a_batch_is_memorized() {
    let steps = 120;
    let setup = Setup::new(&["training.steps=120", "training.max_norm=0", "optimizer.weight_decay=0"]);
    let batch = &setup.plan.batch;
    let spec = LoaderSpec {
        seq_len: batch.seq_len,
        local_batch_size: batch.micro,
        accumulation: 1,
        ramp: Ramp::NONE,
        world_size: 1,
        rank: 0,
        cross_documents: true,
        shuffle: Shuffle::All,
        seed: 1,
        mixture: Vec::new(),
        start_step: 0,
    };
    let data = Loader::new(Arc::clone(&setup.dataset), spec).unwrap().next().unwrap();
    // Earlier tokens determine the next one only if no two sequences begin alike.
    let mut first: Vec<u32> = data.tokens.chunks(batch.seq_len).map(|sequence| sequence[0]).collect();
    first.sort_unstable();
    first.dedup();
    assert_eq!(first.len(), batch.micro);

    let mut engine = setup.engine();
    for (name, values) in [
        (BatchSlot::Tokens, &data.tokens),
        (BatchSlot::Targets, &data.targets),
        (BatchSlot::Positions, &data.positions),
        (BatchSlot::Sequences, &data.sequences),
    ] {
        let slot = engine.state.slot(name).unwrap();
        engine.state.write(slot, values).unwrap();
    }
    let mut losses = Vec::new();
    for _ in 0..steps {
        engine.run(setup.programs.micro_step(0, 1)).unwrap();
        engine.run(&setup.programs.step_end).unwrap();
        losses.push(get(&engine, "control.loss")[0]);
    }
    let vocab = setup.plan.model.vocab_size;
    assert!((losses[0] - (vocab as f64).ln()).abs() < 0.3, "begins at the entropy: {}", losses[0]);

    let logits = engine.inspect(&setup.programs.evaluate, "head.logits.1").unwrap();
    let guesses = logits.chunks(vocab).map(|row| {
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        best.map_or(u32::MAX, |(token, _)| token as u32)
    });
    let right = guesses.zip(&data.targets).filter(|(guess, target)| guess == *target).count();
    let share = right as f64 / data.targets.len() as f64;
    assert!(share > 0.99, "{right} of {}, loss {}", data.targets.len(), losses[steps - 1]);
}
