//! xrun against PyTorch: the model in fp32, bf16 and f64, a training step, AdamW, and the variants of RoPE.
//!
//! Models that HuggingFace's classes saved are imported, and give their loss, logits and gradients.
//!
//! `docs/measuring.md` says what is compared and how; `scripts/parity.py`, `scripts/rope_parity.py` and
//! `scripts/family_parity.py` make the fixtures. The measured distances go to stderr: `cargo test --test parity --
//! --nocapture`.

mod adamw;
mod attention;
mod families;
mod fixture;
mod formula;
mod model;
mod objective;
mod rope;
mod sgd;
mod subject;
mod training;
