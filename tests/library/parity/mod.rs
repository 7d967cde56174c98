//! xrun against PyTorch: the model in fp32, bf16 and f64, a training step, layers alone, optimizers, and the
//! variants of RoPE and of objectives.
//!
//! Models that HuggingFace's classes saved are imported, and give their loss, logits and gradients.
//!
//! `docs/measuring.md` says what is compared and how, and by which scripts the fixtures are made. The
//! measured distances go to stderr: `cargo test --test library parity:: -- --nocapture`.

mod attention;
mod families;
mod fixture;
mod formula;
mod layers;
mod model;
mod muon;
mod numbers;
mod objective;
mod optimizers;
mod rope;
mod sgd;
mod subject;
mod training;
