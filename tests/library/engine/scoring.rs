//! Scores of requests and generated texts: they are those of the loss and of a softmax, and they are the same
//! whatever they are batched with, whatever the order, and wherever they lie.

use crate::engine::harness::{Setup, set};
use crate::engine::models::MODELS;
use std::collections::BTreeSet;
use std::sync::Arc;
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::Engine;
use xrun::ir::ControlSlot;
use xrun::model::ScoringPrograms;
use xrun::scoring::{Grouping, Scorer, TextEnds};
use xrun::tasks::{Request, Score};
use xrun::train::{InitialValues, initialize, refresh_compute_copy};

/// A model of its initial weights that scores with so many threads, and generates texts.
fn scorer(setup: &Setup, threads: usize) -> Scorer {
    let plan = &setup.plan;
    let programs = ScoringPrograms::new(plan, true).unwrap();
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
    let request = |(i, len): (usize, usize)| {
        let mut context: Vec<u32> = (0..len).map(|t| ((t * t + 31 * t + 7 * i) % 251) as u32).collect();
        let continuation = context.split_off(if i % 2 == 0 { len - 1 } else { 1 + i % (len - 1) });
        Request { context, continuation }
    };
    lens.into_iter().enumerate().map(request).collect()
}

/// Each request as an item.
fn alone(requests: &[Request]) -> Vec<Vec<Request>> {
    requests.iter().map(|request| vec![request.clone()]).collect()
}

/// Items of four choices after a context of `lens` tokens.
fn choices(lens: impl IntoIterator<Item = usize>) -> Vec<Vec<Request>> {
    let item = |(i, len): (usize, usize)| {
        let context: Vec<u32> = (0..len).map(|t| ((t * t + 13 * t + 5 * i) % 251) as u32).collect();
        let choice =
            |c: usize| (0..1 + (3 * i + 7 * c) % 11).map(move |t| ((t * 17 + 50 * c + i) % 251) as u32);
        (0..4).map(|c| Request { context: context.clone(), continuation: choice(c).collect() }).collect()
    };
    lens.into_iter().enumerate().map(item).collect()
}

fn score(scorer: &mut Scorer, items: &[Vec<Request>], grouping: Grouping) -> Vec<Vec<Score>> {
    let items: Vec<&[Request]> = items.iter().map(|item| &item[..]).collect();
    scorer.score(&items, grouping, |_| Ok(())).unwrap().0
}

fn bits(score: &Score) -> (u64, bool) {
    (score.log_prob.to_bits(), score.is_greedy)
}

/// Scores items, and then again in other groups and orders, which must change no bit.
fn check_permutations(setup: &Setup, items: &[Vec<Request>], groupings: &[Grouping], what: &str) {
    let mut scorer = scorer(setup, 2);
    let scores = score(&mut scorer, items, Grouping::Packed);
    assert!(scores.iter().flatten().all(|score| score.log_prob < 0.0), "{what}: {scores:?}");
    let distinct: BTreeSet<u64> = scores.iter().flatten().map(|score| score.log_prob.to_bits()).collect();
    assert!(distinct.len() > scores.len() / 2, "{what}: scores of different requests differ");
    for (turn, &grouping) in groupings.iter().enumerate() {
        // Reversed, rotated, and so that neighbors are far apart.
        let mut order: Vec<usize> = (0..items.len()).rev().collect();
        order.rotate_left(turn % items.len());
        order.sort_by_key(|item| item % (turn + 2));
        let shuffled: Vec<Vec<Request>> = order.iter().map(|&item| items[item].clone()).collect();
        for (&item, again) in order.iter().zip(score(&mut scorer, &shuffled, grouping)) {
            let of = |scores: &[Score]| scores.iter().map(bits).collect::<Vec<_>>();
            assert_eq!(of(&again), of(&scores[item]), "{what}, {grouping:?}: item {item}");
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
            let items = [alone(&requests(lens)), choices([1, 30, 44, 90, 170, 180])].concat();
            check_permutations(&setup, &items, &groupings, &what);
            check_permutations(&setup, &items[..3], &[Grouping::Apart { batch: 1 }], &what);
        }
    }
    // More keys than the 256 of a block. If documents began at any multiple of 16, the second would begin at
    // 496, in a block of queries of both, whose blocks of keys would cut its first keys at 512.
    for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
        let keys = ["training.seq_len=1000", "data.validation_tokens=2000", "model.n_layers=1", dtype];
        let setup = Setup::new(&keys);
        let items = [alone(&requests([491, 481, 300, 290, 20])), choices([400])].concat();
        check_permutations(&setup, &items, &[Grouping::Apart { batch: 1 }], dtype);
    }
}

#[test]
fn two_ranks_and_other_threads_score_as_one() {
    let setup = Setup::new(&["training.seq_len=100"]);
    let items = [alone(&requests((2..60).step_by(3))), choices([20, 50])].concat();
    let all = score(&mut scorer(&setup, 2), &items, Grouping::Packed);
    let halves = items.chunks(items.len() / 2).zip([1, 3]);
    let halves =
        halves.flat_map(|(half, threads)| score(&mut scorer(&setup, threads), half, Grouping::Packed));
    assert_eq!(all, halves.collect::<Vec<_>>());
}

/// The score of a whole window is the loss that the program of evaluations computes.
#[test]
fn scores_are_losses() {
    for (name, keys) in MODELS {
        let setup = Setup::new(&[keys, &["training.seq_len=60", "training.local_batch_size=1"]].concat());
        let [request] = &requests([61])[..] else { unreachable!("one was asked for") };
        let tokens = [&request.context[..], &request.continuation].concat();
        let request = Request { context: tokens[..1].to_vec(), continuation: tokens[1..].to_vec() };
        let mut engine = setup.engine();
        let numbers = |tokens: &[u32]| tokens.iter().map(|&token| f64::from(token)).collect::<Vec<_>>();
        set(&mut engine, "batch.tokens", &numbers(&tokens[..60]));
        set(&mut engine, "batch.targets", &numbers(&tokens[1..]));
        set(&mut engine, "batch.positions", &(0..60).map(f64::from).collect::<Vec<_>>());
        engine.run(&setup.programs.evaluate).unwrap();
        let loss = engine.state.values(engine.state.slot(ControlSlot::EvalLoss).unwrap()).unwrap()[0];
        let scores = score(&mut scorer(&setup, 2), &[vec![request]], Grouping::Packed);
        let log_prob = scores[0][0].log_prob;
        let relative = (log_prob + loss).abs() / loss;
        assert!(relative < 1e-6, "{name}: {log_prob} for a loss of {loss}");
    }
}

/// Choices that share their context have the scores that they have alone, but for rounding.
#[test]
fn a_shared_context_changes_no_score() {
    for (name, keys) in MODELS {
        let setup = Setup::new(&[keys, &["training.seq_len=190", "training.dtype=fp32"]].concat());
        let mut scorer = scorer(&setup, 2);
        let items = choices([1, 30, 44, 90, 170]);
        let together = score(&mut scorer, &items, Grouping::Packed).concat();
        let apart = score(&mut scorer, &alone(&items.concat()), Grouping::Packed).concat();
        for (a, b) in together.iter().zip(&apart) {
            assert!((a.log_prob - b.log_prob).abs() < 1e-5 * b.log_prob.abs(), "{name}: {a:?}, {b:?}");
        }
    }
}

/// Over all tokens after a context, probabilities add up to 1, and the most probable token alone is greedy.
#[test]
fn probabilities_add_up_and_the_largest_is_greedy() {
    for keys in [&["training.dtype=fp32"][..], &["model.logit_cap=3", "model.logit_scale=2"]] {
        let setup = Setup::new(&[keys, &["training.seq_len=48"]].concat());
        let words = setup.plan.model.vocab_size as u32;
        let request = |word| Request { context: vec![5, 100, 7], continuation: vec![word] };
        let item: Vec<Request> = (0..words).map(request).collect();
        let scores = score(&mut scorer(&setup, 2), &[item], Grouping::Packed).concat();
        let total: f64 = scores.iter().map(|score| score.log_prob.exp()).sum();
        assert!((total - 1.0).abs() < 1e-4, "{keys:?}: {total}");
        let best = scores.iter().map(|score| score.log_prob).fold(f64::NEG_INFINITY, f64::max);
        let greedy: Vec<&Score> = scores.iter().filter(|score| score.is_greedy).collect();
        assert_eq!(greedy.iter().map(|score| score.log_prob).collect::<Vec<_>>(), [best], "{keys:?}");
    }
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let mut scorer = scorer(&Setup::new(&["training.seq_len=50"]), 1);
    let request = |context: Vec<u32>, scored: usize| Request { context, continuation: vec![1; scored] };
    let fits = request(vec![1; 50], 1);
    let mut refused = |request: Request| {
        let second = [fits.clone(), request];
        let items = [std::slice::from_ref(&fits), &second[..]];
        scorer.score(&items, Grouping::Packed, |_| Ok(())).unwrap_err().to_string()
    };
    let long = refused(request(vec![1; 50], 2));
    assert!(long.contains("item 2, request 2: it has 52 tokens, but the model reads 50"), "{long}");
    let empty = refused(request(vec![1, 2], 0));
    assert!(empty.contains("2 tokens of context and 0 to score"), "{empty}");
    let first = refused(request(Vec::new(), 2));
    assert!(first.contains("both need at least one"), "{first}");
    let foreign = refused(request(vec![99_999], 1));
    assert!(foreign.contains("token 99999 is outside the model's vocabulary"), "{foreign}");
    let (scores, usage) = scorer.score(&[], Grouping::Packed, |_| Ok(())).unwrap();
    assert!(scores.is_empty() && usage.batches == 0);
}

/// Prompts of these lengths.
fn prompts(lens: &[usize]) -> Vec<Vec<u32>> {
    let prompt =
        |(i, &len): (usize, &usize)| (0..len).map(|t| ((t * t + 29 * t + 11 * i) % 251) as u32).collect();
    lens.iter().enumerate().map(prompt).collect()
}

/// Generates texts of up to 9 tokens that end at token 3, or after a token that is a multiple of 16.
fn generate(scorer: &mut Scorer, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let is_complete = |tokens: &[u32]| Ok(tokens.last().is_some_and(|token| token % 16 == 0));
    let ends = TextEnds { token: 3, tokens: 9, is_complete: &is_complete };
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    scorer.generate(&prompts, &ends, |_| Ok(())).unwrap().0
}

/// Places without a prompt, prompts of other lengths, other threads and another order change no token.
#[test]
fn texts_do_not_depend_on_those_beside_them() {
    for (name, keys) in MODELS {
        for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
            let setup = Setup::new(&[keys, &["training.seq_len=120", dtype]].concat());
            let prompts = prompts(&[1, 64, 65, 20, 111, 63, 2, 30, 31, 32, 33, 34, 5, 80]);
            let texts = generate(&mut scorer(&setup, 2), &prompts);
            assert!(texts.iter().collect::<BTreeSet<_>>().len() > texts.len() / 2, "{name}: {texts:?}");
            let mut other = scorer(&setup, 3);
            for (prompt, text) in prompts.iter().zip(&texts).rev() {
                assert_eq!(
                    &generate(&mut other, std::slice::from_ref(prompt)),
                    std::slice::from_ref(text),
                    "{name}"
                );
            }
        }
    }
}

/// Every generated token is the likeliest by the program that scores, which has no cache. A text has no
/// entries of the model's vocabulary that the tokenizer lacks, so models with some are left out.
#[test]
fn texts_are_greedy() {
    let mut tried = 0;
    for (name, keys) in MODELS {
        let setup = Setup::new(&[keys, &["training.seq_len=120", "training.dtype=fp32"]].concat());
        if setup.plan.model.vocab_size > setup.plan.corpus.vocab_size {
            continue;
        }
        tried += 1;
        let mut scorer = scorer(&setup, 2);
        let prompts = prompts(&[1, 20, 64, 65, 111, 7]);
        let texts = generate(&mut scorer, &prompts);
        let followed = prompts.iter().zip(&texts).filter(|(_, text)| !text.is_empty());
        let items: Vec<Vec<Request>> = followed
            .map(|(prompt, text)| vec![Request { context: prompt.clone(), continuation: text.clone() }])
            .collect();
        assert!(items.len() > 3, "{name}: {texts:?}");
        let scores = score(&mut scorer, &items, Grouping::Packed).concat();
        assert!(scores.iter().all(|score| score.is_greedy), "{name}: {scores:?}");
    }
    assert!(tried >= 6, "{tried} models");
}
