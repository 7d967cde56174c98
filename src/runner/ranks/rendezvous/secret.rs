//! The secret of a run, and proofs of knowing it.

use crate::error::{Error, Result};
use crate::ranks::environment::{SECRET, is_loopback};

/// Secret that only the ranks of one run know.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Derives the secret of a run whose rank 0 listens at `address`.
    ///
    /// # Errors
    /// If other machines can reach the address and `text` is missing or empty.
    pub fn from_text(text: Option<&str>, address: &str) -> Result<Self> {
        let text = text.unwrap_or_default();
        if text.is_empty() && !is_loopback(address) {
            return Err(Error::usage(format!(
                "ranks meet at {address}, which other machines can reach, but {SECRET} is not set: set it to the same \
                 random text for every rank, such as the output of `openssl rand -hex 16`"
            )));
        }
        Ok(Self(blake3::derive_key("xrun 2026 rendezvous of ranks", text.as_bytes())))
    }

    /// Derives the secret from the environment variable [`SECRET`].
    ///
    /// # Errors
    /// Fails like [`Secret::from_text`].
    pub fn from_environment(address: &str) -> Result<Self> {
        Self::from_text(std::env::var(SECRET).ok().as_deref(), address)
    }

    /// Returns a proof of the secret over both nonces, for a role and a rank.
    pub(super) fn proof(&self, role: &str, a: [u8; 16], b: [u8; 16], rank: usize) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(role.as_bytes()).update(&a).update(&b).update(&(rank as u64).to_le_bytes());
        *hasher.finalize().as_bytes()
    }

    /// Returns true if a proof is right. The comparison takes constant time.
    pub(super) fn accepts(&self, proof: [u8; 32], role: &str, a: [u8; 16], b: [u8; 16], rank: usize) -> bool {
        // `blake3::Hash` compares in constant time.
        blake3::Hash::from(proof) == blake3::Hash::from(self.proof(role, a, b, rank))
    }
}
