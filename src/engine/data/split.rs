//! Splits a corpus into training and held-out documents, or into a training range and a held-out tail.

use super::documents::Documents;
use super::parallel::collect_in_order;
use super::stream::Stream;
use super::text::BLOCK_BYTES;
use crate::error::Result;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// Splits the documents so that about `fraction` of their bytes is held out. The choice follows a hash of the
/// seed and the text, so equal documents end up on the same side. Both lists are in corpus order.
pub(super) fn documents(documents: &Documents, fraction: f64, seed: u64) -> Result<(Vec<usize>, Vec<usize>)> {
    let hash = |i| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        let (mut reader, mut block) = (documents.reader(i)?, String::new());
        while reader.append(&mut block, BLOCK_BYTES)? {
            hasher.update(block.as_bytes());
            block.clear();
        }
        Ok((*hasher.finalize().as_bytes(), i))
    };
    let hashes: Vec<([u8; 32], usize)> = collect_in_order((0..documents.len()).into_par_iter().map(hash))?;
    let mut groups: BTreeMap<[u8; 32], Vec<usize>> = BTreeMap::new();
    for (hash, i) in hashes {
        groups.entry(hash).or_default().push(i);
    }
    let groups: Vec<Vec<usize>> = groups.into_values().collect();
    let sizes: Vec<u64> = groups.iter().map(|g| g.iter().map(|&i| documents.bytes(i)).sum()).collect();
    let held = choose_held_out(&sizes, fraction);
    let (mut train, mut validation) = (Vec::new(), Vec::new());
    for (group, held) in groups.into_iter().zip(held) {
        if held { &mut validation } else { &mut train }.extend(group);
    }
    train.sort_unstable();
    validation.sort_unstable();
    Ok((train, validation))
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
