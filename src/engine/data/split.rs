//! Splits a corpus into training and held-out documents, or into a training range and a held-out tail.

use super::documents::Documents;
use super::parallel::collect_in_order;
use super::stories::Split;
use super::stream::Stream;
use super::text::BLOCK_BYTES;
use crate::error::{Error, Result};
use rayon::prelude::*;
use std::collections::VecDeque;
use std::ops::Range;

/// Receives the tokens of both splits: one split behind the other, each in order.
pub(super) type TokenSink<'s> = dyn FnMut(Split, &[u32]) -> Result<()> + 's;

/// Documents that are hashed one after another, as a part of the work that threads share.
const HASHED_TOGETHER: usize = 256;

/// Splits the documents so that about `fraction` of their bytes is held out. The choice follows a hash of the
/// seed and the text, so equal documents end up on the same side. Both lists are in corpus order.
pub(super) fn documents(documents: &Documents, fraction: f64, seed: u64) -> Result<(Vec<usize>, Vec<usize>)> {
    let count = u32::try_from(documents.len()).map_err(|_| {
        Error::usage(format!("{} documents: a corpus has at most {}", documents.len(), u32::MAX))
    })?;
    let hash = |i: u32| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        let (mut reader, mut block) = (documents.reader(i as usize)?, String::new());
        while reader.append(&mut block, BLOCK_BYTES)? {
            hasher.update(block.as_bytes());
            block.clear();
        }
        Ok((half(&hasher), i))
    };
    // A result for each document would take several times the memory of its hash.
    let hash_some = |first: usize| {
        (first as u32..(first + HASHED_TOGETHER).min(count as usize) as u32).map(hash).collect()
    };
    let firsts = (0..count as usize).into_par_iter().step_by(HASHED_TOGETHER);
    let hashes: Vec<Vec<NumberedHash>> = collect_in_order(firsts.map(hash_some))?;
    Ok(sides(hashes.concat(), |i| documents.bytes(i), fraction))
}

/// Half of a hash, which tells texts apart and takes half of the memory, with the number of its text.
pub(super) type NumberedHash = ([u8; 16], u32);

/// Returns which texts are trained on and which are held out, so that about `fraction` of their sizes is held
/// out. The choice follows the hashes, and equal texts are on one side. Both lists are in order.
pub(super) fn sides(
    mut hashes: Vec<NumberedHash>,
    size: impl Fn(usize) -> u64,
    fraction: f64,
) -> (Vec<usize>, Vec<usize>) {
    hashes.par_sort_unstable();
    // Equal texts are one group.
    let groups = || hashes.chunk_by(|a, b| a.0 == b.0);
    let sizes: Vec<u64> = groups().map(|g| g.iter().map(|&(_, i)| size(i as usize)).sum()).collect();
    let held = choose_held_out(&sizes, fraction);
    let (mut train, mut validation) = (Vec::new(), Vec::new());
    for (group, held) in groups().zip(held) {
        if held { &mut validation } else { &mut train }.extend(group.iter().map(|&(_, i)| i as usize));
    }
    train.sort_unstable();
    validation.sort_unstable();
    (train, validation)
}

/// Returns the half of a hash that texts are told apart by.
pub(super) fn half(hasher: &blake3::Hasher) -> [u8; 16] {
    let mut half = [0; 16];
    hasher.finalize_xof().fill(&mut half);
    half
}

/// Takes sizes in order while they fit into the share. If none fits, takes the smallest. Never takes all.
fn choose_held_out(sizes: &[u64], fraction: f64) -> Vec<bool> {
    let share = (sizes.iter().sum::<u64>() as f64 * fraction) as u64;
    let mut taken = 0;
    let mut held: Vec<bool> = sizes
        .iter()
        .map(|&size| {
            let fits = taken + size <= share;
            taken += if fits { size } else { 0 };
            fits
        })
        .collect();
    if sizes.len() > 1 && !held.contains(&true) {
        let smallest = (0..sizes.len()).min_by_key(|&i| sizes[i]);
        smallest.into_iter().for_each(|i| held[i] = true);
    }
    held
}

/// Splits one contiguous stream of `len` tokens. The first range is trained on; the second is the held-out
/// tail, preceded by one token that serves as its first context.
pub(super) fn tail(len: usize, fraction: f64) -> (Range<usize>, Range<usize>) {
    let held = (len as f64 * fraction) as usize;
    let cut = len - held;
    (0..cut, cut.saturating_sub(1)..len)
}

/// Splits a stream like [`tail`] while it arrives, without holding more than its tail: whatever follows, the
/// tokens before the cut of what has arrived are trained on.
pub(super) struct TailSplitter {
    fraction: f64,
    arrived: usize,
    /// The last tokens that arrived, which may be held out.
    kept: VecDeque<u32>,
}

/// Tokens handed on at a time.
const HANDED_ON: usize = 1 << 20;

impl TailSplitter {
    pub fn new(fraction: f64) -> Self {
        Self { fraction, arrived: 0, kept: VecDeque::new() }
    }

    /// Returns the number of tokens that are held.
    pub fn held(&self) -> usize {
        self.kept.len()
    }

    /// Takes the next tokens, and hands on those that are trained on whatever follows.
    ///
    /// # Errors
    /// If `train` fails.
    pub fn push(&mut self, tokens: &[u32], train: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()> {
        self.arrived += tokens.len();
        self.kept.extend(tokens);
        // The held-out part begins one token before the cut. One more is kept because the share is rounded.
        let certain = tail(self.arrived, self.fraction).0.end.saturating_sub(2);
        let given = self.arrived - self.kept.len();
        if certain.saturating_sub(given) >= HANDED_ON {
            let tokens: Vec<u32> = self.kept.drain(..certain - given).collect();
            train(&tokens)?;
        }
        Ok(())
    }

    /// Hands on the rest of the tokens to train on, then the held-out ones.
    ///
    /// # Errors
    /// If `sink` fails.
    pub fn finish(mut self, sink: &mut TokenSink<'_>) -> Result<()> {
        let (train, held) = tail(self.arrived, self.fraction);
        let given = self.arrived - self.kept.len();
        let kept = self.kept.make_contiguous();
        sink(Split::Train, &kept[..train.end - given])?;
        sink(Split::Validation, &kept[held.start - given..])
    }
}

/// Splits like [`tail`], but at the next document start unless that lies beyond the middle of the tail.
pub(super) fn tail_at_document(
    stream: &Stream,
    fraction: f64,
    end: u32,
) -> Result<(Range<usize>, Range<usize>)> {
    let (train, held) = tail(stream.len(), fraction);
    Ok(match stream.slice(0..held.start + held.len() / 2).find(end, held.start)? {
        Some(at) => (0..at + 1, at..stream.len()),
        None => (train, held),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_tail_is_contiguous_and_predicted_once() {
        assert_eq!(tail(100, 0.1), (0..90, 89..100));
        assert_eq!(tail(3, 0.1), (0..3, 2..3));
        let mut tokens = vec![1; 100];
        let at = |tokens: &[u32]| tail_at_document(&Stream::from_tokens(tokens.to_vec()), 0.1, 0).unwrap();
        assert_eq!(at(&tokens), (0..90, 89..100));
        tokens[92] = 0;
        assert_eq!(at(&tokens), (0..93, 92..100));
        tokens[92] = 1;
        tokens[97] = 0;
        assert_eq!(at(&tokens), (0..90, 89..100));
    }

    #[test]
    fn a_stream_is_split_at_its_tail_while_it_arrives() {
        for (len, piece, fraction) in [
            (0, 1, 0.5),
            (1, 1, 0.9),
            (3, 2, 0.1),
            (100, 7, 0.05),
            (5_000_000, 300_001, 0.05),
            (2_500_000, 9_999, 0.6),
        ] {
            let tokens: Vec<u32> = (0..len as u32).collect();
            let (train, held) = tail(len, fraction);
            let mut splitter = TailSplitter::new(fraction);
            let (mut trained, mut held_out, mut most) = (Vec::new(), Vec::new(), 0);
            for piece in tokens.chunks(piece) {
                let hand_on = &mut |tokens: &[u32]| {
                    trained.extend_from_slice(tokens);
                    Ok(())
                };
                splitter.push(piece, hand_on).unwrap();
                most = most.max(splitter.held());
            }
            let hand_on = &mut |split, tokens: &[u32]| {
                if split == Split::Train { &mut trained } else { &mut held_out }.extend_from_slice(tokens);
                Ok(())
            };
            splitter.finish(hand_on).unwrap();
            assert_eq!(
                (&trained[..], &held_out[..]),
                (&tokens[train], &tokens[held.clone()]),
                "{len} {fraction}"
            );
            assert!(most <= held.len() + HANDED_ON + piece + 2, "{len} {fraction}: {most}");
        }
    }

    #[test]
    fn one_document_is_always_left_to_train_on_and_one_held_out() {
        assert_eq!(choose_held_out(&[10, 1000], 0.01), [true, false]);
        assert_eq!(choose_held_out(&[500, 500], 0.1), [true, false]);
        assert_eq!(choose_held_out(&[5], 0.9), [false]);
        assert_eq!(choose_held_out(&[5, 1, 1, 1, 1, 1], 0.3), [false, true, true, true, false, false]);
    }

    proptest! {
        #[test]
        fn the_share_is_kept(sizes in proptest::collection::vec(1u64..50, 40..200), fraction in 0.05f64..0.95) {
            let held = choose_held_out(&sizes, fraction);
            let taken: u64 = sizes.iter().zip(&held).filter(|(_, h)| **h).map(|(s, _)| s).sum();
            let share = sizes.iter().sum::<u64>() as f64 * fraction;
            prop_assert!(taken as f64 <= share.max(50.0) && held.contains(&false));
            prop_assert!(taken as f64 > share - 51.0);
        }
    }
}
