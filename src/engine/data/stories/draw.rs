//! Draws stories from the grammar.

use super::grammar::{Derivation, Grammar};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// One of the two independent streams of stories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Stories to train on.
    Train = 0,
    /// Held-out stories, whose log-probability gives the floor.
    Validation = 1,
}

/// The grammar of the built-in stories.
pub fn grammar() -> &'static Grammar {
    static GRAMMAR: OnceLock<Grammar> = OnceLock::new();
    GRAMMAR.get_or_init(|| {
        Grammar::compile(include_str!("grammar.txt"))
            .expect("the grammar in the binary compiles, as tests check")
    })
}

/// Returns the ChaCha key of block `index`, for one purpose, split and seed.
pub(in crate::data) fn key(purpose: [u8; 8], seed: u64, split: Split, index: u64) -> [u8; 32] {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&index.to_le_bytes());
    key[16] = split as u8;
    key[24..].copy_from_slice(&purpose);
    key
}

/// Draws story `index` of a split with ChaCha8, keyed by seed, split and index.
pub fn story(seed: u64, split: Split, index: u64) -> Derivation {
    let key = key(*b"stories\0", seed, split, index);
    let mut rng = ChaCha8Rng::from_seed(key);
    grammar().draw(|total| below(&mut rng, total))
}

/// Draws a number below `total`, each with exactly the same probability, by rejection.
pub(super) fn below(rng: &mut ChaCha8Rng, total: u32) -> u32 {
    let limit = u32::MAX - u32::MAX % total;
    loop {
        let x = rng.next_u32();
        if x < limit {
            return x % total;
        }
    }
}
