//! Scores of requests: they are those of the loss and of a softmax, and they have the same bits whatever a
//! request is batched with, whatever the order, and wherever it lies.

use crate::engine::harness::{Setup, set};
use crate::engine::models::MODELS;
use std::collections::BTreeMap;
use std::sync::Arc;
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::Engine;
use xrun::ir::ControlSlot;
use xrun::model::ScoringPrograms;
use xrun::scoring::{Grouping, Request, Score, Scorer};
use xrun::train::{InitialValues, initialize, refresh_compute_copy};

/// A model of its initial weights that scores with so many threads.
fn scorer(setup: &Setup, threads: usize) -> Scorer {
    let plan = &setup.plan;
    let programs = ScoringPrograms::new(plan).unwrap();
    let pool = Arc::new(Pool::new(threads).unwrap());
    let (placement, arena) = (plan.execution.placement, programs.arena_bytes());
    let mut engine =
        Engine::new(pool, &programs.state, Arc::new(SingleRank), placement, arena, true).unwrap();
    initialize(&mut engine, &plan.seeds, &InitialValues::new(1)).unwrap();
    refresh_compute_copy(&mut engine).unwrap();
    Scorer::new(engine, programs, plan.model.vocab_size)
}

/// Requests of `lens` tokens each, the longest with a short continuation and the shortest with a long one.
fn requests(lens: impl IntoIterator<Item = usize>) -> Vec<Request> {
    let request = |(i, len): (usize, usize)| Request {
        tokens: (0..len).map(|t| ((t * t + 31 * t + 7 * i) % 251) as u32).collect(),
        start: if i % 2 == 0 { len - 1 } else { 1 + i % (len - 1) },
    };
    lens.into_iter().enumerate().map(request).collect()
}

fn bits(score: Score) -> (u64, bool) {
    (score.log_prob.to_bits(), score.greedy)
}

/// Scores requests, and then again in other groups and orders, which must change no bit.
fn check_permutations(setup: &Setup, requests: &[Request], groupings: &[Grouping], what: &str) {
    let mut scorer = scorer(setup, 2);
    let (scores, _) = scorer.score(requests, Grouping::Packed, |_| Ok(())).unwrap();
    assert!(scores.iter().all(|score| score.log_prob < 0.0), "{what}: {scores:?}");
    let distinct: BTreeMap<_, _> = scores.iter().map(|score| (score.log_prob.to_bits(), ())).collect();
    assert!(distinct.len() > scores.len() / 2, "{what}: scores of different requests differ");
    for (turn, &grouping) in groupings.iter().enumerate() {
        // Reversed, rotated, and so that neighbors are far apart.
        let mut order: Vec<usize> = (0..requests.len()).rev().collect();
        order.rotate_left(turn % requests.len());
        order.sort_by_key(|request| request % (turn + 2));
        let shuffled: Vec<Request> = order.iter().map(|&request| requests[request].clone()).collect();
        let (again, usage) = scorer.score(&shuffled, grouping, |_| Ok(())).unwrap();
        assert_eq!(usage.inputs, requests.iter().map(|r| r.tokens.len() - 1).sum::<usize>());
        for (&request, again) in order.iter().zip(again) {
            let len = requests[request].tokens.len();
            assert_eq!(bits(again), bits(scores[request]), "{what}, {grouping:?}: {len} tokens");
        }
    }
}

#[test]
fn neighbors_order_and_places_change_no_bit() {
    let groupings =
        [Grouping::Apart { batch: 7 }, Grouping::PackedUpTo { batch: 7 }, Grouping::PackedUpTo { batch: 64 }];
    for (name, keys) in MODELS {
        for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
            let setup = Setup::new(&[keys, &["training.seq_len=190", dtype]].concat());
            let what = format!("{name}, {dtype}");
            // Around the blocks of 48 queries, whole contexts, and many that share rows.
            let lens = [2, 191, 48, 49, 50, 97, 98, 3, 20, 31, 47, 145, 144, 60, 5, 9, 12];
            let requests = requests(lens);
            check_permutations(&setup, &requests, &groupings, &what);
            check_permutations(&setup, &requests[..3], &[Grouping::Apart { batch: 1 }], &what);
        }
    }
    // More keys than the 256 of a block. If documents began at any multiple of 16, the second would begin at 496,
    // in a block of queries of both, whose blocks of keys would cut its first keys at 512.
    for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
        let keys = ["training.seq_len=1000", "data.validation_tokens=2000", "model.n_layers=1", dtype];
        let setup = Setup::new(&keys);
        let requests = requests([491, 481, 300, 290, 20]);
        check_permutations(&setup, &requests, &[Grouping::Apart { batch: 1 }], dtype);
    }
}

#[test]
fn two_ranks_and_other_threads_score_as_one() {
    let setup = Setup::new(&["training.seq_len=100"]);
    let requests = requests((2..60).step_by(3));
    let (all, _) = scorer(&setup, 2).score(&requests, Grouping::Packed, |_| Ok(())).unwrap();
    let halves = requests.chunks(requests.len() / 2).zip([1, 3]).flat_map(|(half, threads)| {
        scorer(&setup, threads).score(half, Grouping::Packed, |_| Ok(())).unwrap().0
    });
    assert_eq!(all, halves.collect::<Vec<_>>());
}

/// The score of a whole window is the loss that the program of evaluations computes.
#[test]
fn scores_are_losses() {
    for (name, keys) in MODELS {
        let setup = Setup::new(&[keys, &["training.seq_len=60", "training.local_batch_size=1"]].concat());
        let requests = requests([61]);
        let request = Request { start: 1, ..requests[0].clone() };
        let mut engine = setup.engine();
        let numbers = |tokens: &[u32]| tokens.iter().map(|&token| f64::from(token)).collect::<Vec<_>>();
        set(&mut engine, "batch.tokens", &numbers(&request.tokens[..60]));
        set(&mut engine, "batch.targets", &numbers(&request.tokens[1..]));
        set(&mut engine, "batch.positions", &(0..60).map(f64::from).collect::<Vec<_>>());
        engine.run(&setup.programs.evaluate).unwrap();
        let loss = engine.state.values(engine.state.slot(ControlSlot::EvalLoss).unwrap()).unwrap()[0];
        let (scores, _) = scorer(&setup, 2).score(&[request], Grouping::Packed, |_| Ok(())).unwrap();
        let relative = (scores[0].log_prob + loss).abs() / loss;
        assert!(relative < 1e-6, "{name}: {} for a loss of {loss}", scores[0].log_prob);
    }
}

/// Over all tokens after a context, probabilities add up to 1, and the most probable token alone is greedy.
#[test]
fn probabilities_add_up_and_the_largest_is_greedy() {
    for keys in [&["training.dtype=fp32"][..], &["model.logit_cap=3", "model.logit_scale=2"]] {
        let setup = Setup::new(&[keys, &["training.seq_len=48"]].concat());
        let words = setup.plan.model.vocab_size as u32;
        let requests: Vec<Request> =
            (0..words).map(|word| Request { tokens: vec![5, 100, 7, word], start: 3 }).collect();
        let (scores, _) = scorer(&setup, 2).score(&requests, Grouping::Packed, |_| Ok(())).unwrap();
        let total: f64 = scores.iter().map(|score| score.log_prob.exp()).sum();
        assert!((total - 1.0).abs() < 1e-4, "{keys:?}: {total}");
        let best = scores.iter().map(|score| score.log_prob).fold(f64::NEG_INFINITY, f64::max);
        let greedy: Vec<&Score> = scores.iter().filter(|score| score.greedy).collect();
        assert_eq!(greedy.iter().map(|score| score.log_prob).collect::<Vec<_>>(), [best], "{keys:?}");
    }
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let mut scorer = scorer(&Setup::new(&["training.seq_len=50"]), 1);
    let fits = Request { tokens: vec![1; 51], start: 50 };
    let mut refused = |request: Request| {
        let requests = [fits.clone(), request];
        scorer.score(&requests, Grouping::Packed, |_| Ok(())).unwrap_err().to_string()
    };
    let long = refused(Request { tokens: vec![1; 52], start: 50 });
    assert!(long.contains("request 2: it has 52 tokens, but the model reads 50"), "{long}");
    let empty = refused(Request { tokens: vec![1, 2], start: 2 });
    assert!(empty.contains("starts at token 2 of 2"), "{empty}");
    let first = refused(Request { tokens: vec![1, 2], start: 0 });
    assert!(first.contains("at least one token must come before it"), "{first}");
    let foreign = refused(Request { tokens: vec![1, 99_999], start: 1 });
    assert!(foreign.contains("token 99999 is outside the model's vocabulary"), "{foreign}");
    let (scores, usage) = scorer.score(&[], Grouping::Packed, |_| Ok(())).unwrap();
    assert!(scores.is_empty() && usage.batches == 0);
}
