//! Splits text into the words that byte-pair encoding works on, without a regular expression: the patterns of
//! published tokenizers need one character of look-ahead, which makes an engine for them slow.

use regex_syntax::hir::{Class, HirKind};
use std::sync::LazyLock;

/// How text is split into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// The pattern of GPT-2, which the library calls `ByteLevel`.
    Gpt2,
    /// The pattern of GPT-4 (`cl100k_base`) and what follows it: Llama 3 with up to 3 digits to a word, Qwen
    /// with 1.
    Gpt4 {
        /// Most digits to a word.
        digits: usize,
    },
}

/// The pattern of [`Words::Gpt4`] before and after its number of digits.
const GPT4: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// Numbers of digits that tokenizers in use have, as they are written.
const DIGITS: [(&str, usize); 2] = [("{1,3}", 3), ("", 1)];

/// Classes of characters.
const LETTER: u8 = 1;
const NUMBER: u8 = 2;
const SPACE: u8 = 3;
const OTHER: u8 = 0;

/// The class of every character, from the tables of the library's regular expressions.
static CLASSES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut classes = vec![OTHER; char::MAX as usize + 1];
    for (pattern, class) in [(r"\p{L}", LETTER), (r"\p{N}", NUMBER), (r"\s", SPACE)] {
        let parsed = regex_syntax::parse(pattern).expect("a class of Unicode");
        let HirKind::Class(Class::Unicode(set)) = parsed.kind() else { unreachable!("{pattern} is a class") };
        for range in set.ranges() {
            classes[range.start() as usize..=range.end() as usize].fill(class);
        }
    }
    classes
});

impl Words {
    /// Returns the splitting that a pattern asks for, if it is one of those known here.
    pub fn from_pattern(pattern: &str) -> Option<Self> {
        let digits = pattern.strip_prefix(GPT4[0])?.strip_suffix(GPT4[1])?;
        let (_, digits) = DIGITS.iter().find(|(written, _)| *written == digits)?;
        Some(Self::Gpt4 { digits: *digits })
    }

    /// Calls `word` with each word of a text, in order.
    pub fn split<'t>(self, text: &'t str, mut word: impl FnMut(&'t str)) {
        let text = Text { text, classes: &CLASSES };
        let mut at = 0;
        while at < text.text.len() {
            let end = match self {
                Self::Gpt2 => text.gpt2(at),
                Self::Gpt4 { digits } => text.gpt4(at, digits),
            };
            word(&text.text[at..end]);
            at = end;
        }
    }
}

/// A text with the classes of its characters. Positions are bytes.
struct Text<'t> {
    text: &'t str,
    classes: &'t [u8],
}

impl Text<'_> {
    /// Returns the class of the character at a position and its length; `None` at the end.
    fn class(&self, at: usize) -> Option<(u8, usize)> {
        match *self.text.as_bytes().get(at)? {
            byte if byte < 0x80 => Some((self.classes[byte as usize], 1)),
            _ => {
                let c = self.text[at..].chars().next()?;
                Some((self.classes[c as usize], c.len_utf8()))
            }
        }
    }

    /// Returns the end of at most `most` characters of a class from a position on.
    fn run(&self, mut at: usize, class: u8, most: usize) -> usize {
        for _ in 0..most {
            match self.class(at) {
                Some((found, len)) if found == class => at += len,
                _ => break,
            }
        }
        at
    }

    /// Returns the end of the word at `at` by the pattern of GPT-2:
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
    fn gpt2(&self, at: usize) -> usize {
        if let Some(end) = self.contraction(at, false) {
            return end;
        }
        let from = if self.text.as_bytes()[at] == b' ' { at + 1 } else { at };
        match self.class(from) {
            Some((class, len)) if class != SPACE => self.run(from + len, class, usize::MAX),
            _ => self.white_space(at),
        }
    }

    /// Returns the end of the word at `at` by the pattern of GPT-4.
    fn gpt4(&self, at: usize, digits: usize) -> usize {
        if let Some(end) = self.contraction(at, true) {
            return end;
        }
        let bytes = self.text.as_bytes();
        let Some((class, len)) = self.class(at) else { return at };
        match class {
            LETTER => return self.run(at, LETTER, usize::MAX),
            NUMBER => return self.run(at, NUMBER, digits),
            _ => {}
        }
        if !matches!(bytes[at], b'\r' | b'\n')
            && let letters = self.run(at + len, LETTER, usize::MAX)
            && letters > at + len
        {
            return letters;
        }
        let from = if bytes[at] == b' ' { at + 1 } else { at };
        let others = self.run(from, OTHER, usize::MAX);
        if others > from {
            return self.line_breaks(others);
        }
        // `\s*[\r\n]+`: white space up to the last line break of a run that has one.
        let end = self.run(at, SPACE, usize::MAX);
        match bytes[at..end].iter().rposition(|byte| matches!(byte, b'\r' | b'\n')) {
            Some(last) => at + last + 1,
            None => self.white_space(at),
        }
    }

    fn line_breaks(&self, at: usize) -> usize {
        let rest = &self.text.as_bytes()[at..];
        at + rest.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(rest.len())
    }

    /// Returns the end of `\s+(?!\S)|\s+`: all of a run of white space, or all but its last character if a
    /// word follows and there is more than one.
    fn white_space(&self, at: usize) -> usize {
        let end = self.run(at, SPACE, usize::MAX);
        if end == self.text.len() {
            return end;
        }
        let last = self.text[at..end].char_indices().next_back().map_or(0, |(last, _)| last);
        if last == 0 { end } else { at + last }
    }

    /// Returns the end of an English contraction such as `'ll`.
    fn contraction(&self, at: usize, any_case: bool) -> Option<usize> {
        let mut rest = self.text[at..].strip_prefix('\'')?.chars().map(|c| match c {
            'A'..='Z' if any_case => c.to_ascii_lowercase(),
            // The long s folds to s.
            'ſ' if any_case => 's',
            c => c,
        });
        let len = match (rest.next()?, rest.next()) {
            ('s' | 't' | 'm' | 'd', _) => self.text[at + 1..].chars().next()?.len_utf8(),
            ('r' | 'v', Some('e')) | ('l', Some('l')) => 2,
            _ => return None,
        };
        Some(at + 1 + len)
    }
}

/// Returns the pattern of [`Words::Gpt4`].
#[cfg(test)]
pub(super) fn pattern(digits: usize) -> String {
    let (written, _) = DIGITS.iter().find(|(_, known)| *known == digits).expect("a known number");
    format!("{}{written}{}", GPT4[0], GPT4[1])
}
