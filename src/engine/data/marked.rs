//! Words of a stream of conversations: token ids with what is known of each. Ordinary streams have plain ids,
//! which are all below the marks.

/// Every word of a stream of conversations has it.
const MARKED: u32 = 1 << 31;

/// The token is trained on.
const TRAINED: u32 = 1 << 30;

/// The token begins a conversation, or the padding behind one.
const FIRST: u32 = 1 << 29;

/// Vocabularies are smaller.
pub(super) const MOST_IDS: usize = FIRST as usize;

/// Returns the word of a token.
pub(super) fn word(id: u32, is_first: bool, is_trained: bool) -> u32 {
    id | MARKED | if is_first { FIRST } else { 0 } | if is_trained { TRAINED } else { 0 }
}

/// Returns the id of a token.
pub(super) fn id(word: u32) -> u32 {
    if is_marked(word) { word & (FIRST - 1) } else { word }
}

/// Returns true for a word of a stream of conversations.
pub(super) fn is_marked(word: u32) -> bool {
    word & MARKED != 0
}

/// Returns true if the token begins a conversation, or the padding behind one.
pub(super) fn is_first(word: u32) -> bool {
    is_marked(word) && word & FIRST != 0
}

/// Returns true if a model is to predict the token: every token of a text, and what is trained on of a
/// conversation.
pub(super) fn is_trained(word: u32) -> bool {
    !is_marked(word) || word & TRAINED != 0
}

/// Returns the token as a target; `None` if it is none.
pub(super) fn target(word: u32) -> Option<u32> {
    is_trained(word).then(|| id(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_an_id_and_two_facts() {
        for id_ in [0, 7, FIRST - 1] {
            for (first, trained) in [(false, false), (false, true), (true, false), (true, true)] {
                let word = word(id_, first, trained);
                assert_eq!((id(word), is_first(word), is_trained(word)), (id_, first, trained));
                assert_eq!(target(word), trained.then_some(id_));
            }
            assert_eq!((id(id_), is_first(id_), target(id_)), (id_, false, Some(id_)));
        }
    }
}
