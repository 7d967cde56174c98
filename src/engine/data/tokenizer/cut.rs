//! Where texts may be cut, so that their pieces are tokenized in parallel.

/// Where the text of a document may be cut without changing its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Between any two characters.
    Anywhere,
    /// Between a character that is not white space and one that is. No token spans the two, and what follows
    /// does not affect how the text before is split.
    BeforeSpace,
    /// Nowhere: no cut is safe for every tokenizer.json.
    Nowhere,
}

impl Cut {
    /// Returns the first position at or after byte `from` where `text` may be cut.
    pub fn after(self, text: &str, from: usize) -> usize {
        if from >= text.len() || self == Cut::Nowhere {
            return text.len();
        }
        let from = (from..text.len()).find(|&i| text.is_char_boundary(i)).unwrap_or(text.len());
        if self == Cut::Anywhere {
            return from;
        }
        let mut spaced = true;
        for (i, c) in text[from..].char_indices() {
            if c.is_whitespace() && !spaced {
                return from + i;
            }
            spaced = c.is_whitespace();
        }
        text.len()
    }
}
