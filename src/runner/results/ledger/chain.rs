//! Chains lines: each ends with a hash over itself and the hash of the line before it.
//!
//! A line that was changed, moved or inserted, or whose predecessor is gone, no longer matches its hash. Only
//! removing the last lines of a file goes unnoticed.

/// The JSON member at the end of each line, up to the hash.
const CHAIN_START: &str = ",\"chain\":\"";

/// The text after the hash.
const CHAIN_END: &str = "\"}";

/// Digits of a hash.
const HASH_LEN: usize = 64;

/// The hash of the last line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain(String);

impl Chain {
    /// Returns the hash of the last line; `None` before the first line.
    pub fn head(&self) -> Option<&str> {
        Some(self.0.as_str()).filter(|hash| !hash.is_empty())
    }

    /// Chains a JSON object and returns its line, without a newline.
    pub fn seal(&mut self, object: &str) -> String {
        self.0 = self.hash(object);
        let open = object.strip_suffix('}').unwrap_or(object);
        format!("{open}{CHAIN_START}{}{CHAIN_END}", self.0)
    }

    /// Checks the next line of a file. If the line does not belong there, returns false and leaves the chain
    /// unchanged.
    pub fn follow(&mut self, line: &str) -> bool {
        let Some(object) = line.strip_suffix(CHAIN_END).filter(|rest| rest.len() > HASH_LEN) else {
            return false;
        };
        let Some((object, hash)) = object.split_at_checked(object.len() - HASH_LEN) else { return false };
        let Some(object) = object.strip_suffix(CHAIN_START) else { return false };
        let belongs = self.hash(&format!("{object}}}")) == hash;
        if belongs {
            hash.clone_into(&mut self.0);
        }
        belongs
    }

    fn hash(&self, object: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.0.as_bytes()).update(object.as_bytes());
        hasher.finalize().to_hex().to_string()
    }
}
