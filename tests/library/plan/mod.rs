//! `xrun plan`: what it says is what the engine will do.

mod binary;
mod exchange;
mod fit;
mod fuzz;
mod lines;
mod memory;
mod numbers;
mod recompute;
mod text;

use xrun::forecast::{Forecast, RunNeeds};
use xrun::machine::Machine;
use xrun::model::Programs;
use xrun::plan::{CorpusFacts, Plan};
use xrun::recipe;

/// A corpus of known size for a tokenizer of `vocab_size` entries.
fn corpus(vocab_size: usize) -> CorpusFacts {
    CorpusFacts {
        vocab_size,
        train_tokens: 1_000_000,
        exact: true,
        validation_tokens: 10_000,
        floor: Some(1.25),
        ..CorpusFacts::default()
    }
}

/// The plan of a built-in recipe with overrides, for any machine.
fn plan(name: &str, overrides: &[&str], vocab_size: usize) -> Plan {
    // Where a test does not ask for a mode, its figures are of this one.
    let mut overrides: Vec<String> = overrides.iter().map(|s| (*s).to_owned()).collect();
    if !overrides.iter().any(|set| set.starts_with("activation_checkpoint.mode")) {
        overrides.push("activation_checkpoint.mode=selective".to_owned());
    }
    let recipe = recipe::load(name.as_ref(), &overrides, std::iter::empty(), &Machine::none());
    let recipe = recipe.expect("a good recipe");
    Plan::new(&recipe, &corpus(vocab_size), &Machine::none()).expect("a good plan")
}

fn programs(plan: &Plan) -> Programs {
    Programs::new(plan).expect("programs")
}

fn device(name: &str) -> Machine {
    Machine::named(name).expect("a known device")
}

fn forecast(plan: &Plan, on: &[Machine]) -> Forecast {
    let programs = programs(plan);
    let needs = RunNeeds::new(plan, &programs, &Machine::none(), true);
    Forecast::new(plan, &programs, needs, on).expect("a forecast")
}

/// A model small enough to print whole.
const TINY: [&str; 10] = [
    "model.dim=32",
    "model.n_layers=1",
    "model.n_heads=2",
    "model.head_dim=16",
    "model.ffn_dim=48",
    "training.seq_len=8",
    "training.local_batch_size=2",
    "training.steps=3",
    "lr_scheduler.warmup_steps=1",
    "generation.samples=0",
];
