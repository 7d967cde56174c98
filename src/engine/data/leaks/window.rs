//! Windows of consecutive words, by rolling hashes.

use super::words::{WORD, Word};

/// Words of a passage that is looked up. 13 is the number that Brown et al. (2020, appendix C) chose to find
/// the text of benchmarks in the training data of GPT-3.
pub(super) const GRAM_WORDS: u32 = 13;

/// Weight that the words of a passage have at least: 13 words, or more of a script without spaces.
pub(super) const GRAM_WEIGHT: u32 = GRAM_WORDS * WORD;

/// Words kept: more than any passage has, which are [`GRAM_WEIGHT`] / 2 of the lightest weight.
const KEPT: usize = 64;

/// The base of the rolling hash: an odd number, from the golden ratio.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// `BASE` to the power of each number of words.
const POWERS: [u64; KEPT] = {
    let mut powers = [1u64; KEPT];
    let mut i = 1;
    while i < KEPT {
        powers[i] = powers[i - 1].wrapping_mul(BASE);
        i += 1;
    }
    powers
};

/// Hashes consecutive words: the sum of their hashes times powers of [`BASE`].
pub(super) fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0, |hash: u64, word| hash.wrapping_mul(BASE).wrapping_add(word))
}

/// The last words of a text.
#[derive(Debug)]
pub(super) struct Window {
    /// Number of words so far.
    words: u64,
    /// Hash of all words before each of the last ones, and after the newest.
    prefixes: [u64; KEPT],
    weights: [u32; KEPT],
    starts: [u64; KEPT],
    /// First word of the shortest passage that ends with the newest word, and the passage's weight.
    first: u64,
    weight: u32,
    /// Where the newest word ends.
    end: u64,
}

/// A passage of consecutive words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passage {
    /// Hash of its words.
    pub hash: u64,
    /// Index of its first and of its last word in the text.
    pub first: u64,
    pub last: u64,
    /// Its bytes in the text.
    pub start: u64,
    pub end: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            words: 0,
            prefixes: [0; KEPT],
            weights: [0; KEPT],
            starts: [0; KEPT],
            first: 0,
            weight: 0,
            end: 0,
        }
    }
}

impl Window {
    /// Returns the number of words so far.
    pub fn words(&self) -> u64 {
        self.words
    }

    /// Adds a word.
    pub fn push(&mut self, word: &Word) {
        let at = slot(self.words);
        (self.weights[at], self.starts[at], self.end) = (word.weight, word.start, word.end);
        let hash = self.prefixes[at].wrapping_mul(BASE).wrapping_add(word.hash);
        self.words += 1;
        self.prefixes[slot(self.words)] = hash;
        self.weight += word.weight;
        while self.weight - self.weights[slot(self.first)] >= GRAM_WEIGHT {
            self.weight -= self.weights[slot(self.first)];
            self.first += 1;
        }
    }

    /// Returns the shortest passage of [`GRAM_WEIGHT`] that ends with the newest word; `None` if the text is
    /// too short so far.
    pub fn gram(&self) -> Option<Passage> {
        (self.weight >= GRAM_WEIGHT).then(|| self.passage(self.first))
    }

    /// Returns the passage of the newest `count` words, fewer than [`KEPT`]; `None` if there are fewer words.
    pub fn newest(&self, count: usize) -> Option<Passage> {
        let first = self.words.checked_sub(count as u64)?;
        (count > 0 && count < KEPT).then(|| self.passage(first))
    }

    fn passage(&self, first: u64) -> Passage {
        let before = self.prefixes[slot(first)].wrapping_mul(POWERS[(self.words - first) as usize % KEPT]);
        Passage {
            hash: self.prefixes[slot(self.words)].wrapping_sub(before),
            first,
            last: self.words - 1,
            start: self.starts[slot(first)],
            end: self.end,
        }
    }
}

fn slot(word: u64) -> usize {
    (word % KEPT as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::leaks::words::mixed;

    fn text(words: u64, weight: u32) -> Vec<Word> {
        let word = |at| Word { hash: mixed(at), weight, start: 10 * at, end: 10 * at + 9 };
        (0..words).map(word).collect()
    }

    #[test]
    fn a_passage_has_thirteen_words_or_more_of_lighter_ones() {
        for (weight, count) in [(WORD, 13), (WORD / 2, 26), (WORD / 3, 39)] {
            let words = text(200, weight);
            let mut window = Window::default();
            for (at, word) in words.iter().enumerate() {
                window.push(word);
                let Some(first) = (at + 1).checked_sub(count) else {
                    assert_eq!(window.gram(), None);
                    continue;
                };
                let expected = Passage {
                    hash: hash(words[first..=at].iter().map(|word| word.hash)),
                    first: first as u64,
                    last: at as u64,
                    start: words[first].start,
                    end: words[at].end,
                };
                assert_eq!(window.gram(), Some(expected));
                assert_eq!(window.newest(count), Some(expected));
            }
            assert_eq!((window.newest(0), window.newest(201), window.words()), (None, None, 200));
        }
    }

    /// The same passage is found wherever it stands, in text of several scripts.
    #[test]
    fn the_passages_of_a_text_do_not_depend_on_what_is_before_them() {
        let mixed_text = [text(20, WORD), text(60, WORD / 2), text(60, WORD / 3), text(20, WORD)].concat();
        let grams = |before: u64| {
            let mut window = Window::default();
            text(before, WORD).iter().for_each(|word| window.push(word));
            let grams = mixed_text.iter().map(|word| {
                window.push(word);
                window.gram().filter(|gram| gram.first >= before).map(|gram| gram.hash)
            });
            grams.collect::<Vec<_>>()
        };
        assert_eq!(grams(0), grams(7));
        assert_eq!(grams(0).iter().flatten().count(), 160 - 12);
    }
}
