//! Why an example is not trained on.

use serde::{Deserialize, Serialize};

/// Why an example is not trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// It has no message.
    Empty,
    /// It has no text of an assistant to train on.
    NothingToTrain,
    /// A message has no role.
    NoRole,
    /// A message has a role that is none of the known ones.
    UnknownRole,
    /// A message has parts that are no text, such as images.
    NotText,
    /// It has more messages than a conversation may have.
    TooManyMessages,
    /// It has characters that are reserved for marks ([`RESERVED`](super::RESERVED)).
    Reserved,
    /// The template raises an error, as many do for roles that do not alternate.
    Rejected,
    /// The template changes earlier messages when others follow, and the last one is no answer.
    HistoryChanges,
    /// Its first answer ends behind the longest sequence.
    TooLong,
    /// The answers of a pair are equal.
    EqualAnswers,
    /// Both answers of a pair, each with what it answers, do not fit the longest sequence.
    PairTooLong,
    /// A message has the name of a special token as text, which this tokenizer cannot keep apart from the
    /// token.
    ControlTokens,
}

impl DropReason {
    /// Returns the reason in words, to stand behind `examples`.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Empty => "without messages",
            Self::NothingToTrain => "without an answer to train on",
            Self::NoRole => "with a message without a role",
            Self::UnknownRole => "with a message of an unknown role",
            Self::NotText => "with parts that are no text, such as images",
            Self::TooManyMessages => "with too many messages",
            Self::Reserved => "with the noncharacters U+FDD0 to U+FDD2",
            Self::Rejected => "that the chat template rejects",
            Self::HistoryChanges => "whose answers the chat template changes when messages follow",
            Self::TooLong => "whose first answer ends behind training.seq_len tokens",
            Self::EqualAnswers => "whose answers are equal",
            Self::PairTooLong => {
                "whose two answers, each with what it answers, exceed training.seq_len tokens"
            }
            Self::ControlTokens => "with names of special tokens in their text",
        }
    }
}
