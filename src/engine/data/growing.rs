//! A corpus that is trained on while its text is tokenized.
//!
//! A thread makes the entry of the token cache, as if nobody read it before it is whole. Readers follow its
//! journal, and so do other processes, whose own threads wait for the entry's lock and go on with the work if
//! the process that has it ends. Progress of that thread counts as progress of the process, so a watchdog
//! finds a rank that hangs only after the text is tokenized.

use super::corpus::{Corpus, Loaded};
use super::stream::{Store, Stream};
use super::text_files::TextFiles;
use super::token_cache::{Arrived, Follower, Key, TokenCache};
use super::{Spec, Tokenizer};
use crate::error::{Error, Result};
use crate::liveness::report_progress;
use crate::lock::lock;
use crate::threads::spawn_detached;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Time between looks at the journal.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Both splits of a text corpus while it is tokenized.
#[derive(Debug)]
pub(super) struct Growing {
    follower: Mutex<Follower>,
    made: Arc<Made>,
    cancelled: Arc<AtomicBool>,
}

/// What the tokenizing thread made.
#[derive(Debug, Default)]
struct Made(OnceLock<Result<Loaded>>);

impl Drop for Growing {
    fn drop(&mut self) {
        // The journal keeps what was done.
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Sets an error if the thread ends without a result.
struct Ends(Arc<Made>);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.0.set(Err(Error::failed("the tokenizing thread stopped; its message is above")));
    }
}

impl Growing {
    /// Starts to tokenize a text.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        text: &TextFiles,
        key: Key,
        spec: &Spec,
        tokenizer: &Arc<Tokenizer>,
        cache: &TokenCache,
    ) -> Result<Self> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let cache = TokenCache { cancelled: Some(Arc::clone(&cancelled)), ..cache.clone() };
        let follower = Mutex::new(Follower::new(&cache, &key, tokenizer.vocab_size()));
        let made = Arc::new(Made::default());
        let ends = Ends(Arc::clone(&made));
        let (text, spec, tokenizer) = (text.clone(), spec.clone(), Arc::clone(tokenizer));
        let body = move || {
            let loaded = Corpus::load_by_key(&text, Some(&key), &spec, &tokenizer, Some(&cache));
            let _ = ends.0.0.set(loaded);
        };
        spawn_detached("xrun-tokenizer", body)
            .map_err(|e| Error::failed(format!("cannot start a thread for the tokenizer: {e}")))?;
        Ok(Self { follower, made, cancelled })
    }

    /// Returns the corpus if all of it is tokenized.
    ///
    /// # Errors
    /// If it could not be tokenized.
    pub fn loaded(&self) -> Result<Option<&Loaded>> {
        self.made.0.get().map(|made| made.as_ref().map_err(Error::clone)).transpose()
    }

    /// Waits until `enough` of the tokens that have arrived, or until all have; then returns `None`.
    fn wait<T>(&self, enough: impl Fn(&Follower) -> Option<T>) -> Result<Option<T>> {
        loop {
            if self.loaded()?.is_some() {
                return Ok(None);
            }
            {
                let mut follower = lock(&self.follower);
                if follower.advance() {
                    report_progress();
                }
                if let Some(enough) = enough(&follower) {
                    return Ok(Some(enough));
                }
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits for the held-out tokens that are cut from the corpus. Returns them with what is known of their
    /// text; `None` if all of the corpus is tokenized.
    ///
    /// # Errors
    /// If the corpus could not be tokenized.
    pub fn held_out(&self) -> Result<Option<(Stream, Arrived)>> {
        self.wait(|follower| {
            let arrived = Some(&follower.held_out).filter(|held_out| held_out.is_whole)?;
            Some((Stream::new(follower.store(arrived)), arrived.clone()))
        })
    }

    /// Waits until `tokens` tokens to train on have arrived, or all. Returns their number if it is known.
    ///
    /// # Errors
    /// If the corpus could not be tokenized.
    pub fn wait_for(&self, tokens: usize) -> Result<Option<usize>> {
        let known = self.wait(|follower| {
            let Arrived { tokens: arrived, is_whole, .. } = follower.train;
            (is_whole || arrived >= tokens).then_some(is_whole.then_some(arrived))
        })?;
        match known {
            Some(count) => Ok(count),
            None => Ok(self.loaded()?.map(|loaded| loaded.train.len())),
        }
    }

    /// Reads tokens to train on that have arrived, and checks each against a vocabulary of `vocab` entries.
    ///
    /// # Errors
    /// If they have not, or cannot be read.
    pub fn read(&self, range: Range<usize>, vocab: usize) -> Result<Vec<u32>> {
        if let Some(loaded) = self.loaded()? {
            return loaded.train.tokens_in_vocab(range, vocab);
        }
        let store: Option<Store> = {
            let follower = lock(&self.follower);
            follower.store(&follower.train).filter(|_| range.end <= follower.train.tokens)
        };
        let store = store.ok_or_else(|| Error::failed("tokens are read before they have arrived"))?;
        Stream::new([store]).tokens_in_vocab(range, vocab)
    }
}
