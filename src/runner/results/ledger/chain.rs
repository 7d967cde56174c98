//! Lines that are chained: each ends with a hash over itself and the hash of the line before it.
//!
//! A line that was changed, moved or inserted, or that lacks the line before it, has another hash. Only the
//! removal of last lines goes unnoticed.

/// The member that a line ends with, up to its value.
const MEMBER: &str = ",\"chain\":\"";

/// What follows the hash.
const END: &str = "\"}";

/// Digits of a hash.
const DIGITS: usize = 64;

/// The hash of the last line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain(String);

impl Chain {
    /// Returns the hash of the last line; `None` before the first.
    pub fn head(&self) -> Option<&str> {
        Some(self.0.as_str()).filter(|hash| !hash.is_empty())
    }

    /// Appends a JSON object; returns its line, without an end.
    pub fn seal(&mut self, object: &str) -> String {
        self.0 = self.hash(object);
        let open = object.strip_suffix('}').unwrap_or(object);
        format!("{open}{MEMBER}{}{END}", self.0)
    }

    /// Takes the next line of a file; false, and the chain as it was, if the line does not belong there.
    pub fn follow(&mut self, line: &str) -> bool {
        let Some(object) = line.strip_suffix(END).filter(|rest| rest.len() > DIGITS) else { return false };
        let Some((object, hash)) = object.split_at_checked(object.len() - DIGITS) else { return false };
        let Some(object) = object.strip_suffix(MEMBER) else { return false };
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
