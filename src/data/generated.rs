//! Corpora made from a seed: the built-in stories, and uniform random tokens for benchmarks.

use super::stories::{self, Split, grammar, story};
use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::liveness::report_progress;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;

/// More than this is no longer generated in memory (16 GiB of ids).
const MAX_TOKENS: usize = 1 << 32;

/// Stories generated, and random tokens drawn, at a time.
const STORY_CHUNK: u64 = 1024;
const RANDOM_CHUNK: usize = 1 << 16;

/// Generated stories as a stream.
pub(super) struct Stories {
    /// `[end] story [end] story … [end]`.
    pub tokens: Vec<u32>,
    /// How many.
    pub count: usize,
    /// Bytes of their text.
    pub text_bytes: u64,
    /// −ln p of all of them.
    nats: f64,
    /// Whether every story's tokens decode to its text.
    lossless: bool,
}

impl Stories {
    /// The floor in nats per predicted token: every token but the first. It holds for any tokenizer that keeps
    /// the text, since a story's tokens are then a function of the story and the other way round.
    pub fn floor(&self) -> Option<f64> {
        self.lossless.then(|| self.nats / (self.tokens.len() - 1) as f64)
    }
}

/// One story on its way into the stream.
struct Encoded {
    tokens: Vec<u32>,
    bytes: u64,
    ln_p: f64,
    lossless: bool,
}

fn check_size(tokens: usize) -> Result<()> {
    if tokens == 0 || tokens > MAX_TOKENS {
        return Err(Error::usage(format!(
            "{tokens} tokens to generate: data.train_tokens and data.validation_tokens are within 1 and {MAX_TOKENS}"
        )));
    }
    Ok(())
}

/// The first stories of a split that together fill at least `at_least` tokens.
pub(super) fn generate(seed: u64, split: Split, at_least: usize, tokenizer: &Tokenizer) -> Result<Stories> {
    check_size(at_least)?;
    let native = tokenizer.is_stories();
    let encode = |index| -> Result<Encoded> {
        let drawn = story(seed, split, index);
        let text = grammar().text(&drawn.words);
        let tokens = if native { grammar().tokens(&drawn.words) } else { tokenizer.encode(&text)? };
        // Only the held-out stories have a floor to protect.
        let lossless = native || split == Split::Train || tokenizer.decode(&tokens)? == text;
        Ok(Encoded { tokens, bytes: text.len() as u64, ln_p: drawn.ln_p, lossless })
    };
    let end = tokenizer.end_token();
    let mut out = Stories { tokens: vec![end], count: 0, text_bytes: 0, nats: 0.0, lossless: true };
    let mut next = 0;
    loop {
        let chunk: Vec<_> = (next..next + STORY_CHUNK).into_par_iter().map(encode).collect::<Result<_>>()?;
        next += STORY_CHUNK;
        report_progress();
        for story in chunk {
            out.tokens.extend(story.tokens);
            out.tokens.push(end);
            out.count += 1;
            out.text_bytes += story.bytes;
            out.nats -= story.ln_p;
            out.lossless &= story.lossless;
            if out.tokens.len() > at_least {
                return Ok(out);
            }
        }
    }
}

/// `count` token ids, each uniform below `vocab`, drawn with ChaCha8 keyed by seed, split and block.
pub(super) fn random(seed: u64, split: Split, count: usize, vocab: usize) -> Result<Vec<u32>> {
    check_size(count)?;
    let mut tokens = vec![0; count];
    tokens.par_chunks_mut(RANDOM_CHUNK).enumerate().for_each(|(block, out)| {
        let mut rng = ChaCha8Rng::from_seed(stories::key(*b"random\0\0", seed, split, block as u64));
        // The bias of the product against rejection is below 2^-40 for any vocabulary.
        out.fill_with(|| ((u128::from(rng.next_u64()) * vocab as u128) >> 64) as u32);
    });
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_corpus_begins_with_the_shorter_one() {
        let t = Tokenizer::open("stories").unwrap();
        let short = generate(3, Split::Train, 1000, &t).unwrap();
        let long = generate(3, Split::Train, 200_000, &t).unwrap();
        assert!(long.tokens.starts_with(&short.tokens));
        assert!((1001..1200).contains(&short.tokens.len()));
        assert_eq!(short.tokens.iter().filter(|&&x| x == 256).count(), short.count + 1);
    }

    /// The floor of a byte tokenizer is the same nats over more tokens.
    #[test]
    fn the_floor_counts_the_tokenizers_own_tokens() {
        let nats = |name: &str| {
            let t = Tokenizer::open(name).unwrap();
            let s = generate(3, Split::Validation, 1000, &t).unwrap();
            (s.floor().unwrap() * (s.tokens.len() - 1) as f64, s.count, s.floor().unwrap())
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
        let draw = |seed, split, n| random(seed, split, n, 100).unwrap();
        let tokens = draw(1, Split::Train, 200_000);
        let mut counts = [0f64; 100];
        tokens.iter().for_each(|&t| counts[t as usize] += 1.0);
        // Chi-square with 99 degrees of freedom, p = 1e-5.
        let chi: f64 = counts.iter().map(|c| (c - 2000.0).powi(2) / 2000.0).sum();
        assert!(chi < 170.0, "{chi}");
        assert_eq!(draw(1, Split::Train, 1000), tokens[..1000]);
        assert_ne!(draw(2, Split::Train, 1000), tokens[..1000]);
        assert_ne!(draw(1, Split::Validation, 1000), tokens[..1000]);
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let t = Tokenizer::open("byte").unwrap();
        assert!(generate(0, Split::Train, usize::MAX, &t).is_err());
        assert!(random(0, Split::Train, usize::MAX, 10).is_err());
        assert!(random(0, Split::Train, 0, 10).is_err());
    }
}
