//! Text into tokens and back.

use super::super::parallel::collect_in_order;
use super::Tokenizer;
use super::byte_pairs::BytePairs;
use super::cut::Cut;
use super::guarded::GuardedTokenizer;
use super::lost::LostBytes;
use super::special::SETTINGS;
use super::timed::timed;
use crate::error::{Error, Result};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes per piece when text is cut to be encoded in parallel.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// Text of fewer bytes is encoded by the library, which needs no preparation.
const LONG_BYTES: usize = 512;

/// Tokens of a prompt that are decoded with the text that continues it: enough that a decoder treats the
/// first new token as one inside a text.
const CONTEXT_TOKENS: usize = 8;

impl Tokenizer {
    /// Encodes a text. Long text is encoded in parallel if cutting provably does not change the tokens.
    ///
    /// # Errors
    /// If the tokenizer cannot express the text (a tokenizer.json without an unknown token or byte fallback),
    /// makes its end token of it, or does not finish.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        if self.foreign {
            let (this, owned) = (self.clone(), text.to_owned());
            return timed(text.len(), move || this.encode_piece(&owned))?;
        }
        let pieces: Vec<Range<usize>> = self.pieces(text).collect();
        if let [whole] = &pieces[..] {
            return self.encode_piece(&text[whole.clone()]);
        }
        let encoded = collect_in_order(pieces.into_par_iter().map(|p| self.encode_piece(&text[p])))?;
        Ok(encoded.concat())
    }

    /// Encodes a text without a limit on the time.
    fn encode_piece(&self, text: &str) -> Result<Vec<u32>> {
        let tokens = match self.cut {
            // In the `byte` tokenizer, ids are the bytes. Its tokenizer.json gives the same result, a hundred
            // times slower.
            Cut::Anywhere => text.bytes().map(u32::from).collect(),
            Cut::BeforeSpace | Cut::BesideBlank | Cut::Nowhere => self.encode_words(text)?,
        };
        if (self.foreign || self.opening_after_end().is_some()) && !self.recognizes_special {
            self.check_no_special(&tokens)?;
        }
        Ok(tokens)
    }

    /// Encodes a text by words if it is long and the tokenizer is of that kind, else with the library.
    fn encode_words(&self, text: &str) -> Result<Vec<u32>> {
        let library = |text: &str| self.inner.encode(text);
        if text.len() >= LONG_BYTES && !self.recognizes_special {
            // If it cannot be made, the library's own call reports why.
            let make = || BytePairs::new(&self.json, &self.inner).ok().flatten();
            let encoded = self.pairs.get_or_init(make).as_ref().map(|pairs| pairs.encode(text, library));
            if let Some(tokens) = encoded.transpose()?.flatten() {
                return Ok(tokens);
            }
        }
        library(text)
    }

    /// Rejects tokens of a text that open or end a document: the loader alone places these. An added token is
    /// plain text, but the vocabulary may have an entry of the same name, or no other token for unknown text.
    fn check_no_special(&self, tokens: &[u32]) -> Result<()> {
        let placed = [Some(self.end), self.opening_after_end()];
        let Some(found) = tokens.iter().find(|token| placed.contains(&Some(**token))) else { return Ok(()) };
        let name = self.inner.id_to_token(*found).unwrap_or_default();
        let how = match self.inner.unknown_token() == Some(*found) {
            true => "for text without an entry, because it is also the unknown token",
            false => "of its name in the text, because the vocabulary has it as an ordinary entry",
        };
        Err(Error::usage(format!(
            "the tokenizer makes token {found} ({name:?}), which only separates documents, {how}. Name another token as \
             \"eos_token\" in the {SETTINGS} beside the tokenizer.json or as data.begin_token, or remove {name:?} from \
             the text"
        )))
    }

    /// Encodes a text, each token with its bytes of the text, without a limit on the time.
    ///
    /// # Errors
    /// If the tokenizer cannot express the text.
    pub(in crate::data) fn encode_with_bytes(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        self.inner.encode_with_bytes(text)
    }

    /// Returns the ids of special tokens by their names: those that the tokenizer.json marks so, and those
    /// that begin and end a text.
    ///
    /// # Errors
    /// If the library fails.
    pub(in crate::data) fn special_entries(&self) -> Result<BTreeMap<String, u32>> {
        let added = self.inner.added_tokens()?;
        let marked = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id);
        let ids = marked.chain([self.end, self.opening_token()]);
        Ok(ids.filter_map(|id| Some((self.inner.id_to_token(id)?, id))).collect())
    }

    /// Encodes a piece of a document, without a limit on the time, and counts the bytes that are lost.
    ///
    /// # Errors
    /// Fails like [`Tokenizer::encode`].
    pub(in crate::data) fn encode_counting(&self, text: &str) -> Result<(Vec<u32>, LostBytes)> {
        let tokens = self.encode_piece(text)?;
        let lost = self.lost(text, &tokens)?;
        Ok((tokens, lost))
    }

    /// Returns the bytes of a text that its tokens lose.
    fn lost(&self, text: &str, tokens: &[u32]) -> Result<LostBytes> {
        if !self.foreign || self.keeps_every_byte() {
            return Ok(LostBytes::default());
        }
        let unknown = self.inner.unknown_token().filter(|unknown| tokens.contains(unknown));
        if let Some(bytes) = &self.bytes {
            let kept: u64 = tokens.iter().map(|&token| u64::from(bytes.counts[token as usize])).sum();
            let lost = (text.len() as u64).saturating_sub(kept);
            return Ok(match unknown {
                Some(_) => LostBytes { vanished: 0, unknown: lost },
                None => LostBytes { vanished: lost, unknown: 0 },
            });
        }
        let unknown = unknown.map_or(Ok(0), |unknown| self.inner.bytes_behind(unknown, text))?;
        let vanishes = |c: char| -> Result<bool> {
            let tokens = self.inner.encode(c.encode_utf8(&mut [0; 4]))?;
            // A part of a character that has no entry leaves bytes that are not UTF-8.
            let is_cut =
                |text: String| c != char::REPLACEMENT_CHARACTER && text.contains(char::REPLACEMENT_CHARACTER);
            Ok(tokens.is_empty() || is_cut(self.inner.decode(&tokens)?))
        };
        Ok(LostBytes { vanished: self.characters.vanished(text, vanishes)?, unknown })
    }

    /// Cuts a text into byte ranges that cover it in order. The tokens of the pieces joined are the tokens of
    /// the whole.
    pub(in crate::data) fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = Range<usize>> + 't {
        let cut = self.cut;
        let mut start = 0;
        let mut whole = text.is_empty();
        std::iter::from_fn(move || {
            if start == text.len() && !std::mem::take(&mut whole) {
                return None;
            }
            let end = cut.after(text, start.saturating_add(PIECE_BYTES));
            let piece = start..end;
            start = end;
            Some(piece)
        })
    }

    /// Decodes token ids. The end token is shown by its name, and bytes that are not UTF-8 become `�`.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, GuardedTokenizer::decode)
    }

    /// Decodes token ids like [`Tokenizer::decode`], but leaves out special tokens.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    pub fn decode_text(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, GuardedTokenizer::decode_text)
    }

    fn decoded(
        &self,
        ids: &[u32],
        decode: fn(&GuardedTokenizer, &[u32]) -> Result<String>,
    ) -> Result<String> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.vocab) {
            return Err(Error::failed(format!(
                "token {id} is outside the vocabulary of {} entries",
                self.vocab
            )));
        }
        if ids.is_empty() {
            // Some decoders of the library subtract 1 from the number of tokens.
            return Ok(String::new());
        }
        if self.foreign {
            let (inner, owned) = (Arc::clone(&self.inner), ids.to_vec());
            return timed(8 * ids.len(), move || decode(&inner, &owned))?;
        }
        decode(&self.inner, ids)
    }

    /// Decodes tokens that continue a prompt, as a part of the whole text: decoders drop a space before the
    /// first token of a text. `before` are the tokens of the prompt's text.
    ///
    /// # Errors
    /// Fails like [`Tokenizer::decode`].
    pub fn decode_after(&self, before: &[u32], tokens: &[u32]) -> Result<String> {
        let context = &before[before.len().saturating_sub(CONTEXT_TOKENS)..];
        let (shown, whole) = (self.decode(context)?, self.decode(&[context, tokens].concat())?);
        // A decoder may change the end of the context, such as a space before a period.
        let same =
            shown.chars().zip(whole.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        Ok(whole[same..].to_owned())
    }
}
