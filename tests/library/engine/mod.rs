//! The engine as a whole, on models of a few thousand parameters: gradients, learning, bits, ranks, memory,
//! keys.

mod bits;
mod chat_cuts;
mod combinations;
mod ema;
mod evaluation;
mod exchange;
mod formulas;
mod fp8;
mod generation;
mod gpu_queue;
mod gradient;
pub mod harness;
mod initial_values;
mod keys;
mod learning;
mod memory;
mod models;
mod muon;
mod objective;
mod optimizers;
mod packing;
mod ramp;
mod random_texts;
mod ranks;
mod replicas;
mod scoring;
mod shards;
mod source_losses;
mod splits;
mod update_groups;
mod width;
mod window;
