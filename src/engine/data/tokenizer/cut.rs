//! Where texts may be cut, so that their pieces are tokenized in parallel.

/// Where the text of a document may be cut without changing its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::data) enum Cut {
    /// Between any two characters.
    Anywhere,
    /// Between a character that is not white space and one that is. No token spans the two, and what follows
    /// does not affect how the text before is split.
    BeforeSpace,
    /// Between a character that is not white space and one that is, but is no line break; and between a line
    /// break and a character that is neither white space nor `/`. The expressions of GPT-4 and its successors
    /// match line breaks, and GPT-4o's also `/`, together with what stands before.
    BesideBlank,
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
        let mut before = None;
        for (i, c) in text[from..].char_indices() {
            if before.is_some_and(|before| self.separates(before, c)) {
                return from + i;
            }
            before = Some(c);
        }
        text.len()
    }

    /// Returns true if a text may be cut between two characters.
    fn separates(self, before: char, after: char) -> bool {
        let is_break = |c| c == '\n' || c == '\r';
        match self {
            Cut::Anywhere => true,
            Cut::BeforeSpace => !before.is_whitespace() && after.is_whitespace(),
            Cut::BesideBlank if after.is_whitespace() => !before.is_whitespace() && !is_break(after),
            Cut::BesideBlank => is_break(before) && after != '/',
            Cut::Nowhere => false,
        }
    }
}
