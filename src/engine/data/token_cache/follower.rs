//! Follows an entry while this process or another one makes it: reads lines of its journal as they arrive,
//! and verifies the tokens of each group.

use super::super::stories::Split;
use super::super::stream::{Store, UnfinishedTokens};
use super::super::tokenizer::LostBytes;
use super::entry::MAGIC;
use super::journal::{Group, JOURNAL_ENDING, TOKENS_ENDING, read};
use super::{Key, TokenCache};
use crate::regular;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of the journal that are read at a time.
const LINES: usize = 64 << 10;

/// The tokens of a split that are verified.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Arrived {
    /// Byte of the file where they begin.
    offset: u64,
    pub tokens: usize,
    /// Bytes of their text.
    pub bytes: u64,
    /// Bytes of their text that the tokens lost.
    pub lost: LostBytes,
    /// True if no more follow.
    pub is_whole: bool,
}

impl Arrived {
    fn add(&mut self, group: &Group, at: u64) {
        if self.tokens == 0 {
            self.offset = at;
        }
        self.tokens += group.tokens as usize;
        self.bytes += group.bytes;
        self.lost += group.lost;
        self.is_whole = group.is_last;
    }
}

/// Reads an entry that is being made.
#[derive(Debug)]
pub(in super::super) struct Follower {
    path: PathBuf,
    /// Bytes per token.
    width: u8,
    /// The tokens and the journal, once they are there.
    files: Option<(Arc<File>, File)>,
    /// Byte of the journal where the next line begins.
    line_at: u64,
    /// Byte of the tokens where those of the next group begin.
    at: u64,
    /// True if a line cannot be followed.
    is_lost: bool,
    pub held_out: Arrived,
    pub train: Arrived,
}

impl Follower {
    /// Follows the entry of a key, for a vocabulary of `vocab` entries.
    pub fn new(cache: &TokenCache, key: &Key, vocab: usize) -> Self {
        Self {
            path: cache.path(key),
            width: super::entry::width(vocab),
            files: None,
            line_at: 0,
            at: MAGIC.len() as u64,
            is_lost: false,
            held_out: Arrived::default(),
            train: Arrived::default(),
        }
    }

    /// Takes the groups that have arrived since the last call. Returns true if there were any.
    pub fn advance(&mut self) -> bool {
        let mut has_advanced = false;
        while let Some((line, length)) = self.next_line().filter(|_| !self.is_lost) {
            let Ok(group) = serde_json::from_slice::<Group>(&line) else {
                self.is_lost = true;
                break;
            };
            let Some((tokens, _)) = &self.files else { break };
            // The tokens of a group are written behind its line.
            let Some((_, bytes)) = read(tokens, self.at, self.width, &group) else { break };
            let arrived = match group.split {
                Some(Split::Train) => &mut self.train,
                Some(Split::Validation) => &mut self.held_out,
                None => {
                    self.is_lost = true;
                    break;
                }
            };
            if arrived.is_whole {
                self.is_lost = true;
                break;
            }
            arrived.add(&group, self.at);
            self.at += bytes;
            self.line_at += length as u64;
            has_advanced = true;
        }
        has_advanced
    }

    /// Returns the next line of the journal and its length with its end; `None` if it is not there yet.
    fn next_line(&mut self) -> Option<(Vec<u8>, usize)> {
        if self.files.is_none() {
            let open = |ending| regular::open(&self.path.with_extension(ending)).ok();
            self.files = Some((Arc::new(open(TOKENS_ENDING)?), open(JOURNAL_ENDING)?));
        }
        let (_, journal) = self.files.as_ref()?;
        let mut bytes = vec![0; LINES];
        let count = journal.read_at(&mut bytes, self.line_at).ok()?;
        bytes.truncate(count);
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        bytes.truncate(end);
        Some((bytes, end + 1))
    }

    /// Returns the tokens of a split that have arrived.
    pub fn store(&self, arrived: &Arrived) -> Option<Store> {
        let (file, _) = self.files.as_ref()?;
        Some(Store::Unfinished(UnfinishedTokens {
            file: Arc::clone(file),
            path: self.path(),
            offset: arrived.offset,
            width: self.width.into(),
            tokens: arrived.tokens,
        }))
    }

    fn path(&self) -> PathBuf {
        Path::new(&self.path).with_extension(TOKENS_ENDING)
    }
}
