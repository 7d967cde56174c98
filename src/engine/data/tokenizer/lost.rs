//! Bytes of text that a vocabulary cannot say: they vanish, or become its unknown token.

use serde::{Deserialize, Serialize};
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of text that the model never sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostBytes {
    /// Bytes that no token stands for.
    pub vanished: u64,
    /// Bytes behind unknown tokens.
    pub unknown: u64,
}

impl LostBytes {
    /// Returns all lost bytes.
    pub fn total(&self) -> u64 {
        self.vanished + self.unknown
    }

    /// Returns a warning if bytes are lost. `text` names what has `bytes` bytes, such as "the text".
    pub fn warning(&self, text: &str, bytes: u64) -> Option<String> {
        let lost = self.total();
        (lost > 0).then(|| {
            let share = 100.0 * lost as f64 / bytes.max(1) as f64;
            let how = match (self.vanished, self.unknown) {
                (_, 0) => "they vanish".to_owned(),
                (0, _) => "they become its unknown token".to_owned(),
                (vanished, unknown) => format!("{vanished} vanish, {unknown} become its unknown token"),
            };
            format!(
                "the tokenizer has no entry for {lost} of {bytes} bytes of {text} ({share:.3} %): {how}, so the model \
                 never sees them. The tokenizers gpt2 and byte keep every byte"
            )
        })
    }
}

impl AddAssign for LostBytes {
    fn add_assign(&mut self, more: Self) {
        self.vanished += more.vanished;
        self.unknown += more.unknown;
    }
}

/// Remembers for every character whether it vanishes. Threads share the table.
pub(super) struct Characters(Vec<AtomicU8>);

const UNSEEN: u8 = 0;
const KEPT: u8 = 1;
const VANISHES: u8 = 2;

impl Characters {
    pub fn new() -> Self {
        Self((0..=u32::from(char::MAX)).map(|_| AtomicU8::new(UNSEEN)).collect())
    }

    /// Returns the bytes of a text's characters that vanish. `vanishes` is asked once per character. White
    /// space does not count: tokenizers that split words at it restore it when they decode.
    ///
    /// # Errors
    /// If `vanishes` fails.
    pub fn vanished<E>(&self, text: &str, vanishes: impl Fn(char) -> Result<bool, E>) -> Result<u64, E> {
        let mut bytes = 0;
        for c in text.chars().filter(|c| !c.is_whitespace()) {
            let state = &self.0[c as usize];
            let known = match state.load(Ordering::Relaxed) {
                UNSEEN => {
                    let found = if vanishes(c)? { VANISHES } else { KEPT };
                    state.store(found, Ordering::Relaxed);
                    found
                }
                known => known,
            };
            if known == VANISHES {
                bytes += c.len_utf8() as u64;
            }
        }
        Ok(bytes)
    }
}

impl std::fmt::Debug for Characters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Characters").finish_non_exhaustive()
    }
}
