//! Reads conversations from files, and turns them into words.

use super::super::Spec;
use super::super::chat::{Conversation, DropReason, Row, conversation, preference_pair};
use super::super::parallel::collect_in_order;
use super::super::row::Row as FileRow;
use super::super::rows::read_in_groups;
use super::encoder::{Encoded, Encoder};
use crate::error::{Error, Result};
use crate::format::{plural, thousands};
use crate::liveness::report_progress;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Most conversations that one process renders.
const TOGETHER: usize = 256;

/// Bytes to render from which on no further conversation joins a process, whose memory is limited.
const TOGETHER_BYTES: u64 = 32 << 20;

/// A conversation that is trained on, or a pair of answers.
#[derive(Clone, Debug)]
pub(super) struct Example {
    /// File and line.
    pub place: String,
    /// Its words, at most a row. Of a pair, the conversation with the chosen answer and then the other one.
    pub words: Vec<u32>,
}

/// Conversations that are left out for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DroppedExamples {
    /// The reason.
    pub reason: DropReason,
    /// Their number.
    pub count: usize,
    /// File and line of the first.
    pub first: String,
    /// What the template says of the first; empty if it says nothing.
    pub says: String,
}

/// The conversations of some files.
#[derive(Clone, Debug, Default)]
pub(super) struct Examples {
    pub examples: Vec<Example>,
    pub dropped: BTreeMap<DropReason, DroppedExamples>,
    /// Number of conversations of which the last answer alone is trained on.
    pub last_alone: usize,
    /// Number of conversations whose last turns are cut off, because they do not fit a row.
    pub cut: usize,
}

/// Joins the conversations with the answers of a pair, as one example. A pair is trained on whole or not at
/// all.
fn joined(chosen: Encoded, rejected: Option<Encoded>, row_len: usize) -> Encoded {
    let too_long = Encoded::Dropped { reason: DropReason::PairTooLong, says: String::new() };
    match (chosen, rejected) {
        (
            Encoded::Words { words: chosen, last_alone, is_cut: false },
            Some(Encoded::Words { words: rejected, last_alone: other_alone, is_cut: false }),
        ) if chosen.len() + rejected.len() <= row_len => {
            let words = [chosen, rejected].concat();
            Encoded::Words { words, last_alone: last_alone || other_alone, is_cut: false }
        }
        (Encoded::Words { .. }, Some(Encoded::Words { .. })) => too_long,
        (Encoded::Dropped { reason: DropReason::TooLong, .. }, _)
        | (_, Some(Encoded::Dropped { reason: DropReason::TooLong, .. })) => too_long,
        (Encoded::Words { .. }, Some(other)) => other,
        (chosen, _) => chosen,
    }
}

/// Divides conversations into groups that one process renders each.
fn groups(conversations: Vec<(usize, Conversation)>) -> Vec<Vec<(usize, Conversation)>> {
    let (mut groups, mut bytes): (Vec<Vec<_>>, u64) = (Vec::new(), 0);
    for one in conversations {
        let more = one.1.bytes_to_render();
        match groups.last_mut().filter(|group| group.len() < TOGETHER && bytes < TOGETHER_BYTES) {
            Some(group) => {
                group.push(one);
                bytes += more;
            }
            None => {
                groups.push(vec![one]);
                bytes = more;
            }
        }
    }
    groups
}

impl Examples {
    /// Reads the conversations of a file.
    ///
    /// # Errors
    /// If a row is no conversation, or the template is wrong. The message has file and line.
    pub fn read(&mut self, path: &Path, spec: &Spec, encoder: &Encoder) -> Result<()> {
        read_in_groups(path, &mut |rows| {
            let place = |line: usize| format!("{}:{line}", path.display());
            let mut conversations: Vec<(usize, Conversation)> = Vec::with_capacity(rows.len());
            for FileRow { line, fields } in rows {
                let row = match spec.holds_pairs() {
                    true => preference_pair(&fields),
                    false => conversation(&fields),
                };
                match row.map_err(|says| Error::usage(format!("{}: {says}", place(line))))? {
                    Row::Conversation(found) => conversations.push((line, found)),
                    Row::Pair(pair) => conversations.extend((*pair).map(|side| (line, side))),
                    Row::Dropped(reason) => self.drop(reason, place(line), String::new()),
                }
            }
            let encoded = groups(conversations).into_par_iter().map(|group| {
                let (lines, some): (Vec<usize>, Vec<Conversation>) = group.into_iter().unzip();
                let encoded = encoder.encode(some, spec.row_len).map_err(|e| match &lines[..] {
                    [only] => e.context(place(*only)),
                    [first, .., last] => e.context(format!("{} to {last}", place(*first))),
                    [] => e,
                })?;
                report_progress();
                Ok(lines.into_iter().zip(encoded).collect::<Vec<_>>())
            });
            let mut encoded = collect_in_order(encoded)?.into_iter().flatten();
            while let Some((line, one)) = encoded.next() {
                let one = match spec.holds_pairs() {
                    true => joined(one, encoded.next().map(|(_, other)| other), spec.row_len),
                    false => one,
                };
                match one {
                    Encoded::Words { words, last_alone, is_cut } => {
                        self.last_alone += usize::from(last_alone);
                        self.cut += usize::from(is_cut);
                        self.examples.push(Example { place: place(line), words });
                    }
                    Encoded::Dropped { reason, says } => self.drop(reason, place(line), says),
                    Encoded::Wrong(says) => return Err(Error::usage(format!("{}: {says}", place(line)))),
                }
            }
            Ok(())
        })
    }

    fn drop(&mut self, reason: DropReason, place: String, says: String) {
        let first = || DroppedExamples { reason, count: 0, first: place, says };
        self.dropped.entry(reason).or_insert_with(first).count += 1;
    }

    /// Says what is left out, a line for each reason.
    pub fn dropped_in_words(&self) -> Vec<String> {
        let line = |DroppedExamples { reason, count, first, says }: &DroppedExamples| {
            let says = if says.is_empty() { String::new() } else { format!(": {says}") };
            let count = format!("{} example{}", thousands(*count), plural(*count));
            format!("{count} {} ({first}{says})", reason.in_words())
        };
        self.dropped.values().map(line).collect()
    }
}
