//! The only access to the tokenizers library. The library panics on some tokenizer.json files and allocates
//! whatever size others claim, and these files come from third parties.

use super::super::caught::caught;
use super::kind::{in_words, other_file};
use super::timed::timed;
use crate::error::{Error, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::collections::HashMap;
use std::ops::Range;
use tokenizers::{AddedToken, PostProcessorWrapper};

/// A tokenizer of the library. Every call returns a result or an error; none panics.
#[derive(Clone)]
pub struct GuardedTokenizer {
    inner: tokenizers::Tokenizer,
    unknown: Option<Unknown>,
}

/// The parts of a tokenizer.json that are checked before the library reads it.
#[derive(Deserialize)]
struct Probe {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    post_processor: Value,
    model: ModelProbe,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ModelProbe {
    dropout: Value,
    unk_token: Value,
    unk_id: Value,
}

/// The name or the id of the token that stands for text without an entry.
#[derive(Clone, Debug)]
enum Unknown {
    Named(String),
    Id(u32),
}

impl GuardedTokenizer {
    /// Parses a tokenizer.json for encoding without truncation, padding or dropout, so that the tokens depend
    /// only on the text.
    ///
    /// # Errors
    /// If the file is malformed, or the library refuses it.
    pub fn parse(json: &str) -> Result<Self> {
        let wrong = |e: &dyn std::fmt::Display| {
            Error::usage(format!("not a HuggingFace tokenizer.json: {}", in_words(&e.to_string())))
        };
        // The library panics on some malformed JSON (0.23, decoders), so the syntax is checked first.
        serde_json::from_str::<IgnoredAny>(json).map_err(|e| wrong(&e))?;
        let probe: Probe = serde_json::from_str(json)
            .map_err(|e| wrong(&other_file(json).unwrap_or_else(|| e.to_string())))?;
        let parts = [&probe.normalizer, &probe.pre_tokenizer, &probe.decoder, &probe.post_processor];
        check_parts(parts).map_err(|e| wrong(&e))?;
        check_normalizer(&probe.normalizer).map_err(|e| wrong(&e))?;
        check_growth("normalizer", &probe.normalizer).map_err(|e| wrong(&e))?;
        check_growth("decoder", &probe.decoder).map_err(|e| wrong(&e))?;
        check_expressions([&probe.normalizer, &probe.pre_tokenizer, &probe.decoder])
            .map_err(|e| wrong(&e))?;
        let mut without_dropout = None;
        if !probe.model.dropout.is_null() {
            let mut document: Value = serde_json::from_str(json).map_err(|e| wrong(&e))?;
            document["model"]["dropout"] = Value::Null;
            without_dropout = Some(document.to_string());
        }
        let json = without_dropout.unwrap_or_else(|| json.to_owned());
        let parsed = timed(json.len(), move || guard(|| tokenizers::Tokenizer::from_bytes(json)))??;
        let mut inner = parsed.map_err(|e| wrong(&e))?;
        // It places special tokens around a text, which xrun places itself. A template of many parts would
        // copy the text as many times.
        inner.with_post_processor(None::<PostProcessorWrapper>);
        let no_limit = guard(|| inner.with_truncation(None).map(|_| ()))?;
        no_limit.map_err(|e| Error::usage(format!("cannot switch truncation off: {e}")))?;
        inner.with_padding(None);
        inner.set_encode_special_tokens(true);
        let unknown = match (&probe.model.unk_token, &probe.model.unk_id) {
            (Value::String(name), _) => Some(Unknown::Named(name.clone())),
            (_, id) => id.as_u64().and_then(|id| u32::try_from(id).ok()).map(Unknown::Id),
        };
        Ok(Self { inner, unknown })
    }

    /// Returns the added tokens with their flags, by id.
    ///
    /// # Errors
    /// If the library fails.
    pub fn added_tokens(&self) -> Result<HashMap<u32, AddedToken>> {
        guard(|| self.inner.get_added_tokens_decoder().into_iter().collect())
    }

    /// Marks an entry as special, so that its name in a text is plain text. Its id stays the same.
    ///
    /// # Errors
    /// If the library fails.
    pub fn make_special(&mut self, id: u32) -> Result<()> {
        let added = self.added_tokens()?.remove(&id);
        let Some(token) = added.filter(|token| !token.special) else { return Ok(()) };
        let added = guard(|| self.inner.add_special_tokens([AddedToken { special: true, ..token }]))?;
        added.map(|_| ()).map_err(|e| Error::failed(format!("cannot mark token {id} as special: {e}")))
    }

    /// Returns the token that stands for text without an entry, if the tokenizer has one.
    pub fn unknown_token(&self) -> Option<u32> {
        match self.unknown.as_ref()? {
            Unknown::Named(name) => self.token_to_id(name),
            Unknown::Id(id) => Some(*id),
        }
    }

    /// Returns the bytes of a text behind occurrences of a token.
    ///
    /// # Errors
    /// If the tokenizer cannot express the text.
    pub fn bytes_behind(&self, token: u32, text: &str) -> Result<u64> {
        let encoding = guard(|| self.inner.encode(text, false))?;
        let encoding =
            encoding.map_err(|e| Error::usage(format!("the tokenizer cannot encode the text: {e}")))?;
        let spans = encoding.get_ids().iter().zip(encoding.get_offsets());
        Ok(spans.filter(|(id, _)| **id == token).map(|(_, (from, to))| (to - from) as u64).sum())
    }

    /// Encodes the names of special tokens in a text as these tokens, not as plain text.
    pub fn recognize_special_tokens(&mut self) {
        self.inner.set_encode_special_tokens(false);
    }

    /// Returns the token ids of a text, without special tokens around it.
    ///
    /// # Errors
    /// If the tokenizer cannot express the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = guard(|| self.inner.encode_fast(text, false))?;
        let encoding =
            encoding.map_err(|e| Error::usage(format!("the tokenizer cannot encode the text: {e}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns the token ids of a text, without special tokens around it, each with its bytes of the text. A
    /// token that is a part of a character has the bytes of the character.
    ///
    /// # Errors
    /// If the tokenizer cannot express the text.
    pub fn encode_with_bytes(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        let encoding = guard(|| self.inner.encode(text, false))?;
        let encoding =
            encoding.map_err(|e| Error::usage(format!("the tokenizer cannot encode the text: {e}")))?;
        let bytes = encoding.get_offsets().iter().map(|&(from, to)| from..to);
        Ok(encoding.get_ids().iter().copied().zip(bytes).collect())
    }

    /// Returns the text of token ids, special tokens included.
    ///
    /// # Errors
    /// If the library fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, false)
    }

    /// Returns the text of token ids without special tokens.
    ///
    /// # Errors
    /// If the library fails.
    pub fn decode_text(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, true)
    }

    fn decoded(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        guard(|| self.inner.decode(ids, skip_special_tokens))?
            .map_err(|e| Error::failed(format!("cannot decode tokens: {e}")))
    }

    /// Returns every entry with its id, added tokens included.
    ///
    /// # Errors
    /// If the library fails.
    pub fn vocab(&self) -> Result<HashMap<String, u32>> {
        guard(|| self.inner.get_vocab(true))
    }

    /// Returns the id of an entry.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        guard(|| self.inner.token_to_id(token)).ok().flatten()
    }

    /// Returns the entry with an id.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        guard(|| self.inner.id_to_token(id)).ok().flatten()
    }
}

impl std::fmt::Debug for GuardedTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuardedTokenizer").finish_non_exhaustive()
    }
}

/// Calls the library and turns a panic into an error. Between calls the library keeps only caches, which it
/// locks.
fn guard<T>(call: impl FnOnce() -> T) -> Result<T> {
    caught(call).map_err(|text| {
        Error::usage(format!(
            "the tokenizers library panics on this tokenizer.json ({text}); the file is damaged"
        ))
    })
}

/// Checks what the library does not check in normalizers. SentencePiece's normalizer allocates as much as its
/// table claims to hold, and a refused allocation aborts the process.
fn check_normalizer(normalizer: &Value) -> Result<(), String> {
    let parts = normalizer["normalizers"].as_array();
    parts.into_iter().flatten().try_for_each(check_normalizer)?;
    let Some(table) = normalizer["precompiled_charsmap"].as_str() else { return Ok(()) };
    let held = table.trim_end_matches('=').len() / 4 * 3;
    let claimed = first_le_u32(table).ok_or("precompiled_charsmap is not base64")?;
    if claimed as usize > held {
        return Err(format!("precompiled_charsmap claims {claimed} bytes and holds {held}"));
    }
    if claimed < 4 {
        return Err("precompiled_charsmap has an empty table".to_owned());
    }
    Ok(())
}

/// The most parts in the four sequences of a file. Tokenizers in use have about ten.
const MAX_PARTS: usize = 128;

/// Checks the number of normalizers, pre-tokenizers, decoders and post-processors: each copies the text.
fn check_parts(parts: [&Value; 4]) -> Result<(), String> {
    fn count(part: &Value) -> usize {
        let nested = ["normalizers", "pretokenizers", "decoders", "processors"];
        let inside = nested.iter().filter_map(|name| part[name].as_array()).flatten().map(count);
        inside.fold(1, usize::saturating_add)
    }
    let found = parts.into_iter().map(count).fold(0, usize::saturating_add);
    match found > MAX_PARTS {
        true => Err(format!(
            "its normalizers, pre-tokenizers, decoders and post-processors have {found} parts; at most {MAX_PARTS} are \
             read"
        )),
        false => Ok(()),
    }
}

/// How many times longer a normalizer or decoder may make a text. Real ones turn a space into the three bytes
/// of `▁`; a sequence of replacements that each double the text would take all memory. The library needs
/// seventeen bytes for each byte of a normalized text.
const MAX_GROWTH: usize = 16;

/// Checks how much longer the replacements of a normalizer or decoder can make a text.
fn check_growth(what: &str, part: &Value) -> Result<(), String> {
    match growth(part) {
        Some(growth) if growth <= MAX_GROWTH => Ok(()),
        _ => Err(format!("its {what} may make a text more than {MAX_GROWTH} times as long")),
    }
}

/// Returns the most bytes that a part can make of one byte; `None` if the number overflows.
fn growth(part: &Value) -> Option<usize> {
    let parts = part["normalizers"].as_array().or(part["decoders"].as_array());
    let mut factor =
        parts.into_iter().flatten().try_fold(1usize, |all, part| all.checked_mul(growth(part)?))?;
    if part["prepend"].as_str().is_some_and(|text| text.len() > MAX_GROWTH) {
        return None;
    }
    if let Some(content) = part["content"].as_str() {
        // A regular expression may match the empty string before every byte.
        let pattern = part["pattern"]["String"].as_str().map_or(0, str::len);
        let replaced = if pattern == 0 { 1 + content.len() } else { content.len().div_ceil(pattern) };
        factor = factor.checked_mul(replaced.max(1))?;
    }
    Some(factor)
}

/// The most bytes of regular expressions in one file, with counted repetitions written out. The library takes
/// up to 33 KiB of memory per byte. GPT-4o's expression has 274 bytes; expressions that list the world's
/// letters by ranges have about a thousand.
const MAX_EXPRESSION_BYTES: usize = 2048;

/// Bytes that each repetition of a single element counts as. No element takes more memory than eight bytes of
/// other elements.
const ELEMENT_BYTES: usize = 8;

/// Checks that the regular expressions in these parts take a bounded amount of memory when compiled.
fn check_expressions(parts: [&Value; 3]) -> Result<(), String> {
    check_expression_bytes(parts.into_iter().map(expression_bytes).fold(0, usize::saturating_add))
}

/// Checks that one regular expression takes a bounded amount of memory when compiled.
pub(in crate::data) fn check_expression(expression: &str) -> Result<(), String> {
    check_expression_bytes(expanded_len(expression))
}

fn check_expression_bytes(bytes: usize) -> Result<(), String> {
    if bytes > MAX_EXPRESSION_BYTES {
        return Err(format!(
            "its regular expressions have {bytes} bytes with counted repetitions written out; at most \
             {MAX_EXPRESSION_BYTES} are compiled"
        ));
    }
    Ok(())
}

/// Returns the bytes of all regular expressions in a part, with counted repetitions written out.
fn expression_bytes(part: &Value) -> usize {
    match part {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match value {
                Value::String(expression) if name == "Regex" => expanded_len(expression),
                other => expression_bytes(other),
            })
            .fold(0, usize::saturating_add),
        Value::Array(parts) => parts.iter().map(expression_bytes).fold(0, usize::saturating_add),
        _ => 0,
    }
}

/// Returns an upper bound of an expression's length with its counted repetitions written out. A repeated
/// group or class multiplies the whole expression, so that its beginning need not be found.
fn expanded_len(expression: &str) -> usize {
    let (mut bytes, mut factor) = (expression.len(), 1usize);
    for (at, _) in expression.match_indices('{') {
        // These braces belong to a character code or a class.
        if [r"\x", r"\u", r"\U", r"\p", r"\P"].iter().any(|escape| expression[..at].ends_with(escape)) {
            continue;
        }
        let inside = expression[at + 1..].split('}').next().unwrap_or_default();
        let counts = inside.split(',').filter_map(|count| count.trim().parse::<usize>().ok());
        let Some(count) = counts.max().filter(|count| *count > 1) else { continue };
        if expression[..at].ends_with([')', ']']) {
            factor = factor.saturating_mul(count);
        } else {
            bytes = bytes.saturating_add(ELEMENT_BYTES.saturating_mul(count - 1));
        }
    }
    bytes.saturating_mul(factor)
}

/// Decodes the little-endian number in the first four bytes of base64 text.
fn first_le_u32(base64: &str) -> Option<u32> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let first = base64.as_bytes().get(..6)?;
    let bits = first.iter().try_fold(0u64, |bits, c| Some(bits << 6 | u64::from(digit(*c)?)))?;
    // Six digits are 36 bits; the first 32 are the number.
    u32::try_from(bits >> 4).ok().map(u32::swap_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::builtin::byte_json;

    fn with(change: impl FnOnce(&mut Value)) -> String {
        let mut document: Value = serde_json::from_str(&byte_json()).unwrap();
        change(&mut document);
        document.to_string()
    }

    /// Tables that made the library panic, or allocate 8 GiB.
    #[test]
    fn broken_tables_of_sentencepiece_are_errors() {
        for table in ["AAAAAAAA", "BAAAAP///38A", "/////w==", "", "A", "????????", "BAAAAP///38AAAAA"] {
            let part = serde_json::json!({"type": "Precompiled", "precompiled_charsmap": table});
            let sequence = serde_json::json!({"type": "Sequence", "normalizers": [part.clone()]});
            for normalizer in [part, sequence] {
                let json = with(|document| document["normalizer"] = normalizer);
                let ended = GuardedTokenizer::parse(&json).and_then(|t| t.encode("a tale \u{1e9b} \u{fb01}"));
                let error = ended.expect_err(table);
                assert_eq!(error.kind(), crate::error::ErrorKind::Usage, "{table}: {error}");
            }
        }
    }

    #[test]
    fn the_first_word_is_the_size_of_the_table() {
        assert_eq!(first_le_u32("AAAAAAAA"), Some(0));
        assert_eq!(first_le_u32("BAAAAP///38A"), Some(4));
        assert_eq!(first_le_u32("/////w=="), Some(u32::MAX));
        assert_eq!((first_le_u32("AAAA"), first_le_u32("AA=A====")), (None, None));
    }

    /// Each replacement doubles the text: one byte becomes 2³⁰.
    #[test]
    fn a_normalizer_that_explodes_is_refused() {
        let replace = |pattern: Value, content: &str| serde_json::json!({"type": "Replace", "pattern": pattern, "content": content});
        let doubled = vec![replace(serde_json::json!({"String": "a"}), "aa"); 30];
        let long = replace(serde_json::json!({"Regex": ""}), &"a".repeat(2000));
        for part in [serde_json::json!({"type": "Sequence", "normalizers": doubled}), long.clone()] {
            let error = GuardedTokenizer::parse(&with(|document| document["normalizer"] = part)).unwrap_err();
            assert!(error.message().contains("its normalizer may make a text more than 16 times"), "{error}");
        }
        let decoders = serde_json::json!({"type": "Sequence", "decoders": [long]});
        let error = GuardedTokenizer::parse(&with(|document| document["decoder"] = decoders)).unwrap_err();
        assert!(error.message().contains("its decoder may"), "{error}");
        let usual = serde_json::json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, replace(serde_json::json!({"String": " "}), "▁"),
            replace(serde_json::json!({"Regex": " {2,}"}), "▁")]});
        GuardedTokenizer::parse(&with(|document| document["normalizer"] = usual)).unwrap();
    }

    /// Long expressions whose parts the library compiles one by one, and repetitions of large classes.
    #[test]
    fn expressions_that_take_much_memory_are_refused() {
        let split = |expression: &str| {
            serde_json::json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated",
                "invert": false})
        };
        let parsed = |expressions: &[&str]| {
            let splits: Vec<Value> = expressions.iter().map(|expression| split(expression)).collect();
            let sequence = serde_json::json!({"type": "Sequence", "pretokenizers": splits});
            GuardedTokenizer::parse(&with(|document| document["pre_tokenizer"] = sequence))
        };
        let long = "+| ?".repeat(600);
        for expressions in
            [&[&*long][..], &["(?:\\p{L}{9}){99}"], &["\\w{300}"], &["[a-z]{2,999}"], &["\\p{L}{20}"; 13]]
        {
            let error = parsed(expressions).unwrap_err();
            assert!(error.message().contains("its regular expressions have "), "{error}");
        }
        let gpt_4o = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
        parsed(&[gpt_4o, "\\d{1,3}(?=(?:\\d{3})*\\b)"]).unwrap();
        assert_eq!((expanded_len(" {2,}a{3}\\x{41}"), expanded_len("(ab{2}){3}")), (15 + 8 + 16, 54));
    }

    /// With dropout, the same text would be encoded differently every time.
    #[test]
    fn dropout_is_off() {
        let json = |dropout: Value| {
            with(|document| {
                document["model"]["vocab"]["ab"] = 257.into();
                document["model"]["merges"] = serde_json::json!([["a", "b"]]);
                document["model"]["dropout"] = dropout;
            })
        };
        let encoded = |dropout: Value| GuardedTokenizer::parse(&json(dropout)).unwrap().encode("ab").unwrap();
        assert_eq!(encoded(Value::Null), [257]);
        for _ in 0..20 {
            assert_eq!(encoded(0.9.into()), [257]);
        }
        assert_eq!(encoded(1.0.into()), [257]);
    }
}
