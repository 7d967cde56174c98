//! Counts the pre-tokens of a text in bounded memory.

use super::pattern::{Pattern, Splitter};
use super::table::Table;
use crate::data::parallel::collect_in_order;
use crate::data::tokenizer::timed;
use crate::error::Result;
use crate::liveness::report_progress;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Longest pre-token in bytes; longer ones are cut. The time of merging grows with the square of a
/// pre-token's length. Words, numbers and runs of white space are far below it.
pub const MAX_PRETOKEN_BYTES: usize = 1024;

/// Bytes of distinct pre-tokens that the table holds, as a multiple of their greatest number. They average 8
/// to 12 bytes in English text and code.
const TEXT_BYTES_PER_PRETOKEN: usize = 16;

/// Tables that the distinct pre-tokens are divided into by their hashes, so that threads can add to different
/// ones.
const SHARDS: usize = 64;

/// Counts pre-tokens. The counts do not depend on the number of threads: they are sums, and what is dropped
/// follows from the counts after each group of texts alone.
pub(super) struct Counter {
    splitter: Arc<Splitter>,
    hasher: Arc<RandomState>,
    shards: Vec<Table>,
    /// The most distinct pre-tokens that are kept from group to group.
    most_distinct: usize,
    totals: Totals,
}

/// What was counted, and what the bounds dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Pre-tokens, as often as they occur.
    pub pretokens: u64,
    /// Distinct pre-tokens that merges are learned from.
    pub distinct: u64,
    /// Pre-tokens of more than [`MAX_PRETOKEN_BYTES`], which were cut.
    pub cut: u64,
    /// How often the table was full and its rarest pre-tokens were dropped.
    pub prunings: u64,
    /// Pre-tokens that were dropped, as often as they had occurred.
    pub dropped: u64,
    /// By how much the count of a pre-token may be too low, at most.
    pub undercount: u64,
}

/// The pre-tokens of one text.
struct Local {
    table: Table,
    /// Indices of the table's strings, by shard.
    by_shard: Vec<Vec<u32>>,
    pretokens: u64,
    cut: u64,
}

/// Returns the shard of a hash. It takes the highest bits, because tables take the lowest.
fn shard(hash: u64) -> usize {
    (hash >> (u64::BITS - SHARDS.ilog2())) as usize
}

impl Counter {
    /// Starts with all counts at zero. At most `most_distinct` pre-tokens are kept from group to group.
    ///
    /// # Errors
    /// If the pattern does not compile.
    pub fn new(pattern: &Pattern, most_distinct: usize) -> Result<Self> {
        Ok(Self {
            splitter: Arc::new(Splitter::new(pattern)?),
            hasher: Arc::new(RandomState::new()),
            shards: vec![Table::default(); SHARDS],
            most_distinct,
            totals: Totals::default(),
        })
    }

    /// Counts a group of texts in parallel. Then, if there are too many distinct pre-tokens, drops the
    /// rarest.
    ///
    /// # Errors
    /// If the pattern cannot be matched on one of the texts, or not within the time for tokenizers.
    pub fn add(&mut self, texts: Vec<String>) -> Result<()> {
        let bytes = texts.iter().map(String::len).sum();
        let (splitter, hasher) = (self.splitter.clone(), self.hasher.clone());
        let is_linear = splitter.is_linear();
        let count_all = move || {
            let count = |splitter: &mut Splitter, text: String| Local::count(&text, splitter, &hasher);
            // A regular expression locks scratch memory that its clones do not share.
            collect_in_order(texts.into_par_iter().map_init(|| Splitter::clone(&splitter), count))
        };
        let locals = if is_linear { count_all()? } else { timed(bytes, count_all)?? };
        for local in &locals {
            self.totals.pretokens += local.pretokens;
            self.totals.cut += local.cut;
        }
        self.shards.par_iter_mut().enumerate().for_each(|(at, shard)| {
            for local in &locals {
                for &index in &local.by_shard[at] {
                    let (hash, string, count) = local.table.get(index as usize);
                    shard.add(hash, string, count);
                }
            }
        });
        self.prune();
        Ok(())
    }

    /// If the table is over a bound, keeps the most frequent pre-tokens that fill at most half of it. All
    /// with the same count are kept or dropped together.
    fn prune(&mut self) {
        let distinct: usize = self.shards.iter().map(Table::len).sum();
        let bytes: usize = self.shards.iter().map(Table::text_bytes).sum();
        let most_bytes = self.most_distinct.saturating_mul(TEXT_BYTES_PER_PRETOKEN);
        if distinct <= self.most_distinct && bytes <= most_bytes {
            return;
        }
        // Numbers and bytes of the pre-tokens with each count.
        let mut by_count: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
        for (_, string, count) in self.shards.iter().flat_map(Table::iter) {
            let with_count = by_count.entry(count).or_default();
            with_count.0 += 1;
            with_count.1 += string.len();
        }
        let mut kept = (0, 0);
        let is_over = |&(_, &(number, bytes)): &(&u64, &(usize, usize))| {
            kept = (kept.0 + number, kept.1 + bytes);
            kept.0 > self.most_distinct / 2 || kept.1 > most_bytes / 2
        };
        let Some(most) = by_count.iter().rev().find(is_over).map(|(&count, _)| count) else { return };
        let dropped: Vec<_> = self.shards.par_iter_mut().map(|shard| shard.remove_up_to(most)).collect();
        self.totals.prunings += 1;
        self.totals.undercount += most;
        self.totals.dropped += dropped.iter().map(|(_, occurrences)| occurrences).sum::<u64>();
    }

    /// Returns the distinct pre-tokens with their counts, in tables that share no string, and the totals.
    pub fn finish(mut self) -> (Vec<Table>, Totals) {
        self.totals.distinct = self.shards.iter().map(|shard| shard.len() as u64).sum();
        (self.shards, self.totals)
    }
}

impl Local {
    fn count(text: &str, splitter: &Splitter, hasher: &RandomState) -> Result<Self> {
        let mut table = Table::default();
        let (mut pretokens, mut cut) = (0, 0);
        splitter.split(text, |pretoken| {
            pretokens += 1;
            cut += u64::from(pretoken.len() > MAX_PRETOKEN_BYTES);
            for part in parts(pretoken) {
                let string = part.as_bytes();
                table.add(hasher.hash_one(string), string, 1);
            }
        })?;
        let mut by_shard = vec![Vec::new(); SHARDS];
        for (index, (hash, ..)) in (0..).zip(table.iter()) {
            by_shard[shard(hash)].push(index);
        }
        report_progress();
        Ok(Self { table, by_shard, pretokens, cut })
    }
}

/// Cuts a pre-token into parts of at most [`MAX_PRETOKEN_BYTES`], each as long as characters allow.
fn parts(pretoken: &str) -> impl Iterator<Item = &str> {
    let mut rest = pretoken;
    std::iter::from_fn(move || {
        let mut end = rest.len().min(MAX_PRETOKEN_BYTES);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (part, after) = rest.split_at(end);
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(groups: &[&[&str]], most_distinct: usize, threads: usize) -> (BTreeMap<String, u64>, Totals) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut counter = Counter::new(&Pattern::parse("gpt2").unwrap(), most_distinct).unwrap();
            for group in groups {
                counter.add(group.iter().map(|text| (*text).to_owned()).collect()).unwrap();
            }
            let (tables, totals) = counter.finish();
            let strings = tables.iter().flat_map(Table::iter);
            (strings.map(|(_, s, n)| (String::from_utf8(s.to_vec()).unwrap(), n)).collect(), totals)
        })
    }

    #[test]
    fn the_rarest_are_dropped_when_the_table_is_full() {
        let groups: [&[&str]; 3] = [&["a a a a a b b b", " b c c d"], &[" e f g g g g h"], &[" c c c c a"]];
        let (all, totals) = counted(&groups, 100, 1);
        assert_eq!((totals.pretokens, totals.distinct, totals.prunings), (24, 9, 0));
        assert_eq!((all[" a"], all["a"], all[" c"], all[" b"]), (5, 1, 6, 4));
        // After the first group: " a" 4, " b" 4, " c" 2, "a" 1, " d" 1. After the second there are too many:
        // with " g" 4, three of count 4 fill half of six, so all others, of at most 2, are dropped.
        let (kept, totals) = counted(&groups, 6, 1);
        let expected = [(" a", 5), (" b", 4), (" c", 4), (" g", 4)];
        assert_eq!(kept, expected.map(|(s, n)| (s.to_owned(), n)).into());
        let dropped = Totals { pretokens: 24, distinct: 4, cut: 0, prunings: 1, dropped: 7, undercount: 2 };
        assert_eq!(totals, dropped);
        for (string, count) in &kept {
            assert!(all[string] - count <= totals.undercount, "{string}");
        }
        for threads in [2, 8] {
            assert_eq!(counted(&groups, 6, threads), (kept.clone(), totals));
        }
    }

    #[test]
    fn long_pre_tokens_are_cut_between_characters() {
        let long = "é".repeat(MAX_PRETOKEN_BYTES / 2 + 1) + &"x".repeat(3 * MAX_PRETOKEN_BYTES);
        let (kept, totals) = counted(&[&[&long]], 1000, 1);
        assert_eq!((totals.pretokens, totals.cut), (1, 1));
        assert!(kept.keys().all(|part| part.len() <= MAX_PRETOKEN_BYTES), "{kept:?}");
        assert_eq!(kept.iter().map(|(part, n)| part.len() as u64 * n).sum::<u64>(), long.len() as u64);
    }
}
