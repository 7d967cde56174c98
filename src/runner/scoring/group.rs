//! Requests that are laid out together because they share their first tokens.

use crate::error::{Error, Result};
use crate::model::ScoringShape;
use crate::tasks::Request;

/// Requests of one item: a prefix that they share, and after it what is left of each, one after another. Each
/// sees the prefix and itself.
///
/// Which requests share a group depends on the item and the program alone, so a group is the same in every
/// batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// The item.
    pub item: usize,
    /// Its first request, and how many there are.
    pub first: usize,
    pub count: usize,
    /// Tokens that all of them begin with.
    pub prefix: usize,
    /// Tokens that the model reads.
    pub rows: usize,
    /// Tokens that are scored.
    pub scored: usize,
}

impl Group {
    fn alone(item: usize, first: usize, request: &Request) -> Self {
        let rows = request.inputs().count();
        Self { item, first, count: 1, prefix: rows, rows, scored: request.continuation.len() }
    }

    /// Returns the group with one more request of its item. `head` is its first request.
    fn with(&self, head: &Request, request: &Request) -> Self {
        let shared =
            head.inputs().zip(request.inputs()).take(self.prefix).take_while(|(a, b)| a == b).count();
        let others = self.rows - self.prefix + self.count * (self.prefix - shared);
        Self {
            count: self.count + 1,
            prefix: shared,
            rows: shared + others + request.inputs().count() - shared,
            scored: self.scored + request.continuation.len(),
            ..*self
        }
    }

    /// Returns the rows of attention that it takes, rounded up to where another may begin. They are at least
    /// as many as scored tokens, because a batch has no more room for these.
    pub fn room(&self, shape: ScoringShape) -> usize {
        self.rows.max(self.scored).next_multiple_of(shape.step)
    }
}

/// Divides items into groups, each of as many neighboring requests as fit into a row of attention.
pub(super) fn groups(items: &[&[Request]], shape: ScoringShape) -> Vec<Group> {
    let mut groups = Vec::new();
    for (item, requests) in items.iter().enumerate() {
        let mut open: Option<Group> = None;
        for (at, request) in requests.iter().enumerate() {
            let larger = open.as_ref().map(|group| group.with(&requests[group.first], request));
            let fitting = larger.filter(|group| shape.shares_prefixes && group.room(shape) <= shape.seq_len);
            let next = fitting.unwrap_or_else(|| {
                groups.extend(open.take());
                Group::alone(item, at, request)
            });
            open = Some(next);
        }
        groups.extend(open);
    }
    groups
}

/// Checks a request for a model with this context and vocabulary.
///
/// # Errors
/// With a usage error that says what is wrong.
pub(super) fn check(request: &Request, context: usize, vocabulary: usize) -> Result<()> {
    let (before, scored) = (request.context.len(), request.continuation.len());
    if before == 0 || scored == 0 {
        return Err(Error::usage(format!(
            "it has {before} tokens of context and {scored} to score; both need at least one"
        )));
    }
    let len = before + scored;
    if len > context + 1 {
        return Err(Error::usage(format!(
            "it has {len} tokens, but the model reads {context} and scores the one after them; leave out tokens of the \
             context"
        )));
    }
    check_tokens(request.context.iter().chain(&request.continuation), vocabulary)
}

/// Checks that a model with this vocabulary has these tokens.
///
/// # Errors
/// With a usage error that names the first that it lacks.
pub(super) fn check_tokens<'t>(mut tokens: impl Iterator<Item = &'t u32>, vocabulary: usize) -> Result<()> {
    match tokens.find(|token| **token as usize >= vocabulary) {
        Some(token) => Err(Error::usage(format!(
            "its token {token} is outside the model's vocabulary of {vocabulary}; the tokenizer belongs to another model"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ScoringShape = ScoringShape {
        sequences: 1,
        seq_len: 96,
        step: 48,
        context: 90,
        head_rows: 96,
        shares_prefixes: true,
    };

    fn request(context: std::ops::Range<u32>, continuation: &[u32]) -> Request {
        Request { context: context.collect(), continuation: continuation.to_vec() }
    }

    fn sizes(requests: &[Request], shape: ScoringShape) -> Vec<(usize, usize, usize, usize)> {
        let groups = groups(&[requests], shape);
        groups.iter().map(|group| (group.count, group.prefix, group.rows, group.scored)).collect()
    }

    #[test]
    fn choices_share_their_context() {
        let choices = [request(0..40, &[1, 2, 3]), request(0..40, &[4]), request(0..40, &[1, 2, 9, 9])];
        assert_eq!(sizes(&choices, SHAPE), [(3, 40, 40 + 2 + 3, 8)]);
        let alone = ScoringShape { shares_prefixes: false, ..SHAPE };
        assert_eq!(sizes(&choices, alone), [(1, 42, 42, 3), (1, 40, 40, 1), (1, 43, 43, 4)]);
    }

    #[test]
    fn contexts_share_what_they_have_in_common() {
        let mut other = request(0..40, &[7, 7]);
        other.context[10] = 99;
        assert_eq!(sizes(&[request(0..40, &[7, 7]), other], SHAPE), [(2, 10, 10 + 31 + 31, 4)]);
    }

    #[test]
    fn a_group_ends_where_a_row_is_full() {
        let long = |last: u32| request(0..60, &[last; 20]);
        // 60 + 19 + 19 rows are more than 96.
        assert_eq!(sizes(&[long(1), long(2)], SHAPE), [(1, 79, 79, 20), (1, 79, 79, 20)]);
        // One row, but 100 tokens to score.
        let many: Vec<Request> = (0..100).map(|token| request(0..5, &[token])).collect();
        assert_eq!(sizes(&many, SHAPE), [(96, 5, 5, 96), (4, 5, 5, 4)]);
    }
}
