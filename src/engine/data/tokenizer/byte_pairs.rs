//! Byte-pair encoding of words, for tokenizers of one kind: bytes, merges, and a splitting into words that
//! [`Words`] knows. It gives the library's tokens several times as fast, because most words of a text were
//! encoded before.

use super::builtin::byte_chars;
use super::guarded::GuardedTokenizer;
use super::words::Words;
use crate::error::Result;
use serde::Deserialize;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

/// Words of more bytes are left to the library: the time of [`BytePairs::encode_word`] grows with their
/// square.
const MAX_WORD: usize = 64;

/// Words kept per thread, a power of two, with the most bytes and tokens of one: 1.5 MiB in all. Two words
/// with one place replace each other.
const KEPT_WORDS: usize = 1 << 15;
const KEPT_BYTES: usize = 15;
const KEPT_TOKENS: usize = 6;

/// Encodes words by merges of pairs.
#[derive(Debug)]
pub(super) struct BytePairs {
    /// Number of the encoder among all of this process.
    number: u64,
    words: Words,
    /// True if the tokenizer composes characters (NFC).
    composes: bool,
    /// Texts that the tokenizer cuts out before it splits a text: added tokens that are not special.
    cut_out: CutOut,
    /// The token of each byte.
    bytes: [u32; 256],
    /// Rank and result of the merge of two tokens.
    merges: HashMap<u64, (u32, u32), BuildHasherDefault<PairHasher>>,
    /// The token of each whole word, if words in the vocabulary need no merges.
    whole: Option<HashMap<Vec<u8>, u32>>,
}

#[derive(Deserialize)]
struct Document {
    normalizer: Value,
    pre_tokenizer: Value,
    model: Model,
}

/// The model; fields that the library adds later make the encoding unknown.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    r#type: String,
    #[serde(default)]
    #[expect(dead_code, reason = "it is switched off")]
    dropout: Value,
    #[serde(default)]
    unk_token: Value,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    #[expect(dead_code, reason = "every byte is an entry, so no token is unknown")]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
}

/// A merge in the newer or the older form.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Joined(String),
}

impl Merge {
    fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Self::Pair(left, right) => Some((left, right)),
            Self::Joined(both) => both.split_once(' '),
        }
    }
}

impl BytePairs {
    /// Returns the encoder of a tokenizer; `None` if it is of another kind.
    ///
    /// # Errors
    /// If the library fails.
    pub fn new(json: &str, inner: &GuardedTokenizer) -> Result<Option<Self>> {
        let cut_out = inner.added_tokens()?.into_values().filter(|token| !token.special);
        let cut_out = CutOut::new(cut_out.map(|token| token.content));
        let document = serde_json::from_str(json).ok();
        Ok(document.and_then(|document| Self::from_document(document, cut_out)))
    }

    fn from_document(document: Document, cut_out: CutOut) -> Option<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let Document { normalizer, pre_tokenizer, model } = document;
        let words = words(&pre_tokenizer)?;
        let composes = match normalizer.get("type").and_then(Value::as_str) {
            Some("NFC") => true,
            _ if normalizer.is_null() => false,
            _ => return None,
        };
        let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
        let has_affix = affixes.into_iter().flatten().any(|affix| !affix.is_empty());
        if model.r#type != "BPE" || has_affix || model.byte_fallback || !model.unk_token.is_null() {
            return None;
        }
        let chars = byte_chars();
        let mut bytes = [0; 256];
        for (byte, c) in bytes.iter_mut().zip(chars) {
            *byte = *model.vocab.get(c.encode_utf8(&mut [0; 4]))?;
        }
        let mut merges = HashMap::with_capacity_and_hasher(model.merges.len(), Default::default());
        for (rank, merge) in (0..).zip(&model.merges) {
            let (left, right) = merge.parts()?;
            let merged = *model.vocab.get(&format!("{left}{right}"))?;
            let key = pair(*model.vocab.get(left)?, *model.vocab.get(right)?);
            if merges.insert(key, (rank, merged)).is_some() {
                return None;
            }
        }
        let by_char: HashMap<char, u8> = chars.into_iter().zip(0..=255).collect();
        let as_bytes =
            |entry: &str| -> Option<Vec<u8>> { entry.chars().map(|c| by_char.get(&c).copied()).collect() };
        let entries = || model.vocab.iter().filter_map(|(entry, id)| Some((as_bytes(entry)?, *id)));
        let whole = model.ignore_merges.then(|| entries().collect());
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Some(Self { number, words, composes, cut_out, bytes, merges, whole })
    }

    /// Returns the tokens of a text; `None` if the tokenizer may change its characters first, or cuts
    /// something out of it. `library` encodes words that are too long for this.
    ///
    /// # Errors
    /// If `library` fails.
    pub fn encode(&self, text: &str, library: impl Fn(&str) -> Result<Vec<u32>>) -> Result<Option<Vec<u32>>> {
        thread_local! {
            static KEPT: RefCell<KeptWords> = const { RefCell::new(KeptWords::EMPTY) };
        }
        let is_composed = || text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes;
        if self.composes && !is_composed() || self.cut_out.occurs_in(text) {
            return Ok(None);
        }
        KEPT.with_borrow_mut(|kept| {
            kept.begin(self.number);
            let (mut tokens, mut failed) = (Vec::with_capacity(text.len() / 3), None);
            self.words.split(text, |word| match word.len() {
                0..=KEPT_BYTES => kept.append(word.as_bytes(), &mut tokens, |word| self.encode_word(word)),
                bytes if bytes <= MAX_WORD => tokens.extend(self.encode_word(word.as_bytes())),
                _ if failed.is_none() => match library(word) {
                    Ok(more) => tokens.extend(more),
                    Err(e) => failed = Some(e),
                },
                _ => {}
            });
            failed.map_or(Ok(Some(tokens)), Err)
        })
    }

    /// Merges the pair of the lowest rank, the leftmost first, until none is left (Sennrich et al. 2016).
    fn encode_word(&self, word: &[u8]) -> Vec<u32> {
        if let Some(id) = self.whole.as_ref().and_then(|whole| whole.get(word)) {
            return vec![*id];
        }
        let mut tokens: Vec<u32> = word.iter().map(|&byte| self.bytes[byte as usize]).collect();
        let merge = |left: u32, right: u32| self.merges.get(&pair(left, right)).copied();
        let mut ranks: Vec<_> = tokens.windows(2).map(|two| merge(two[0], two[1])).collect();
        loop {
            let best = ranks.iter().enumerate().filter_map(|(at, merge)| Some((merge.as_ref()?.0, at))).min();
            let Some((_, at)) = best else { return tokens };
            let Some((_, merged)) = ranks.remove(at) else { return tokens };
            tokens[at] = merged;
            tokens.remove(at + 1);
            if at > 0 {
                ranks[at - 1] = merge(tokens[at - 1], merged);
            }
            if at < ranks.len() {
                ranks[at] = merge(merged, tokens[at + 1]);
            }
        }
    }
}

/// Texts that are looked for.
#[derive(Debug)]
struct CutOut {
    texts: Vec<String>,
    /// True for the first byte of any of them.
    begins: [bool; 256],
}

impl CutOut {
    fn new(texts: impl Iterator<Item = String>) -> Self {
        let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        let mut begins = [false; 256];
        texts.iter().for_each(|text| begins[text.as_bytes()[0] as usize] = true);
        Self { texts, begins }
    }

    fn occurs_in(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        let begins_at = |at: usize| self.texts.iter().any(|text| bytes[at..].starts_with(text.as_bytes()));
        !self.texts.is_empty() && (0..bytes.len()).any(|at| self.begins[bytes[at] as usize] && begins_at(at))
    }
}

/// Returns how a pre-tokenizer splits text, if it does nothing else.
fn words(pre_tokenizer: &Value) -> Option<Words> {
    let is_byte_level = |part: &Value, splits: bool| {
        part["type"] == "ByteLevel" && part["add_prefix_space"] == false && part["use_regex"] == splits
    };
    if is_byte_level(pre_tokenizer, true) {
        return Some(Words::Gpt2);
    }
    let [split, bytes] = &pre_tokenizer["pretokenizers"].as_array()?[..] else { return None };
    let isolates = split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] == false;
    let pattern = split["pattern"]["Regex"].as_str()?;
    let known = pre_tokenizer["type"] == "Sequence" && isolates && is_byte_level(bytes, false);
    Words::from_pattern(pattern).filter(|_| known)
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Hashes pairs of tokens. They come from a vocabulary that is read once, so nobody chooses them to collide.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, pair: u64) {
        let product = u128::from(pair ^ pair.rotate_left(32)) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

/// Words that a thread has encoded, with their tokens.
struct KeptWords {
    /// The encoder that made the tokens.
    encoder: u64,
    places: Vec<KeptWord>,
}

#[derive(Clone, Copy)]
struct KeptWord {
    /// The bytes of the word, zeros, and its length in the last byte. A word is never empty, so a free place
    /// is 0.
    word: u128,
    count: u8,
    tokens: [u32; KEPT_TOKENS],
}

impl KeptWords {
    const EMPTY: Self = Self { encoder: 0, places: Vec::new() };

    /// Forgets the words of another encoder.
    fn begin(&mut self, encoder: u64) {
        if self.encoder != encoder || self.places.is_empty() {
            self.encoder = encoder;
            self.places.clear();
            self.places.resize(KEPT_WORDS, KeptWord { word: 0, count: 0, tokens: [0; KEPT_TOKENS] });
        }
    }

    /// Appends the tokens of a word of at most [`KEPT_BYTES`] bytes.
    fn append(&mut self, word: &[u8], tokens: &mut Vec<u32>, encode: impl Fn(&[u8]) -> Vec<u32>) {
        let mut bytes = [0; 16];
        bytes[..word.len()].copy_from_slice(word);
        bytes[KEPT_BYTES] = word.len() as u8;
        let key = u128::from_le_bytes(bytes);
        let mut hasher = PairHasher::default();
        hasher.write_u64(key as u64 ^ ((key >> 64) as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9));
        let place = &mut self.places[hasher.finish() as usize % KEPT_WORDS];
        if place.word == key {
            tokens.extend_from_slice(&place.tokens[..usize::from(place.count)]);
            return;
        }
        let made = encode(word);
        if made.len() <= KEPT_TOKENS {
            (place.word, place.count) = (key, made.len() as u8);
            place.tokens[..made.len()].copy_from_slice(&made);
        }
        tokens.extend(made);
    }
}

#[cfg(test)]
mod tests {
    use super::super::gpt2;
    use super::super::words::pattern;
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::sync::LazyLock;

    /// A tokenizer in both forms.
    struct Both {
        library: GuardedTokenizer,
        pairs: BytePairs,
    }

    impl Both {
        /// Changes GPT-2's tokenizer.json.
        fn new(change: impl FnOnce(&mut Value)) -> Self {
            let mut document: Value = serde_json::from_str(&gpt2::json()).unwrap();
            change(&mut document);
            let json = document.to_string();
            let library = GuardedTokenizer::parse(&json).unwrap();
            let pairs = BytePairs::new(&json, &library).unwrap().expect("a known kind");
            Self { library, pairs }
        }

        fn check(&self, text: &str) {
            let expected = self.library.encode(text).unwrap();
            let found = self.pairs.encode(text, |word| self.library.encode(word)).unwrap();
            assert_eq!(found.unwrap_or_else(|| expected.clone()), expected, "{text:?}");
        }
    }

    fn with_pattern(document: &mut Value, digits: usize) {
        document["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern(digits)}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]});
    }

    /// GPT-2, Llama 3 and Qwen.
    static ALL: LazyLock<[Both; 3]> = LazyLock::new(|| {
        let llama = |document: &mut Value| {
            with_pattern(document, 3);
            document["model"]["ignore_merges"] = true.into();
        };
        let qwen = |document: &mut Value| {
            with_pattern(document, 1);
            document["normalizer"] = json!({"type": "NFC"});
            let added = document["added_tokens"].as_array_mut().unwrap();
            added.push(json!({"id": 50257, "content": "<think>", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": false}));
        };
        [Both::new(|_| {}), Both::new(llama), Both::new(qwen)]
    });

    #[test]
    fn words_and_white_space_are_split_as_the_library_does() {
        let texts = [
            "It's we'll I'VE they'Re 'ſ 'S' 'x '' 's",
            "  two  spaces \n\n and\tlines\r\n\r\n  end  ",
            "12345 1234567٣٤٥ ²½ x12 1a",
            "a\u{a0}b\u{2003} c\u{85}\u{3000}漢字かな 한국어",
            "e\u{301} naïve \u{1f600}\u{200d}\u{1f469} !!!\n\n ...\r\n(x)",
            "",
            " ",
            "\n",
        ];
        let long = ["a".repeat(200), "ab".repeat(40), " ".repeat(90), format!("x{}", "!".repeat(70))];
        for text in texts.iter().copied().chain(long.iter().map(String::as_str)) {
            ALL.iter().for_each(|both| both.check(text));
        }
        // What is changed or cut out first is left to the library.
        let qwen = |text: &str| {
            ALL[2].check(text);
            ALL[2].pairs.encode(text, |_| Ok(Vec::new())).unwrap().is_some()
        };
        let encoded = ["naïve <b>漢字</b>", "e\u{301}", "a <think>b", "<think"].map(qwen);
        assert_eq!(encoded, [true, false, false, true]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

        /// Characters at which the patterns differ, and any others.
        #[test]
        fn any_text_has_the_tokens_of_the_library(
            text in "([a-cS ]|'|[sStTrReElLvVdDmM]|[0-9²٣]|[ \t\r\n\u{a0}\u{2003}\u{85}]|[!.,-]|[ſKéß漢]|\\PC|.){0,60}"
        ) {
            ALL.iter().for_each(|both| both.check(&text));
        }
    }

    #[test]
    fn other_kinds_are_left_to_the_library() {
        let kind = |change: &dyn Fn(&mut Value)| {
            let mut document: Value = serde_json::from_str(&gpt2::json()).unwrap();
            change(&mut document);
            let json = document.to_string();
            BytePairs::new(&json, &GuardedTokenizer::parse(&json).unwrap()).unwrap().is_some()
        };
        assert!(kind(&|_| {}));
        let others: [&dyn Fn(&mut Value); 7] = [
            &|d| d["pre_tokenizer"]["add_prefix_space"] = true.into(),
            &|d| d["pre_tokenizer"]["use_regex"] = false.into(),
            &|d| d["normalizer"] = json!({"type": "NFKC"}),
            &|d| d["model"]["end_of_word_suffix"] = "</w>".into(),
            &|d| d["model"]["unk_token"] = "a".into(),
            &|d| d["model"]["byte_fallback"] = true.into(),
            &|d| {
                with_pattern(d, 3);
                d["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed".into();
            },
        ];
        for (n, other) in others.iter().enumerate() {
            assert!(!kind(other), "{n}");
        }
    }

    /// Words of one tokenizer are not taken for those of another on the same thread.
    #[test]
    fn each_encoder_keeps_its_own_words() {
        let mut swapped = Both::new(|document| {
            let merges = document["model"]["merges"].as_array_mut().unwrap();
            merges.truncate(100);
        });
        for _ in 0..2 {
            ALL[0].check("the same words");
            swapped.check("the same words");
        }
        swapped.pairs.number = ALL[0].pairs.number;
        ALL[0].check("the same words");
        let mixed = swapped.pairs.encode("the same words", |_| Ok(Vec::new())).unwrap().unwrap();
        assert_ne!(
            mixed,
            swapped.library.encode("the same words").unwrap(),
            "the number is what tells them apart"
        );
    }
}
