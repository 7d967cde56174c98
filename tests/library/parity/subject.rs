//! The model of the fixtures in xrun, as a run would build it: recipe, plan, programs, engine.

use crate::parity::formula;
use std::sync::Arc;
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::Engine;
use xrun::ir::{FlatBuffer, Param, Precision};
use xrun::machine::Machine;
use xrun::model::{Programs, head_of, schedule_tables};
use xrun::plan::{CorpusFacts, Plan};
use xrun::recipe::Recipe;
use xrun::train::refresh_compute_copy;

/// The sizes and the schedule of `scripts/parity.py`.
const RECIPE: &str = r#"
[model]
dim = 64
n_layers = 2
n_heads = 4
n_kv_heads = 2
head_dim = 32
ffn_dim = 96
rope_theta = 10000.0
norm_eps = 1e-6

[training]
seq_len = 33
global_batch_size = 3
steps = 6
max_norm = 0.5

[optimizer]
lr = 1e-3
betas = [0.9, 0.95]
eps = 1e-8
weight_decay = 0.1

[lr_scheduler]
warmup_steps = 2
decay = "cosine"
min_lr_ratio = 0.1

[generation]
samples = 3

[engine]
poison = true
"#;

/// Tokens of the vocabulary.
pub const VOCAB: usize = 131;

/// A recipe with `section.key=value` on top.
pub fn recipe(text: &str, overrides: &[&str]) -> Recipe {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    xrun::recipe::load_str("parity.toml".as_ref(), text, &overrides, std::iter::empty(), &Machine::here())
        .unwrap()
}

/// A model with the parameters of the fixtures, ready for its first step.
pub struct Subject {
    /// Tokens of the first batch with one more for each sequence; `None` for those of the formula.
    windows: Option<Vec<u32>>,
    pub plan: Plan,
    pub programs: Programs,
    pub engine: Engine,
}

impl Subject {
    /// With `section.key=value` on top of the recipe.
    pub fn new(overrides: &[&str]) -> Self {
        Self::with(overrides, |_| {})
    }

    /// As [`Subject::new`], in f64, which no recipe asks for.
    pub fn in_f64() -> Self {
        Self::with(&[], |plan| plan.precision = Precision::for_act_dtype(xrun::device::DType::F64))
    }

    fn with(overrides: &[&str], change: impl FnOnce(&mut Plan)) -> Self {
        Self::build(&recipe(RECIPE, overrides), VOCAB, change, |param| {
            formula::weights(&param.name, &param.spec.shape)
        })
    }

    /// Another recipe's model, with weights and the tokens of its first batch from elsewhere.
    pub fn of(recipe: &Recipe, windows: Vec<u32>, weights: impl Fn(&Param) -> Vec<f64>) -> Self {
        let vocab = recipe.values().model.vocab_size.expect("a model of others states its vocabulary");
        Self { windows: Some(windows), ..Self::build(recipe, vocab, |_| {}, weights) }
    }

    fn build(
        recipe: &Recipe,
        vocab_size: usize,
        change: impl FnOnce(&mut Plan),
        weights: impl Fn(&Param) -> Vec<f64>,
    ) -> Self {
        let corpus = CorpusFacts {
            vocab_size,
            train_tokens: 10_000,
            exact: true,
            validation_tokens: 1_000,
            ..CorpusFacts::default()
        };
        let mut plan = Plan::new(recipe, &corpus, &Machine::here()).unwrap();
        change(&mut plan);
        let programs = Programs::new(&plan).unwrap();
        let execution = plan.execution.clone();
        let pool = Arc::new(Pool::new(execution.threads).unwrap());
        let mut engine = Engine::new(
            pool,
            &programs.state,
            Arc::new(SingleRank),
            execution.placement,
            programs.arena_bytes(),
            execution.poison,
        )
        .unwrap();
        for param in &programs.state.params {
            let slot = engine.state.slot(FlatBuffer::Params.param(&param.name)).unwrap();
            engine.state.set_values(slot, &weights(param)).unwrap();
        }
        refresh_compute_copy(&mut engine).unwrap();
        let mut subject = Self { windows: None, plan, programs, engine };
        for (slot, table) in schedule_tables(&subject.plan, &subject.programs.state, 0) {
            subject.set(&slot.to_string(), &table);
        }
        subject.set("control.step", &[1.0]);
        subject
    }

    /// Writes a slot of the state.
    pub fn set(&mut self, slot: &str, values: &[f64]) {
        let slot = self.engine.state.layout().slot_by_text(slot).unwrap();
        self.engine.state.set_values(slot, values).unwrap();
    }

    /// Reads a slot of the state.
    pub fn get(&self, slot: &str) -> Vec<f64> {
        self.engine.state.values(self.engine.state.layout().slot_by_text(slot).unwrap()).unwrap()
    }

    /// The names of all parameters.
    pub fn params(&self) -> Vec<String> {
        self.programs.state.params.iter().map(|p| p.name.clone()).collect()
    }

    /// Forward and backward over all micro-steps of a step from 1.
    pub fn gradients(&mut self, step: usize) {
        for micro in 0..self.plan.batch.micro_steps {
            self.upload(step, micro);
            self.engine.run(self.programs.micro_step(micro, self.plan.batch.micro_steps)).unwrap();
        }
    }

    /// A whole optimizer step.
    pub fn train(&mut self, step: usize) {
        self.gradients(step);
        self.engine.run(&self.programs.step_end).unwrap();
    }

    /// The logits of the first batch by the evaluation program, `[rows, vocab]`, and its mean loss.
    pub fn evaluate(&mut self) -> (Vec<f64>, f64) {
        let (mut logits, mut loss) = (Vec::new(), 0.0);
        for micro in 0..self.plan.batch.micro_steps {
            self.upload(1, micro);
            let products = self.engine.inspect(&self.programs.evaluate, "head.logits.1").unwrap();
            let head = head_of(&self.plan.graph).unwrap();
            logits.extend(products.into_iter().map(|product| head.logit(product)));
            loss += self.get("control.eval_loss")[0];
        }
        (logits, loss / self.plan.batch.tokens_per_step() as f64)
    }

    /// The same logits by the generation program: token by token, keys and values from the cache.
    pub fn generate(&mut self) -> Vec<f64> {
        let (samples, seq_len) = (self.plan.generation.samples, self.plan.batch.seq_len);
        let (tokens, _) = self.batch(1);
        let section = self.programs.generate.clone().unwrap();
        let vocab = self.plan.model.vocab_size;
        let mut logits = vec![0.0; samples * seq_len * vocab];
        for position in 0..seq_len {
            let current: Vec<f64> = (0..samples).map(|s| f64::from(tokens[s * seq_len + position])).collect();
            self.set("generation.tokens", &current);
            self.set("generation.positions", &vec![position as f64; samples]);
            self.engine.run(&section).unwrap();
            for (s, row) in self.get("generation.logits").chunks_exact(vocab).enumerate() {
                logits[(s * seq_len + position) * vocab..][..vocab].copy_from_slice(row);
            }
        }
        logits
    }

    /// Fails where padding of a parameter, its gradient or its moments is not zero.
    pub fn check_padding(&self) {
        for name in self.params() {
            for buffer in ["params", "grads", "m", "v"] {
                let slot = self.engine.state.layout().slot_by_text(&format!("{buffer}.{name}")).unwrap();
                assert!(self.engine.state.padding_is_zero(slot).unwrap(), "padding of {buffer}.{name}");
            }
        }
    }

    /// Tokens and targets of a step.
    fn batch(&self, step: usize) -> (Vec<u32>, Vec<u32>) {
        let (batch, seq_len) = (self.plan.batch.global, self.plan.batch.seq_len);
        let windows = match &self.windows {
            Some(windows) => windows.clone(),
            None => formula::tokens(step, batch * (seq_len + 1), VOCAB as u64),
        };
        let part = |from: usize| {
            let rows = windows.chunks_exact(seq_len + 1);
            rows.flat_map(|window| window[from..from + seq_len].to_vec()).collect()
        };
        (part(0), part(1))
    }

    fn upload(&mut self, step: usize, micro: usize) {
        let (seq_len, sequences) = (self.plan.batch.seq_len, self.plan.batch.micro);
        let (tokens, targets) = self.batch(step);
        let rows = micro * sequences * seq_len..(micro + 1) * sequences * seq_len;
        let wide = |values: &[u32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        self.set("batch.tokens", &wide(&tokens[rows.clone()]));
        self.set("batch.targets", &wide(&targets[rows.clone()]));
        self.set("batch.positions", &rows.clone().map(|r| (r % seq_len) as f64).collect::<Vec<_>>());
        let span = |r: usize| [0.0, (r % seq_len + 1) as f64];
        self.set("batch.spans", &rows.flat_map(span).collect::<Vec<_>>());
        let indices = micro * sequences..(micro + 1) * sequences;
        self.set("batch.sequences", &indices.map(|s| s as f64).collect::<Vec<_>>());
    }
}
