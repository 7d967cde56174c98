//! Work on an entry that an interruption does not lose: tokens are written to a file of their own, and a
//! journal beside it has a line per group of text that was encoded. The next process that makes the entry
//! takes the tokens of these groups from the file, and encodes the rest.
//!
//! A line holds the hash of its group's tokens, which is verified before they are used, so nothing has to be
//! synced while the entry is made.

use super::super::stories::Split;
use super::super::stream::{decode_ids, encode_ids};
use super::super::tokenizer::LostBytes;
use crate::error::{IoContext, Result};
use crate::interrupts::{self, Repeated};
use crate::liveness::report_progress;
use crate::regular;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Ending of the file that the tokens of an unfinished entry are written to.
pub(super) const TOKENS_ENDING: &str = "unfinished";

/// Ending of its journal.
pub(super) const JOURNAL_ENDING: &str = "journal";

/// The largest journal that is read, in bytes: that of some 3 TB of text.
const MAX_JOURNAL: u64 = 64 << 20;

/// The most tokens of a group that are taken from an unfinished entry: more than a group of 8 MiB can have,
/// unless its tokenizer allows no cut.
const MAX_TOKENS: u64 = 1 << 28;

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Group {
    /// The split that it belongs to; `None` if that is decided only when all of the text is encoded.
    pub split: Option<Split>,
    /// True if it is the last one of its split.
    pub is_last: bool,
    /// Bytes of its text.
    pub bytes: u64,
    /// Number of its tokens.
    pub tokens: u64,
    /// Bytes of its text that the tokens lost.
    pub lost: LostBytes,
    /// BLAKE3 hash of the tokens as they are stored.
    hash: String,
}

/// The journal of an entry that is being made.
#[derive(Debug, Default)]
pub(in super::super) struct Journal {
    /// Where groups are recorded; `None` if they are not.
    out: Option<File>,
    /// The tokens of the groups before the interruption, and bytes per token there.
    stored: Option<(Arc<File>, u8)>,
    /// The groups that are not taken yet.
    groups: VecDeque<Group>,
    /// Byte of the file where the tokens of the first of them begin.
    at: u64,
    /// The split that the next groups belong to.
    split: Option<Split>,
}

impl Journal {
    /// Returns the journal of tokens that are not stored.
    pub fn none() -> Self {
        Self::default()
    }

    /// Says which split the next groups belong to; `None` if that is decided later.
    pub fn begin(&mut self, split: Option<Split>) {
        self.split = split;
    }

    /// Returns the tokens of the next group of text, which has `bytes` bytes, if they were made before an
    /// interruption, and the bytes that they lost. `is_last` is true of the last group of a split.
    pub fn recall(&mut self, bytes: usize, is_last: bool) -> Option<(Vec<u32>, LostBytes)> {
        let group = self.groups.pop_front()?;
        let (file, width) = self.stored.as_ref()?;
        let is_next = (group.bytes, group.split, group.is_last) == (bytes as u64, self.split, is_last);
        let tokens = is_next.then(|| read(file, self.at, *width, &group)).flatten();
        let Some((tokens, _)) = tokens else {
            // What follows belongs to other text.
            self.groups.clear();
            return None;
        };
        self.at += group.tokens * u64::from(*width);
        Some((tokens, group.lost))
    }

    /// Records the tokens of a group of text of `bytes` bytes, which are stored next. Without a journal, or
    /// if it cannot be written, nothing is recorded.
    pub fn record(&mut self, bytes: usize, tokens: &[u32], lost: LostBytes, is_last: bool) {
        let (Some(out), Some((_, width))) = (&self.out, &self.stored) else { return };
        let Some(stored) = encode_ids(tokens, (*width).into()) else { return };
        let hash = blake3::hash(&stored).to_hex().to_string();
        let group = Group {
            split: self.split,
            is_last,
            bytes: bytes as u64,
            tokens: tokens.len() as u64,
            lost,
            hash,
        };
        let line = serde_json::to_string(&group).map(|json| json + "\n").unwrap_or_default();
        if Repeated(out).write_all(line.as_bytes()).is_err() {
            self.out = None;
        }
    }
}

/// Reads the tokens of a group and the bytes that they were read from; `None` if they are not those that were
/// recorded.
pub(super) fn read(file: &File, at: u64, width: u8, group: &Group) -> Option<(Vec<u32>, u64)> {
    let length = Some(group.tokens).filter(|tokens| *tokens <= MAX_TOKENS)? * u64::from(width);
    let end = at.checked_add(length)?;
    if end > file.metadata().ok()?.len() {
        return None;
    }
    let mut bytes = vec![0; length as usize];
    interrupts::read_exact_at(file, &mut bytes, at).ok()?;
    if blake3::hash(&bytes).to_hex().as_str() != group.hash {
        return None;
    }
    let mut tokens = vec![0; group.tokens as usize];
    decode_ids(&bytes, width.into(), &mut tokens);
    Some((tokens, length))
}

/// An entry that is being made.
pub(super) struct Unfinished {
    /// The file of its tokens.
    pub file: Arc<File>,
    pub journal: Journal,
    path: PathBuf,
    journal_path: PathBuf,
}

impl Unfinished {
    /// Begins the entry at `path`, or goes on with it. Its first `head` bytes are `head`, then come the
    /// tokens, `width` bytes each. The caller holds the lock of the entry.
    ///
    /// # Errors
    /// If the files cannot be created.
    pub fn open(entry: &Path, head: &[u8], width: u8) -> Result<Self> {
        let (path, journal_path) =
            (entry.with_extension(TOKENS_ENDING), entry.with_extension(JOURNAL_ENDING));
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let (file, out) = (regular::open_own(options, &path)?, regular::open_own(options, &journal_path)?);
        let file = Arc::new(file);
        let groups = verified(&file, &journal_path, head, width);
        let tokens: u64 = groups.iter().map(|group| group.tokens).sum();
        let kept = if groups.is_empty() { 0 } else { head.len() as u64 + tokens * u64::from(width) };
        let journal = Journal {
            out: Some(out),
            stored: Some((file.clone(), width)),
            groups: groups.into(),
            at: head.len() as u64,
            split: None,
        };
        let unfinished = Self { file, journal, path, journal_path };
        unfinished.cut_to(kept).at("shorten", &unfinished.path)?;
        Ok(unfinished)
    }

    /// Removes what follows the verified groups from both files: `kept` bytes of the tokens stay.
    fn cut_to(&self, kept: u64) -> std::io::Result<()> {
        self.file.set_len(kept)?;
        let Some(out) = &self.journal.out else { return Ok(()) };
        out.set_len(0)?;
        let mut lines = Vec::new();
        for group in &self.journal.groups {
            serde_json::to_writer(&mut lines, group)?;
            lines.push(b'\n');
        }
        Repeated(out).write_all(&lines)
    }

    /// Gives the finished file the name of its entry, durably, and removes the journal.
    pub fn finish(&self, entry: &Path) -> std::io::Result<()> {
        interrupts::sync_all(&self.file)?;
        std::fs::rename(&self.path, entry)?;
        let _ = std::fs::remove_file(&self.journal_path);
        entry.parent().map_or(Ok(()), interrupts::sync_folder)
    }

    /// Removes both files.
    pub fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(&self.journal_path);
    }
}

/// Returns the groups of a journal whose tokens are in the file as they were recorded, up to the first that
/// is not.
fn verified(file: &File, journal: &Path, head: &[u8], width: u8) -> Vec<Group> {
    let mut found = vec![0; head.len()];
    if interrupts::read_exact_at(file, &mut found, 0).is_err() || found != head {
        return Vec::new();
    }
    let Ok(lines) = regular::read(journal, MAX_JOURNAL) else { return Vec::new() };
    let mut at = head.len() as u64;
    let groups = lines.split(|byte| *byte == b'\n').map_while(|line| {
        let group: Group = serde_json::from_slice(line).ok()?;
        let (_, length) = read(file, at, width, &group)?;
        at += length;
        report_progress();
        Some(group)
    });
    groups.collect()
}
