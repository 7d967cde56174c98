//! The `tokenizer.json` of a trained vocabulary.

use super::merges::Learned;
use super::pattern::Pattern;
use crate::data::tokenizer::{byte_chars, byte_level, document};
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Most special tokens, and the most bytes of one.
const MAX_SPECIAL: usize = 1024;
const MAX_SPECIAL_BYTES: usize = 256;

/// The entries before the first merge, in the order of HuggingFace's trainer: special tokens, then the 256
/// bytes in the order of the characters that stand for them.
#[derive(Debug)]
pub(super) struct FirstEntries {
    special: Vec<String>,
    /// The id of every byte.
    pub id_of: [u32; 256],
}

impl FirstEntries {
    /// Checks the special tokens and numbers the entries.
    ///
    /// # Errors
    /// If there is no special token, or one is empty, too long, given twice or the character of a byte.
    pub fn new(special: &[String]) -> Result<Self> {
        if special.is_empty() || special.len() > MAX_SPECIAL {
            return Err(Error::usage(format!(
                "{} special tokens: give 1 to {MAX_SPECIAL}, the token that ends a document first",
                special.len()
            )));
        }
        let chars = byte_chars();
        let mut seen = HashSet::new();
        for name in special {
            let wrong = |why: &str| Err(Error::usage(format!("special token {name:?} {why}")));
            let mut characters = name.chars();
            match (characters.next(), characters.next()) {
                (None, _) => return wrong("has no characters; write a name such as '<|endoftext|>'"),
                (Some(only), None) if chars.contains(&only) => {
                    return wrong("is the entry of a byte; write a name such as '<|endoftext|>'");
                }
                _ => {}
            }
            if name.len() > MAX_SPECIAL_BYTES {
                return wrong(&format!("has {} bytes; at most {MAX_SPECIAL_BYTES} are a name", name.len()));
            }
            if !seen.insert(name) {
                return wrong("is given twice");
            }
        }
        let mut ordered: Vec<(char, usize)> = chars.into_iter().zip(0..).collect();
        ordered.sort_unstable();
        let mut id_of = [0; 256];
        for (id, (_, byte)) in (special.len() as u32..).zip(ordered) {
            id_of[byte] = id;
        }
        Ok(Self { special: special.to_vec(), id_of })
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.special.len() + self.id_of.len()
    }

    /// Returns the bytes of each entry, by id; `None` for special tokens.
    pub fn bytes(&self) -> Vec<Option<Vec<u8>>> {
        let mut entries = vec![None; self.len()];
        for (byte, &id) in (0..=u8::MAX).zip(&self.id_of) {
            entries[id as usize] = Some(vec![byte]);
        }
        entries
    }

    /// Returns the bytes whose entry would have the name of a special token.
    pub fn forbidden(&self) -> HashSet<Vec<u8>> {
        let chars = byte_chars();
        let byte = |c| chars.iter().position(|&known| known == c).map(|byte| byte as u8);
        self.special.iter().filter_map(|name| name.chars().map(byte).collect()).collect()
    }

    /// Writes the `tokenizer.json`.
    pub fn json(&self, learned: &Learned, pattern: &Pattern) -> String {
        let chars = byte_chars();
        let name = |id: u32| match self.special.get(id as usize) {
            Some(name) => name.clone(),
            None => byte_level(&learned.entries[id as usize], &chars),
        };
        let vocab: Map<String, Value> =
            (0..learned.entries.len() as u32).map(|id| (name(id), id.into())).collect();
        let merges =
            learned.merges.iter().map(|merge| json!([name(merge.left), name(merge.right)])).collect();
        let special: Vec<(u32, &str)> = (0..).zip(self.special.iter().map(String::as_str)).collect();
        document(vocab, merges, pattern.pre_tokenizer(), false, &special)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_special_tokens_are_refused() {
        for (special, says) in [
            (&[][..], "0 special tokens"),
            (&[""], "has no characters"),
            (&["a"], "is the entry of a byte"),
            (&["Ġ"], "is the entry of a byte"),
            (&["<s>", "<s>"], "is given twice"),
        ] {
            let special: Vec<String> = special.iter().map(|name| (*name).to_owned()).collect();
            let error = FirstEntries::new(&special).unwrap_err();
            assert!(error.message().contains(says), "{special:?}: {error}");
        }
    }

    #[test]
    fn a_special_token_forbids_the_bytes_of_its_name() {
        let first = FirstEntries::new(&["<s>".to_owned(), "Ġa".to_owned(), "中".to_owned()]).unwrap();
        assert_eq!(first.forbidden(), [b"<s>".to_vec(), b" a".to_vec()].into());
        assert_eq!(
            (first.len(), first.id_of[b'!' as usize], first.bytes()[3].clone()),
            (259, 3, Some(vec![b'!']))
        );
    }
}
