//! Corpora generated from a seed: the built-in stories, and uniform random tokens for benchmarks.

use super::parallel::collect_in_order;
use super::stories::{self, Split, grammar, story};
use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::liveness::report_progress;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;

/// The most tokens generated in memory (16 GiB of ids).
const MAX_TOKENS: usize = 1 << 32;

/// Stories generated at a time, and random tokens drawn with one key.
const STORY_CHUNK: u64 = 1024;
const RANDOM_CHUNK: usize = 1 << 16;

/// Chunks of random tokens handed on at a time.
const RANDOM_CHUNKS: usize = 64;

/// Generated stories.
pub(super) struct Stories {
    /// Tokens of the stream.
    pub tokens: usize,
    /// Number of stories.
    pub count: usize,
    /// Tokens that only open a story, which are not predicted.
    openings: usize,
    /// Bytes of the stories' text.
    pub text_bytes: u64,
    /// −ln p, summed over all stories.
    nats: f64,
    /// True if every held-out story's tokens decode to its text.
    lossless: bool,
}

impl Stories {
    /// Returns the floor in nats per predicted token, which is every token but the first and the ones that
    /// only open a story. It holds for any tokenizer that keeps the text, because a story and its tokens then
    /// determine each other.
    pub fn floor(&self) -> Option<f64> {
        self.lossless.then(|| self.nats / (self.tokens - 1 - self.openings) as f64)
    }
}

/// A generated story and its tokens.
struct Encoded {
    tokens: Vec<u32>,
    bytes: u64,
    ln_p: f64,
    lossless: bool,
}

/// Refuses a number of tokens that is zero or too large to generate.
pub(super) fn check_size(tokens: usize) -> Result<()> {
    if tokens == 0 || tokens > MAX_TOKENS {
        return Err(Error::usage(format!(
            "{tokens} tokens to generate: data.train_tokens and data.validation_tokens are within 1 and {MAX_TOKENS}"
        )));
    }
    Ok(())
}

/// Hands the first stories of a split to `sink`, as the stream `[end] story [end] story … [end]`, until they
/// fill at least `at_least` tokens.
pub(super) fn generate(
    seed: u64,
    split: Split,
    at_least: usize,
    tokenizer: &Tokenizer,
    sink: &mut dyn FnMut(&[u32]) -> Result<()>,
) -> Result<Stories> {
    check_size(at_least)?;
    let native = tokenizer.is_stories();
    let encode = |index| -> Result<Encoded> {
        let drawn = story(seed, split, index);
        let text = grammar().text(&drawn.words);
        let tokens = if native { grammar().tokens(&drawn.words) } else { tokenizer.encode(&text)? };
        // Only held-out stories have a floor, so only they are checked.
        let lossless = native || split == Split::Train || tokenizer.decode(&tokens)? == text;
        Ok(Encoded { tokens, bytes: text.len() as u64, ln_p: drawn.ln_p, lossless })
    };
    let (end, opening) = (tokenizer.end_token(), tokenizer.opening_after_end());
    sink(&[tokenizer.opening_token()])?;
    let mut out = Stories { tokens: 1, count: 0, openings: 0, text_bytes: 0, nats: 0.0, lossless: true };
    let mut next = 0;
    loop {
        let chunk = collect_in_order((next..next + STORY_CHUNK).into_par_iter().map(encode))?;
        next += STORY_CHUNK;
        report_progress();
        for mut story in chunk {
            story.tokens.push(end);
            story.tokens.extend(opening);
            out.openings += usize::from(opening.is_some());
            sink(&story.tokens)?;
            out.tokens += story.tokens.len();
            out.count += 1;
            out.text_bytes += story.bytes;
            out.nats -= story.ln_p;
            out.lossless &= story.lossless;
            if out.tokens > at_least {
                return Ok(out);
            }
        }
    }
}

/// Hands `count` token ids to `sink`, each uniform below `vocab`. Each block is drawn with ChaCha8, keyed by
/// seed, split and block number.
pub(super) fn random(
    seed: u64,
    split: Split,
    count: usize,
    vocab: usize,
    sink: &mut dyn FnMut(&[u32]) -> Result<()>,
) -> Result<()> {
    check_size(count)?;
    let mut tokens = vec![0; count.min(RANDOM_CHUNKS * RANDOM_CHUNK)];
    for start in (0..count).step_by(tokens.len()) {
        let group = &mut tokens[..(count - start).min(RANDOM_CHUNKS * RANDOM_CHUNK)];
        group.par_chunks_mut(RANDOM_CHUNK).enumerate().for_each(|(i, out)| {
            let block = (start / RANDOM_CHUNK + i) as u64;
            let mut rng = ChaCha8Rng::from_seed(stories::key(*b"random\0\0", seed, split, block));
            // Scaling by multiplication instead of rejection biases the ids by less than 2^-40 for any
            // vocabulary.
            out.fill_with(|| ((u128::from(rng.next_u64()) * vocab as u128) >> 64) as u32);
        });
        sink(group)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stories(
        seed: u64,
        split: Split,
        at_least: usize,
        tokenizer: &Tokenizer,
    ) -> Result<(Stories, Vec<u32>)> {
        let mut tokens = Vec::new();
        let made = generate(seed, split, at_least, tokenizer, &mut |t| {
            tokens.extend_from_slice(t);
            Ok(())
        })?;
        assert_eq!(made.tokens, tokens.len());
        Ok((made, tokens))
    }

    fn drawn(seed: u64, split: Split, count: usize, vocab: usize) -> Result<Vec<u32>> {
        let mut tokens = Vec::new();
        random(seed, split, count, vocab, &mut |t| {
            tokens.extend_from_slice(t);
            Ok(())
        })?;
        Ok(tokens)
    }

    #[test]
    fn a_longer_corpus_begins_with_the_shorter_one() {
        let t = Tokenizer::open("stories").unwrap();
        let (made, short) = stories(3, Split::Train, 1000, &t).unwrap();
        let (_, long) = stories(3, Split::Train, 200_000, &t).unwrap();
        assert!(long.starts_with(&short));
        assert!((1001..1200).contains(&short.len()));
        assert_eq!(short.iter().filter(|&&x| x == 256).count(), made.count + 1);
    }

    /// A byte tokenizer spreads the same nats over more tokens.
    #[test]
    fn the_floor_counts_the_tokenizers_own_tokens() {
        let nats = |name: &str| {
            let t = Tokenizer::open(name).unwrap();
            let (s, _) = stories(3, Split::Validation, 1000, &t).unwrap();
            (s.floor().unwrap() * (s.tokens - 1) as f64, s.count, s.floor().unwrap())
        };
        let (words, count, per_word) = nats("stories");
        let direct: f64 = (0..count as u64).map(|i| -story(3, Split::Validation, i).ln_p).sum();
        assert!((words - direct).abs() < 1e-9);
        let (bytes, fewer, per_byte) = nats("byte");
        let direct: f64 = (0..fewer as u64).map(|i| -story(3, Split::Validation, i).ln_p).sum();
        assert!((bytes - direct).abs() < 1e-9 && per_byte < per_word / 3.0);
    }

    #[test]
    fn random_tokens_are_uniform_and_keyed() {
        let draw = |seed, split, n| drawn(seed, split, n, 100).unwrap();
        let tokens = draw(1, Split::Train, 200_000);
        let mut counts = [0f64; 100];
        tokens.iter().for_each(|&t| counts[t as usize] += 1.0);
        // Chi-square with 99 degrees of freedom, p = 1e-5.
        let chi: f64 = counts.iter().map(|c| (c - 2000.0).powi(2) / 2000.0).sum();
        assert!(chi < 170.0, "{chi}");
        assert_eq!(draw(1, Split::Train, 1000), tokens[..1000]);
        assert_ne!(draw(2, Split::Train, 1000), tokens[..1000]);
        assert_ne!(draw(1, Split::Validation, 1000), tokens[..1000]);
        // A longer corpus begins with the shorter one even across the end of a group.
        let group = RANDOM_CHUNKS * RANDOM_CHUNK;
        let long = draw(1, Split::Train, 2 * group + 7);
        assert_eq!((long.len(), &long[..200_000]), (2 * group + 7, &tokens[..]));
        assert_ne!(long[..1000], long[group..group + 1000]);
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let t = Tokenizer::open("byte").unwrap();
        assert!(stories(0, Split::Train, usize::MAX, &t).is_err());
        assert!(drawn(0, Split::Train, usize::MAX, 10).is_err());
        assert!(drawn(0, Split::Train, 0, 10).is_err());
    }
}
