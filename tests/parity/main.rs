//! xrun against PyTorch: the model in fp32, bf16 and f64, a training step, and AdamW.
//!
//! `docs/measuring.md` says what is compared and how; `scripts/parity.py` makes the fixtures. The measured
//! distances go to stderr: `cargo test --test parity -- --nocapture`.

mod adamw;
mod attention;
mod fixture;
mod formula;
mod model;
mod sgd;
mod subject;
mod training;
