//! The words of a text, normalized, each as a hash with its place.
//!
//! Two texts have the same words if they differ only in white space, punctuation, letter case, or the way in
//! which Unicode composes characters (NFKC). A word is a run of letters and digits. Apostrophes within it
//! count as nothing, and everything else separates words. Scripts that are written without spaces have no
//! words that a program could find without a dictionary, so there each character is a word of its own, and
//! weighs less.

use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::is_combining_mark;

/// Weight of a word that spaces delimit. The weights of other words are parts of it.
pub(super) const WORD: u32 = 6;

/// Weight of a Chinese character or a Japanese syllable: words have about two of them.
const IDEOGRAPH: u32 = WORD / 2;

/// Weight of a letter of Thai, Lao, Khmer, Burmese or Tibetan, with its marks: words have about three.
const UNSPACED_LETTER: u32 = WORD / 3;

/// Most characters that are normalized together: a letter and its marks. More marks are not language.
const MAX_CLUSTER: usize = 32;

/// A word of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// Hash of the normalized word.
    pub hash: u64,
    /// Its weight; [`WORD`] unless its script has no spaces.
    pub weight: u32,
    /// Its bytes in the text.
    pub start: u64,
    pub end: u64,
}

/// Finds the words of a text that arrives in pieces.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// Bytes of the text so far.
    at: u64,
    word: Option<Word>,
    /// A character and the marks that combine with it, not normalized yet; it ends at `at`.
    cluster: String,
}

impl Words {
    /// Reads the next piece and hands every word that ended to `found`.
    pub fn push(&mut self, text: &str, found: &mut impl FnMut(Word)) {
        let bytes = text.as_bytes();
        let start = self.at;
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            // Only a character that is not ASCII can combine with the one before.
            if byte.is_ascii() && bytes.get(at + 1).is_some_and(u8::is_ascii) {
                self.end_cluster(found);
                self.at += 1;
                self.ascii(byte, found);
                at += 1;
                continue;
            }
            let Some(character) = text[at..].chars().next() else { break };
            if !combines(character) || self.cluster.len() >= MAX_CLUSTER {
                self.end_cluster(found);
            }
            self.cluster.push(character);
            at += character.len_utf8();
            self.at = start + at as u64;
        }
    }

    /// Ends the text.
    pub fn finish(mut self, found: &mut impl FnMut(Word)) {
        self.end_cluster(found);
        self.end_word(found);
    }

    /// Adds an ASCII character, which ends at `self.at`.
    fn ascii(&mut self, byte: u8, found: &mut impl FnMut(Word)) {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' => self.add(&[byte], self.at - 1),
            b'A'..=b'Z' => self.add(&[byte | 0x20], self.at - 1),
            b'\'' => {}
            _ => self.end_word(found),
        }
    }

    /// Adds the bytes of a letter that begins at `start` and ends at `self.at`.
    fn add(&mut self, bytes: &[u8], start: u64) {
        let word = self.word.get_or_insert(Word { hash: FNV_OFFSET, weight: WORD, start, end: start });
        word.end = self.at;
        bytes.iter().for_each(|byte| word.hash = (word.hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
    }

    fn end_word(&mut self, found: &mut impl FnMut(Word)) {
        if let Some(word) = self.word.take() {
            found(Word { hash: mixed(word.hash), ..word });
        }
    }

    fn end_cluster(&mut self, found: &mut impl FnMut(Word)) {
        if self.cluster.is_empty() {
            return;
        }
        if let &[byte] = self.cluster.as_bytes() {
            self.cluster.clear();
            return self.ascii(byte, found);
        }
        let cluster = std::mem::take(&mut self.cluster);
        let start = self.at - cluster.len() as u64;
        for normal in cluster.nfkc().map(|(character, _)| character) {
            for letter in normal.to_lowercase() {
                self.letter(letter, start, found);
            }
        }
        self.cluster = cluster;
        self.cluster.clear();
    }

    /// Adds a normalized character of the cluster that begins at `start`.
    fn letter(&mut self, letter: char, start: u64, found: &mut impl FnMut(Word)) {
        // The same letter at the end of a Greek word.
        let letter = if letter == 'ς' { 'σ' } else { letter };
        let mut utf8 = [0; 4];
        if is_ignored(letter) {
            return;
        }
        if !letter.is_alphanumeric() {
            return self.end_word(found);
        }
        match weight(letter) {
            WORD => self.add(letter.encode_utf8(&mut utf8).as_bytes(), start),
            weight => {
                self.end_word(found);
                let hash = mixed(FNV_OFFSET ^ u64::from(letter));
                found(Word { hash, weight, start, end: self.at });
            }
        }
    }
}

/// The constants of FNV-1a (Fowler, Noll and Vo) for 64 bits.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// Spreads every bit of a number over all bits: the last step of SplitMix64 (Steele, Lea and Flood, 2014).
pub(super) const fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns true for characters that are normalized together with the one before: marks, the later parts of
/// Hangul syllables, and the voicing marks of half-width Japanese.
fn combines(character: char) -> bool {
    !character.is_ascii()
        && (is_combining_mark(character)
            || matches!(character, '\u{1160}'..='\u{11ff}' | '\u{ff9e}' | '\u{ff9f}'))
}

/// Returns true for characters that neither belong to a word nor end it: apostrophes, marks that no letter
/// has taken up, and what is invisible within words.
fn is_ignored(letter: char) -> bool {
    matches!(letter, '\'' | '’' | 'ʼ' | '\u{ad}' | '\u{200c}' | '\u{200d}' | '\u{2060}' | '\u{feff}')
        || is_combining_mark(letter)
}

fn weight(letter: char) -> u32 {
    match letter {
        // Thai, Lao, Tibetan, Burmese, Khmer.
        '\u{0e00}'..='\u{0fff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' => UNSPACED_LETTER,
        // Hiragana, Katakana, Bopomofo, and all blocks of ideographs.
        '\u{3040}'..='\u{312f}'
        | '\u{31a0}'..='\u{31bf}'
        | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}'
        | '々'
        | '〇' => IDEOGRAPH,
        _ => WORD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str, pieces: &[usize]) -> Vec<Word> {
        let (mut words, mut found) = (Words::default(), Vec::new());
        let mut from = 0;
        for &to in pieces.iter().filter(|&&to| text.is_char_boundary(to)) {
            words.push(&text[from..to], &mut |word| found.push(word));
            from = to;
        }
        words.push(&text[from..], &mut |word| found.push(word));
        words.finish(&mut |word| found.push(word));
        found
    }

    fn spelled(text: &str) -> Vec<&str> {
        words(text, &[]).iter().map(|word| &text[word.start as usize..word.end as usize]).collect()
    }

    #[test]
    fn words_have_their_places() {
        assert_eq!(spelled("  Don't stop—it's  3.5km!"), ["Don't", "stop", "it's", "3", "5km"]);
        assert_eq!(spelled("naïve café\u{301}"), ["naïve", "café\u{301}"]);
        assert_eq!(spelled("我们 go"), ["我", "们", "go"]);
        assert_eq!(spelled("ที่นี่"), ["ที่", "นี่"]);
        assert_eq!(spelled(" \n\t—"), [""; 0]);
    }

    #[test]
    fn what_is_normalized_has_the_same_words() {
        let hashes = |text: &str| words(text, &[]).iter().map(|word| word.hash).collect::<Vec<_>>();
        for (one, other) in [
            ("The cat, sat.", "the CAT\n\nsat"),
            ("don't", "dont"),
            ("don’t", "don't"),
            ("caf\u{e9}", "CAFE\u{301}"),
            ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
            ("ﬁne", "fine"),
            ("ΟΔΟΣ", "οδος"),
            ("ｶﾞ", "ガ"),
            ("\u{1112}\u{1161}\u{11ab}", "한"),
            ("co\u{ad}operate", "cooperate"),
            ("Straße, x", "straße x"),
        ] {
            assert_eq!(hashes(one), hashes(other), "{one:?} {other:?}");
        }
        for (one, other) in [("ab c", "a bc"), ("a", "b"), ("a b", "b a"), ("résumé", "resume")] {
            assert_ne!(hashes(one), hashes(other), "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_letter_with_a_million_marks_takes_little_memory() {
        let text = format!("a{} b", "\u{301}".repeat(100_000));
        assert_eq!(words(&text, &[]).len(), 2);
    }

    proptest! {
        #[test]
        fn words_do_not_depend_on_the_pieces(
            text in "([a-cÉ '\u{301}我ｶﾞ\u{ff9e}\u{1112}\u{1161}.]{0,8}|\\PC{0,8}){0,6}",
            pieces in proptest::collection::btree_set(0usize..60, 0..6),
        ) {
            let pieces: Vec<usize> = pieces.into_iter().filter(|&at| at <= text.len()).collect();
            prop_assert_eq!(words(&text, &pieces), words(&text, &[]));
        }
    }
}
