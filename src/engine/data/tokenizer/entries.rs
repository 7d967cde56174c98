//! The entries of a vocabulary, as people read them.

use super::Tokenizer;
use super::builtin::byte_chars;
use crate::error::Result;
use std::collections::HashMap;

/// What a token stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// These bytes of text, in every place.
    Bytes(Vec<u8>),
    /// No text: the name of a special token.
    Special(String),
    /// This text if the token stands alone; elsewhere it may stand for another.
    Text(String),
}

impl Tokenizer {
    /// Returns true if every token stands for the same bytes in all places.
    pub fn has_fixed_bytes(&self) -> bool {
        self.bytes.is_some()
    }

    /// Returns what tokens stand for, in order.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    pub fn entries(&self, ids: &[u32]) -> Result<Vec<Entry>> {
        let bytes: HashMap<char, u8> = byte_chars().into_iter().zip(0..=u8::MAX).collect();
        let added = self.inner.added_tokens()?;
        let entry = |&id: &u32| {
            let Some(name) = self.inner.id_to_token(id) else { return self.decode(&[id]).map(Entry::Text) };
            let added = added.get(&id);
            if id == self.end || added.is_some_and(|token| token.special) {
                return Ok(Entry::Special(name));
            }
            let plain = name.chars().map(|c| bytes.get(&c).copied()).collect::<Option<Vec<u8>>>();
            match (self.bytes.is_some(), added, plain) {
                // An added token is written as it is.
                (true, Some(_), _) => Ok(Entry::Bytes(name.into_bytes())),
                (true, None, Some(bytes)) => Ok(Entry::Bytes(bytes)),
                _ => self.decode(&[id]).map(Entry::Text),
            }
        };
        ids.iter().map(entry).collect()
    }
}

/// Writes bytes as text in double quotes. Control characters and quotes are escaped as in Rust, and bytes
/// that are not UTF-8 are written as `\xe2`.
pub fn escaped(bytes: &[u8]) -> String {
    let mut shown = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' => shown.push(c),
                c => shown.extend(c.escape_debug()),
            }
        }
        chunk.invalid().iter().for_each(|byte| shown += &format!("\\x{byte:02x}"));
    }
    shown.push('"');
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_byte_level_vocabularies_are_their_bytes() {
        let tokenizer = Tokenizer::open("gpt2").unwrap();
        let ids = tokenizer.encode(" it's 😀\n").unwrap();
        let entries = tokenizer.entries(&ids).unwrap();
        let bytes = |entry: &Entry| match entry {
            Entry::Bytes(bytes) => bytes.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(entries.iter().flat_map(bytes).collect::<Vec<_>>(), " it's 😀\n".as_bytes());
        let end = tokenizer.entries(&[tokenizer.end_token()]).unwrap();
        assert_eq!(end, [Entry::Special("<|endoftext|>".to_owned())]);
        assert!(tokenizer.entries(&[60_000]).is_err());
    }

    #[test]
    fn bytes_are_escaped_as_text() {
        for (bytes, shown) in [
            (&b" it's \"a\"\n"[..], r#"" it's \"a\"\n""#),
            (b"\xf0\x9f a\xe2", r#""\xf0\x9f a\xe2""#),
            ("é\u{202e}\u{1b}".as_bytes(), r#""é\u{202e}\u{1b}""#),
        ] {
            assert_eq!(escaped(bytes), shown);
        }
    }
}
