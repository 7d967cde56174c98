//! Byte-pair encoding (Sennrich et al. 2016): joins the most frequent pair of neighbors, again and again.
//! The order of merges is that of `BpeTrainer` in HuggingFace's tokenizers: the highest count first, and of
//! equal counts the pair with the lowest ids.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Pre-tokens with their counts, for merging.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The ids of every word, one after the other. Merges shorten a word in its place.
    ids: Vec<u32>,
    words: Vec<Word>,
}

#[derive(Clone, Copy, Debug)]
struct Word {
    count: u64,
    start: u32,
    len: u32,
}

impl Words {
    /// Makes room for words with this many bytes together.
    pub fn reserve(&mut self, words: usize, bytes: usize) {
        self.words.reserve_exact(words);
        self.ids.reserve_exact(bytes);
    }

    /// Adds a word that occurs `count` times, as the ids of its bytes. Words of one byte have no pair and are
    /// passed over.
    ///
    /// # Panics
    /// If there are more than 2^32 bytes.
    pub fn push(&mut self, bytes: &[u8], count: u64, id_of: &[u32; 256]) {
        if bytes.len() < 2 {
            return;
        }
        let start = u32::try_from(self.ids.len()).expect("fewer than 2^32 bytes of words");
        self.ids.extend(bytes.iter().map(|&byte| id_of[byte as usize]));
        self.words.push(Word { count, start, len: bytes.len() as u32 });
    }
}

/// What is asked of a vocabulary.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Bytes of the entries that exist before the first merge, by id. `None` stands for a special token.
    pub first: Vec<Option<Vec<u8>>>,
    /// Number of entries to stop at.
    pub vocab: usize,
    /// The least count of a pair that is merged, at least 1.
    pub least: u64,
    /// Bytes that no entry may stand for: the names of special tokens.
    pub forbidden: HashSet<Vec<u8>>,
}

/// A merge of two entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    pub left: u32,
    pub right: u32,
    /// How often the two were neighbors.
    pub count: u64,
}

/// The merges, and the entries that they made.
#[derive(Debug, Default)]
pub(super) struct Learned {
    pub merges: Vec<Merge>,
    /// Bytes of every entry, by id; empty for special tokens.
    pub entries: Vec<Vec<u8>>,
    /// Merges left out because they would spell a special token.
    pub forbidden: u64,
}

/// Learns merges until the vocabulary has the wanted number of entries or no pair is frequent enough. `tell`
/// is called with the number of entries after every merge.
pub(super) fn learn(words: Words, wanted: Wanted, tell: &mut dyn FnMut(usize)) -> Learned {
    let mut entries: Vec<Vec<u8>> =
        wanted.first.iter().map(|entry| entry.clone().unwrap_or_default()).collect();
    let mut learned = Learned::default();
    let mut state = State::new(words, wanted.least.max(1));
    while entries.len() < wanted.vocab {
        let Some((key, count, occurrences)) = state.pop() else { break };
        let (left, right) = parts(key);
        let bytes = [&*entries[left as usize], &*entries[right as usize]].concat();
        if wanted.forbidden.contains(&bytes) {
            learned.forbidden += 1;
            continue;
        }
        let id = entries.len() as u32;
        entries.push(bytes);
        learned.merges.push(Merge { left, right, count });
        state.merge(left, right, id, &occurrences);
        tell(entries.len());
    }
    learned.entries = entries;
    learned
}

/// A pair of ids as one number, which orders pairs like their ids.
fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

fn parts(key: u64) -> (u32, u32) {
    ((key >> 32) as u32, key as u32)
}

/// A pair that may be merged.
#[derive(Debug, Default)]
struct Pair {
    count: i64,
    /// Words that have the pair, or had it: other merges may have taken it out of them.
    words: Vec<u32>,
}

type Pairs = HashMap<u64, Pair, BuildHasherDefault<Mix>>;

/// Words, their pairs, and the order of the pairs.
///
/// Pairs below the least count are not held. That loses nothing: a pair can only become rarer after the merge
/// that made the later of its two entries. All occurrences of an entry are made by one merge, because the
/// merges inside a string are the same wherever no merge crosses its ends, so no other pair spells the same.
struct State {
    words: Words,
    pairs: Pairs,
    /// Pairs with the count that they had when they were queued, which may have become lower.
    queue: BinaryHeap<(u64, Reverse<u64>)>,
    least: u64,
}

impl State {
    fn new(words: Words, least: u64) -> Self {
        let mut pairs = Pairs::default();
        let each_pair = |word: &Word| {
            let ids = &words.ids[word.start as usize..][..word.len as usize];
            ids.windows(2).map(|pair| key(pair[0], pair[1]))
        };
        for word in &words.words {
            for pair in each_pair(word) {
                pairs.entry(pair).or_default().count += word.count as i64;
            }
        }
        pairs.retain(|_, pair| pair.count as u64 >= least);
        // The lists get their exact lengths: together they are the largest part of the memory.
        let mut lengths: HashMap<u64, usize, BuildHasherDefault<Mix>> = HashMap::default();
        for word in &words.words {
            each_pair(word).for_each(|pair| *lengths.entry(pair).or_default() += 1);
        }
        for (pair, held) in &mut pairs {
            held.words.reserve_exact(lengths[pair]);
        }
        for (number, word) in (0..).zip(&words.words) {
            for pair in each_pair(word) {
                if let Some(held) = pairs.get_mut(&pair)
                    && held.words.last() != Some(&number)
                {
                    held.words.push(number);
                }
            }
        }
        let queue = pairs.iter().map(|(&key, pair)| (pair.count as u64, Reverse(key))).collect();
        Self { words, pairs, queue, least }
    }

    /// Takes the next pair to merge, with its count and its words.
    fn pop(&mut self) -> Option<(u64, u64, Vec<u32>)> {
        while let Some((queued, Reverse(key))) = self.queue.pop() {
            let Entry::Occupied(held) = self.pairs.entry(key) else { continue };
            let count = held.get().count as u64;
            if count == queued {
                return Some((key, count, held.remove().words));
            }
            self.queue.push((count, Reverse(key)));
        }
        None
    }

    /// Replaces a pair by an id in these words.
    fn merge(&mut self, left: u32, right: u32, id: u32, occurrences: &[u32]) {
        let mut made = Pairs::default();
        for &number in occurrences {
            let word = &mut self.words.words[number as usize];
            let ids = &mut self.words.ids[word.start as usize..][..word.len as usize];
            let count = word.count as i64;
            let mut changed = |a: u32, b: u32, by: i64| {
                let pair = key(a, b);
                if a != id && b != id {
                    lower(&mut self.pairs, pair, -by, self.least);
                    return;
                }
                let pair = made.entry(pair).or_default();
                pair.count += by;
                if by > 0 && pair.words.last() != Some(&number) {
                    pair.words.push(number);
                }
            };
            let (mut from, mut to) = (0, 0);
            while from < ids.len() {
                if from + 1 == ids.len() || ids[from] != left || ids[from + 1] != right {
                    ids[to] = ids[from];
                    (from, to) = (from + 1, to + 1);
                    continue;
                }
                if to > 0 {
                    changed(ids[to - 1], left, -count);
                    changed(ids[to - 1], id, count);
                }
                if let Some(&next) = ids.get(from + 2) {
                    changed(right, next, -count);
                    changed(id, next, count);
                }
                ids[to] = id;
                (from, to) = (from + 2, to + 1);
            }
            word.len = to as u32;
        }
        for (key, new) in made {
            if new.count < self.least as i64 {
                continue;
            }
            self.queue.push((new.count as u64, Reverse(key)));
            self.pairs.insert(key, new);
        }
    }
}

/// Lowers the count of a pair, and drops a pair that became too rare.
fn lower(pairs: &mut Pairs, key: u64, by: i64, least: u64) {
    if let Entry::Occupied(mut held) = pairs.entry(key) {
        held.get_mut().count -= by;
        if held.get().count < least as i64 {
            held.remove();
        }
    }
}

/// Hashes one number: a multiplication, and the high half folded into the low one, which the map takes.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 3, 6.4).
        let product = u128::from(self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests;
