//! xrun against PyTorch: the model in fp32, bf16 and f64, a training step, layers alone, and AdamW.
//!
//! `docs/measuring.md` says what is compared and how; `scripts/parity.py` and `scripts/parity_layers.py` make the
//! fixtures. The measured distances go to stderr: `cargo test --test parity -- --nocapture`.

mod adamw;
mod fixture;
mod formula;
mod layers;
mod model;
mod sgd;
mod subject;
mod training;
