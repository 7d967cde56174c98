//! What an item contributes to the figures of its task.

use super::encoding::Request;
use super::generation::GeneratedAnswer;
use super::items::Question;
use super::metric::Metric;
use super::prepared::PreparedItem;
use super::python;
use std::f64::consts::LN_2;

/// What a model makes of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Sum of the natural logarithms of the probabilities of the continuation's tokens.
    pub log_prob: f64,
    /// True if each of these tokens is the most likely one at its place.
    pub is_greedy: bool,
}

/// What a model makes of an item.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The score of each request.
    Scores(Vec<Score>),
    /// The text that it generates.
    Text(String),
}

impl Answer {
    /// Returns the scores; none of a text.
    pub fn scores(&self) -> &[Score] {
        match self {
            Self::Scores(scores) => scores,
            Self::Text(_) => &[],
        }
    }
}

/// An answer, judged.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Judged<'a> {
    /// The score of each request.
    Scores(&'a [Score]),
    /// A generated text.
    Text(&'a GeneratedAnswer),
}

impl<'a> Judged<'a> {
    /// Returns the scores; none of a text.
    pub fn scores(&self) -> &'a [Score] {
        match self {
            Self::Scores(scores) => scores,
            Self::Text(_) => &[],
        }
    }
}

/// What an item contributes to a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contribution {
    /// The value, such as 1 for a right choice, or nats.
    pub value: f64,
    /// What it counts: 1, or the bytes, words or tokens of the item.
    pub weight: f64,
}

impl Metric {
    /// Returns the choice of an item by this metric: the first of the best. `None` if the metric chooses
    /// nothing.
    pub(super) fn choice(self, item: &PreparedItem, scores: &[Score]) -> Option<usize> {
        if !self.is_accuracy() || item.item.question.gold().is_none() {
            return None;
        }
        // nanochat's mean loss of a choice without tokens is not a number. Python's `min` returns it if it is
        // the first, because no loss is less, and passes over it elsewhere.
        if item.unscored.contains(&0) {
            return Some(0);
        }
        let length = |choice: usize, request: &Request| -> f64 {
            match (self, &item.item.question) {
                (Self::AccNorm, Question::Choices { choices, .. }) => choices[choice].chars().count() as f64,
                (Self::AccBytes, Question::Choices { choices, .. }) => choices[choice].len() as f64,
                (Self::AccTokens, _) => request.continuation.len() as f64,
                _ => 1.0,
            }
        };
        let scored = (0..item.item.question.choices()).filter(|choice| !item.unscored.contains(choice));
        let mut best: Option<(usize, f64)> = None;
        for (choice, (request, score)) in scored.zip(item.asked.requests().iter().zip(scores)) {
            let value = score.log_prob / length(choice, request);
            if best.is_none_or(|(_, most)| value > most) {
                best = Some((choice, value));
            }
        }
        best.map(|(choice, _)| choice)
    }

    /// Returns what an item contributes.
    pub(super) fn contribution(self, item: &PreparedItem, judged: &Judged<'_>) -> Contribution {
        let one = |value: f64| Contribution { value, weight: 1.0 };
        let share = |is_right: bool| one(f64::from(u8::from(is_right)));
        let scores = match judged {
            Judged::Text(answer) => return share(answer.is_right),
            Judged::Scores(scores) => *scores,
        };
        let question = &item.item.question;
        let gold = question.gold();
        // The score of the right answer; all windows of a text. An item with choices that are not scored has
        // no figure that needs it.
        let nats: f64 = match gold {
            Some(gold) => -scores.get(gold).map_or(f64::NAN, |score| score.log_prob),
            None => scores.iter().map(|score| -score.log_prob).sum(),
        };
        let answer = question.answer();
        let bytes = answer.trim_start_matches(python::is_space).len() as f64;
        let weighted = |weight: f64| Contribution { value: nats, weight };
        match self {
            Self::Acc | Self::AccNorm | Self::AccBytes | Self::AccTokens | Self::ExactMatch => {
                share(match gold {
                    Some(gold) => self.choice(item, scores) == Some(gold),
                    None => scores.iter().all(|score| score.is_greedy),
                })
            }
            Self::BitsPerByte => match question {
                Question::Text(text) => Contribution { value: nats / LN_2, weight: text.len() as f64 },
                _ => one(nats / LN_2 / bytes),
            },
            Self::Perplexity => one(nats),
            Self::TokenPerplexity => {
                let tokens: usize =
                    item.asked.requests().iter().map(|request| request.continuation.len()).sum();
                weighted(tokens as f64)
            }
            Self::BytePerplexity => match question {
                Question::Text(text) => weighted(text.len() as f64),
                _ => weighted(bytes),
            },
            Self::WordPerplexity => weighted(words(answer) as f64),
        }
    }
}

/// Returns the number of words as `len(re.split(r"\s+", text))` counts them: white space at an end divides
/// off an empty one.
fn words(text: &str) -> usize {
    let mut count = 1;
    let mut in_space = false;
    for c in text.chars() {
        let is_space = python::is_space(c);
        count += usize::from(is_space && !in_space);
        in_space = is_space;
    }
    count
}

impl Question {
    /// Returns the place of the right choice, if there are choices.
    pub fn gold(&self) -> Option<usize> {
        match self {
            Self::Choices { gold, .. } | Self::Contexts { gold, .. } => Some(*gold),
            Self::Completion { .. } | Self::Text(_) | Self::Generation { .. } => None,
        }
    }

    /// Returns the number of choices; 0 if there are none.
    pub fn choices(&self) -> usize {
        match self {
            Self::Choices { choices, .. } => choices.len(),
            Self::Contexts { contexts, .. } => contexts.len(),
            Self::Completion { .. } | Self::Text(_) | Self::Generation { .. } => 0,
        }
    }

    /// Returns the right answer; of several, the first.
    pub fn answer(&self) -> &str {
        match self {
            Self::Choices { choices, gold, .. } => &choices[*gold],
            Self::Contexts { continuation, .. } | Self::Completion { continuation, .. } => continuation,
            Self::Text(text) => text,
            Self::Generation { answers, .. } => answers.first().map_or("", String::as_str),
        }
    }
}
