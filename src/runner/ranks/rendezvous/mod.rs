//! Rendezvous of ranks that know only an address. Rank 0 listens, the others connect, and both sides prove
//! that they know the secret of the run.
//!
//! ```text
//! rank → 0   Hello     { version, job, rank, world, nonce }
//! 0 → rank   Challenge { nonce, proof of the secret over both nonces }       or Refused { why, permanent }
//! rank → 0   Proof     { proof of the secret over both nonces and the rank } or OtherSecret
//! 0 → rank   Welcome                                                         or Refused { why, permanent }
//! ```
//!
//! Rank 0 handles all newcomers in parallel, so that a silent one delays no other.

mod accept;
mod address;
mod handshake;
mod join;
mod secret;

pub use accept::accept_ranks;
pub use join::join;
pub use secret::Secret;

#[cfg(test)]
mod tests;
