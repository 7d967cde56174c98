//! How much of a held-out text is also trained on: a loss on it says how well the model remembers it.

use super::parallel::collect_in_order;
use super::stream::Stream;
use crate::error::Result;
use crate::liveness::report_progress;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Tokens of a window. Two texts rarely share so many in a row, unless one was copied.
const WINDOW: usize = 64;

/// Most windows of the held-out text that are looked for. A share of them has a standard error of at most 3
/// %.
const WINDOWS: usize = 256;

/// Training tokens searched at a time.
const CHUNK: usize = 1 << 20;

/// Shares below this are not mentioned: texts of one kind share headers and quotations.
const MENTIONED: f64 = 0.1;

/// The set of `data.validation` in a warning.
pub(super) const HELD_OUT: &str = "the held-out text";

/// Names a further held-out set in a warning.
pub(super) fn set_name(name: &str) -> String {
    format!("the held-out set {name}")
}

/// Warns of a held-out text of which a share is trained on. `name` says which text it is.
pub(super) fn warning(name: &str, share: f64) -> String {
    format!(
        "{name} is also in the training text: about {:.0} % of it occurs there, in passages of {WINDOW} tokens. A loss \
         on text that was trained on says how well a model remembers it, not how well it predicts. `xrun data check` lists all \
         of it; hold out other text, or leave those documents out with data.drop",
        100.0 * share
    )
}

/// The base of the rolling hash: an odd number, from the golden ratio.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Windows of a held-out text.
struct Windows {
    /// Index of each window by its hash.
    by_hash: HashMap<u64, usize>,
    /// True at the top bits of each hash. Most training tokens are decided by it.
    filter: Vec<bool>,
}

impl Windows {
    fn new(held_out: &Stream) -> Result<Self> {
        let available = held_out.len() / WINDOW;
        let count = available.min(WINDOWS);
        let mut by_hash = HashMap::new();
        for at in 0..count {
            let start = at * available / count * WINDOW;
            let tokens = held_out.tokens(start..start + WINDOW)?;
            let next = by_hash.len();
            by_hash.entry(hash(&tokens)).or_insert(next);
        }
        let mut filter = vec![false; 1 << 16];
        by_hash.keys().for_each(|hash| filter[filter_index(*hash)] = true);
        Ok(Self { by_hash, filter })
    }

    fn find(&self, hash: u64) -> Option<usize> {
        if self.filter[filter_index(hash)] { self.by_hash.get(&hash).copied() } else { None }
    }
}

fn filter_index(hash: u64) -> usize {
    (hash >> 48) as usize
}

/// Hashes a window: the sum of its tokens times powers of [`BASE`].
fn hash(tokens: &[u32]) -> u64 {
    tokens.iter().fold(0, |hash, &token| appended(hash, token))
}

fn appended(hash: u64, token: u32) -> u64 {
    hash.wrapping_mul(BASE).wrapping_add(u64::from(token) + 1)
}

/// Returns the share of the windows of a held-out text that occur in the training text, from 0 to 1;
/// `None` if a text is shorter than a window, or the share is below what is worth saying.
///
/// # Errors
/// If a token file cannot be read or was written to.
pub(super) fn share_in_training(train: &Stream, held_out: &Stream) -> Result<Option<f64>> {
    let windows = Windows::new(held_out)?;
    if windows.by_hash.is_empty() || train.len() < WINDOW {
        return Ok(None);
    }
    let found: Vec<AtomicBool> = windows.by_hash.iter().map(|_| AtomicBool::new(false)).collect();
    let chunks = train.len().div_ceil(CHUNK);
    let search_chunk = |at| {
        let start = at * CHUNK;
        // A window may begin in this chunk and end in the next one.
        let tokens = train.tokens(start..train.len().min(start + CHUNK + WINDOW - 1))?;
        search(&tokens, &windows, |window| found[window].store(true, Relaxed));
        report_progress();
        Ok(())
    };
    collect_in_order((0..chunks).into_par_iter().map(search_chunk))?;
    let count = found.iter().filter(|found| found.load(Relaxed)).count();
    Ok(Some(count as f64 / found.len() as f64).filter(|share| *share >= MENTIONED))
}

/// Calls `found` with the index of each window that occurs in `tokens`.
fn search(tokens: &[u32], windows: &Windows, found: impl Fn(usize)) {
    let Some((first, _)) = tokens.split_at_checked(WINDOW) else { return };
    // BASE to the power of the window's length takes the oldest token out.
    let leaving = (0..WINDOW).fold(1u64, |power, _| power.wrapping_mul(BASE));
    let mut hash = hash(first);
    windows.find(hash).into_iter().for_each(&found);
    for (old, new) in tokens.iter().zip(&tokens[WINDOW..]) {
        hash = appended(hash, *new).wrapping_sub(leaving.wrapping_mul(u64::from(*old) + 1));
        windows.find(hash).into_iter().for_each(&found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_said_in_percent() {
        let said = warning(&set_name("own"), 0.254);
        assert!(
            said.starts_with("the held-out set own is also in the training text: about 25 % of it"),
            "{said}"
        );
    }

    /// Returns tokens that are random, and the same for the same positions.
    fn text(from: u64, len: usize) -> Vec<u32> {
        let token = |at: u64| {
            let mixed = (at ^ at >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            ((mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 49) as u32
        };
        (from..from + len as u64).map(|at| token(at.wrapping_mul(BASE))).collect()
    }

    #[test]
    fn what_is_trained_on_and_held_out_is_found_wherever_it_stands() {
        let train = text(0, CHUNK + 5000);
        let share = |held: Vec<u32>| {
            share_in_training(&Stream::from_tokens(train.clone()), &Stream::from_tokens(held)).unwrap()
        };
        assert_eq!(share(text(9_000_000, 4000)), None, "other text");
        assert_eq!(share(train[777..4777].to_vec()), Some(1.0));
        assert_eq!(share(train[CHUNK - 1000..CHUNK + 1000].to_vec()), Some(1.0), "over the end of a chunk");
        assert_eq!(share(train[train.len() - 64..].to_vec()), Some(1.0), "the last tokens");
        assert_eq!(share([&train[..1024], &text(9_000_000, 3072)].concat()), Some(0.25));
        assert_eq!(share([&train[..256], &text(9_000_000, 3840)].concat()), None, "too little to mention");
        assert_eq!(share(train[..WINDOW - 1].to_vec()), None, "too short to tell");
        let tiny = Stream::from_tokens(text(0, 5));
        assert_eq!(share_in_training(&tiny, &Stream::from_tokens(text(0, 100))).unwrap(), None);
    }
}
