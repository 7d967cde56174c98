//! Generation: a prompt in one pass gives the same as token by token, and the samples of a batch do not see
//! each other.

use crate::engine::harness::Setup;
use crate::engine::models::MODELS;
use std::ops::ControlFlow;
use std::sync::Arc;
use xrun::Result;
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::Engine;
use xrun::generation::Generating;
use xrun::ir::{FlatBuffer, GenerationSlot};
use xrun::model::{Generator, PromptShape, prompt_rows};
use xrun::plan::Plan;
use xrun::train::{InitialValues, initialize, refresh_compute_copy};

/// A model that generates, on one or more threads.
struct Model {
    plan: Arc<Plan>,
    generator: Generator,
    engine: Engine,
}

const SEQ_LEN: usize = 96;

impl Model {
    fn new(overrides: &[&str], samples: usize, prompts: usize) -> Self {
        let samples = format!("generation.samples={samples}");
        let mut all = vec!["training.seq_len=96", "training.local_batch_size=2", &samples];
        if !overrides.iter().any(|key| key.starts_with("generation.temperature")) {
            all.push("generation.temperature=0");
        }
        let plan = Setup::new(&[&all[..], overrides].concat()).plan;
        let shape = |rows| PromptShape { prompts, rows };
        let generator = Generator::new(&plan, &[shape(64), shape(SEQ_LEN)]).unwrap();
        let execution = &plan.execution;
        let pool = Arc::new(Pool::new(execution.threads).unwrap());
        let (arena, poison) = (generator.arena_bytes(), execution.poison);
        let mut engine =
            Engine::new(pool, &generator.state, Arc::new(SingleRank), execution.placement, arena, poison)
                .unwrap();
        initialize(&mut engine, &plan.seeds, &InitialValues::new(1)).unwrap();
        refresh_compute_copy(&mut engine).unwrap();
        Self { plan, generator, engine }
    }

    fn texts(&mut self, prompts: &[Vec<u32>], tokens: usize, ends: &[u32]) -> Result<Vec<Vec<u32>>> {
        let longest = prompts.iter().map(Vec::len).max().unwrap();
        let prefill = &self.generator.prefills[usize::from(prompt_rows(longest, SEQ_LEN) > 64)];
        let decode = &self.generator.decode;
        let generating = Generating { prefill, decode, ends, tokens, seq_len: SEQ_LEN };
        let mut seen = vec![Vec::<u32>::new(); self.plan.generation.samples];
        let texts = generating.run(&mut self.engine, prompts, |sample, tokens| {
            seen[sample].extend(tokens.last());
            Ok(ControlFlow::Continue(()))
        })?;
        assert_eq!(seen, texts, "tokens are shown as they come");
        Ok(texts)
    }

    fn logits(&self) -> Vec<f64> {
        self.engine.state.values(self.engine.state.slot(GenerationSlot::Logits).unwrap()).unwrap()
    }

    /// Feeds one prompt to all samples, a token at a time.
    fn feed(&mut self, prompt: &[u32]) {
        let inputs = [GenerationSlot::Tokens, GenerationSlot::Positions];
        let [tokens, positions] = inputs.map(|slot| self.engine.state.slot(slot).unwrap());
        let samples = self.plan.generation.samples;
        for (position, token) in prompt.iter().enumerate() {
            self.engine.state.write(tokens, &vec![*token; samples]).unwrap();
            self.engine.state.write(positions, &vec![position as u32; samples]).unwrap();
            self.engine.run(&self.generator.decode).unwrap();
        }
    }
}

fn prompt(len: usize, from: usize) -> Vec<u32> {
    (0..len).map(|i| ((from + 31 * i) % 256) as u32).collect()
}

/// Returns the largest difference, relative to the largest number in `a`.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let size = a.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    a.iter().zip(b).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs())) / size
}

#[test]
fn a_prompt_in_one_pass_is_as_token_by_token() {
    for (overrides, bound) in [
        (&["training.dtype=fp32"][..], 1e-5),
        (&["training.dtype=fp32", "engine.fused=false", "engine.attention=unfused"], 1e-5),
        (&["training.dtype=fp32", "model.qk_norm=false", "model.norm=layer_norm"], 1e-5),
        (&["training.dtype=fp32", "model.tie_embeddings=true", "data.cross_documents=false"], 1e-5),
        (&["training.dtype=fp32", "engine.placement=caching", "model.dropout=0.2"], 1e-5),
        (&["training.dtype=fp32", "engine.placement=naive", "model.parallel_blocks=true"], 1e-5),
        (&["training.dtype=bf16"], 3e-2),
    ] {
        one_pass_is_as_token_by_token(overrides, &[1, 2, 40, 64, 65, SEQ_LEN - 1], bound);
    }
}

#[test]
fn prompts_of_every_model_are_as_token_by_token() {
    for (_, keys) in MODELS {
        one_pass_is_as_token_by_token(
            &[keys, &["training.dtype=fp32"]].concat(),
            &[1, 40, SEQ_LEN - 1],
            1e-5,
        );
    }
}

/// Compares the logits after prompts of these lengths, within a fraction of the largest.
fn one_pass_is_as_token_by_token(overrides: &[&str], lengths: &[usize], bound: f64) {
    for &len in lengths {
        let mut model = Model::new(overrides, 2, 1);
        model.feed(&prompt(len, 3));
        let by_token = model.logits();
        model.texts(&[prompt(len, 3)], 1, &[]).unwrap();
        let difference = distance(&by_token, &model.logits());
        assert!(difference <= bound, "{overrides:?}, {len} tokens: {difference}");
    }
}

/// Tokens after the prompt read keys from both programs.
#[test]
fn greedy_tokens_are_those_of_whole_sequences() {
    let mut model = Model::new(&["training.dtype=fp32"], 1, 1);
    let start = prompt(20, 5);
    let text = model.texts(std::slice::from_ref(&start), 12, &[]).unwrap().remove(0);
    assert_eq!(text.len(), 12);
    for count in 0..12 {
        let whole = [&start[..], &text[..count]].concat();
        assert_eq!(model.texts(&[whole], 1, &[]).unwrap()[0][0], text[count], "token {count}");
    }
}

#[test]
fn prompts_of_a_batch_are_as_each_alone() {
    let lengths = [1, 63, 17, 64, 80, SEQ_LEN - 1];
    for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
        for drawn in
            [&["generation.temperature=0"][..], &["generation.temperature=0.9", "generation.top_p=0.95"]]
        {
            let overrides = [&[dtype][..], drawn].concat();
            let prompts: Vec<Vec<u32>> = lengths.iter().map(|&len| prompt(len, len)).collect();
            let together = Model::new(&overrides, 6, 6).texts(&prompts, 30, &[]).unwrap();
            for (sample, prompt) in prompts.iter().enumerate() {
                // A sample's draws depend on its place in the batch.
                let alone = vec![prompt.clone(); 6];
                let alone = Model::new(&overrides, 6, 6).texts(&alone, 30, &[]).unwrap();
                assert_eq!(together[sample], alone[sample], "{overrides:?}: sample {sample}");
                assert_eq!(together[sample].len(), 30.min(SEQ_LEN + 1 - prompt.len()));
            }
        }
    }
}

#[test]
fn samples_of_a_prompt_share_its_pass() {
    let overrides = ["training.dtype=fp32", "generation.temperature=1.1", "generation.top_k=20"];
    let prompts = [prompt(33, 1), prompt(70, 2)];
    let copies: Vec<Vec<u32>> = (0..6).map(|sample| prompts[sample / 3].clone()).collect();
    let shared = Model::new(&overrides, 6, 2).texts(&prompts, 20, &[]).unwrap();
    assert_eq!(shared, Model::new(&overrides, 6, 6).texts(&copies, 20, &[]).unwrap());
    assert!(shared[0] != shared[1] && shared[1] != shared[2], "each has draws of its own");
    let threads = [&overrides[..], &["engine.threads=1"]].concat();
    assert_eq!(shared, Model::new(&threads, 6, 2).texts(&prompts, 20, &[]).unwrap());
}

#[test]
fn texts_end_at_an_end_token_or_with_the_context() {
    let prompts = [prompt(10, 1), prompt(90, 2), prompt(30, 7)];
    let mut model = Model::new(&["training.dtype=fp32", "generation.temperature=1.5"], 3, 3);
    let whole = model.texts(&prompts, 1000, &[]).unwrap();
    let lengths: Vec<usize> = whole.iter().map(Vec::len).collect();
    assert_eq!(lengths, [SEQ_LEN + 1 - 10, SEQ_LEN + 1 - 90, SEQ_LEN + 1 - 30]);
    let end = whole[2][25];
    let ended = model.texts(&prompts, 1000, &[end, 255]).unwrap();
    for (whole, ended) in whole.iter().zip(&ended) {
        let at = whole.iter().position(|token| [end, 255].contains(token)).unwrap_or(whole.len());
        assert_eq!(*ended, whole[..at]);
    }
    // A prompt may fill the whole context.
    let full = model.texts(&[prompt(SEQ_LEN, 1), prompt(1, 2), prompt(SEQ_LEN, 3)], 5, &[]).unwrap();
    assert_eq!(full.iter().map(Vec::len).collect::<Vec<_>>(), [1, 5, 1]);
}

#[test]
fn what_does_not_fit_is_an_error() {
    let mut model = Model::new(&[], 2, 2);
    for prompts in [vec![prompt(3, 0)], vec![prompt(3, 0), Vec::new()], vec![prompt(97, 0), prompt(3, 0)]] {
        let error = model.texts(&prompts, 5, &[]).unwrap_err();
        assert!(error.message().contains("do not fit a program for 2"), "{}", error.message());
    }
}

#[test]
fn logits_that_are_not_finite_are_an_error() {
    let mut model = Model::new(&["training.dtype=fp32"], 2, 1);
    let slot = model.engine.state.slot(FlatBuffer::Params.param("final_norm")).unwrap();
    model.engine.state.update::<f32>(slot, |weights| weights.fill(f32::NAN)).unwrap();
    let error = model.texts(&[prompt(9, 0)], 5, &[]).unwrap_err();
    assert!(error.message().contains("text 1 after 0 generated tokens"), "{error}");
}
