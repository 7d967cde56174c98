//! Finds stop strings in generated tokens.

use crate::data::Tokenizer;
use crate::data::tokenizer::Entry;
use crate::error::Result;
use std::sync::Arc;

/// Tokens that are decoded in front of a stop string's own, whose first may be the rest of a character.
const MORE_TOKENS: usize = 4;

/// Finds stop strings as soon as a token completes one.
#[derive(Clone, Debug)]
pub(super) struct StopFinder {
    strings: Vec<String>,
    /// Bytes of the longest.
    longest: usize,
    tokenizer: Tokenizer,
    /// The bytes behind tokens; `None` if tokens stand for other bytes in other places, so that they have to
    /// be decoded.
    bytes: Option<Arc<BytesOfTokens>>,
}

/// The bytes behind each token, one after another.
#[derive(Debug)]
struct BytesOfTokens {
    bytes: Vec<u8>,
    /// Where those of each token end, by id.
    ends: Vec<usize>,
}

impl StopFinder {
    /// Prepares to find strings, none of which is empty.
    ///
    /// # Errors
    /// If the tokenizer cannot be read.
    pub fn new(strings: &[String], tokenizer: &Tokenizer) -> Result<Self> {
        Ok(Self {
            strings: strings.to_vec(),
            longest: strings.iter().map(String::len).max().unwrap_or(0),
            tokenizer: tokenizer.clone(),
            bytes: BytesOfTokens::new(tokenizer)?.map(Arc::new),
        })
    }

    /// Returns true if the last of these tokens completes a stop string.
    ///
    /// # Errors
    /// If a token is outside the vocabulary.
    pub fn finds_end(&self, tokens: &[u32]) -> Result<bool> {
        match &self.bytes {
            Some(bytes) => {
                let tail = bytes.tail(tokens, self.longest);
                let is_in = |stop: &[u8]| tail.windows(stop.len()).any(|found| found == stop);
                Ok(self.strings.iter().any(|stop| is_in(stop.as_bytes())))
            }
            None => {
                let last = tokens.len().saturating_sub(self.longest + MORE_TOKENS);
                let text = self.tokenizer.decode_text(&tokens[last..])?;
                Ok(self.strings.iter().any(|stop| text.contains(stop)))
            }
        }
    }
}

impl BytesOfTokens {
    fn new(tokenizer: &Tokenizer) -> Result<Option<Self>> {
        if !tokenizer.has_fixed_bytes() {
            return Ok(None);
        }
        let ids: Vec<u32> = (0..tokenizer.vocab_size() as u32).collect();
        let mut found = Self { bytes: Vec::new(), ends: Vec::with_capacity(ids.len()) };
        for entry in tokenizer.entries(&ids)? {
            match entry {
                Entry::Bytes(bytes) => found.bytes.extend(bytes),
                Entry::Special(_) => {}
                Entry::Text(_) => return Ok(None),
            }
            found.ends.push(found.bytes.len());
        }
        Ok(Some(found))
    }

    /// Returns the bytes of the last token, and at least `before` bytes in front of them if there are as
    /// many.
    fn tail(&self, tokens: &[u32], before: usize) -> Vec<u8> {
        let (mut tail, mut wanted) = (Vec::new(), None);
        for &token in tokens.iter().rev() {
            let bytes = self.bytes_of(token);
            tail.extend(bytes.iter().rev());
            if tail.len() >= *wanted.get_or_insert(bytes.len() + before) {
                break;
            }
        }
        tail.reverse();
        tail
    }

    fn bytes_of(&self, token: u32) -> &[u8] {
        let token = token as usize;
        let start = token.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(token).map_or(&[], |&end| &self.bytes[start..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of tokens of a text up to the one that completes a stop string.
    fn stopped_after(finder: &StopFinder, tokens: &[u32]) -> Option<usize> {
        (1..=tokens.len()).find(|&count| finder.finds_end(&tokens[..count]).unwrap())
    }

    #[test]
    fn a_string_is_found_with_the_token_that_completes_it() {
        let strings = ["Question:", ".", "né\n"].map(str::to_owned);
        for name in ["byte", "gpt2"] {
            let tokenizer = Tokenizer::open(name).unwrap();
            let known = StopFinder::new(&strings, &tokenizer).unwrap();
            assert!(known.bytes.is_some(), "{name}");
            let decoding = StopFinder { bytes: None, ..known.clone() };
            for (text, end) in [
                ("It is. Then", Some("It is.")),
                ("an answer\n\nQuestion: Who", Some("an answer\n\nQuestion:")),
                ("Question", None),
                ("être né\n 東", Some("être né\n")),
                ("", None),
            ] {
                let tokens = tokenizer.encode(text).unwrap();
                let found = stopped_after(&known, &tokens);
                assert_eq!(found, stopped_after(&decoding, &tokens), "{name}, {text:?}");
                match (end, found) {
                    (None, found) => assert_eq!(found, None, "{name}, {text:?}"),
                    (Some(end), Some(count)) => {
                        let shown = tokenizer.decode_text(&tokens[..count]).unwrap();
                        let before = tokenizer.decode_text(&tokens[..count - 1]).unwrap();
                        assert!(shown.starts_with(end) && !before.starts_with(end), "{name}, {text:?}");
                    }
                    (Some(_), None) => panic!("{name}, {text:?}"),
                }
            }
            // The end token, which has no text, does not count.
            let parted = [tokenizer.encode("Ques").unwrap(), vec![tokenizer.end_token()]].concat();
            let parted = [parted, tokenizer.encode("tion:").unwrap()].concat();
            assert_eq!(stopped_after(&known, &parted), Some(parted.len()), "{name}");
        }
    }
}
