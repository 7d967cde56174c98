//! The regular expressions that split a text into pre-tokens, which no merge crosses.

use crate::data::tokenizer::{Cut, check_expression};
use crate::error::{Error, Result};
use crate::format::shortened;
use crate::suggest::nearest;
use fancy_regex::Regex;
use serde_json::{Value, json};

/// A regular expression with a name.
#[derive(Debug)]
struct Named {
    name: &'static str,
    expression: &'static str,
    /// The alternatives before the last two, `\s+(?!\S)|\s+`.
    before: &'static str,
    spaces: Spaces,
    cut: Cut,
}

/// Which matches are of `\s+(?!\S)|\s+`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spaces {
    /// All that end with white space.
    All,
    /// All that end with white space other than a line break: `\s*[\r\n]+` comes before.
    Blank,
}

/// Declares a pattern by its alternatives before `\s+(?!\S)|\s+`.
macro_rules! named {
    ($name:literal, $spaces:expr, $cut:expr, $before:literal) => {
        Named {
            name: $name,
            expression: concat!($before, r"|\s+(?!\S)|\s+"),
            before: $before,
            spaces: $spaces,
            cut: $cut,
        }
    };
}

/// The patterns that have names, each as in the `tokenizer.json` of a model in use. Sources: gpt2,
/// `encoder.py` of openai/gpt-2; gpt4, `cl100k_base` in tiktoken's `openai_public.py`, in the form of Llama
/// 3; gpt4o, `o200k_base` there; qwen2, the `tokenizer.json` of Qwen2, which takes digits one by one.
static NAMED: [Named; 4] = [
    named!(
        "gpt2",
        Spaces::All,
        Cut::BeforeSpace,
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+"
    ),
    named!(
        "gpt4",
        Spaces::Blank,
        Cut::BesideBlank,
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    ),
    named!(
        "gpt4o",
        Spaces::Blank,
        Cut::BesideBlank,
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
    ),
    named!(
        "qwen2",
        Spaces::Blank,
        Cut::BesideBlank,
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    ),
];

/// The pattern that is used unless another is chosen.
pub const DEFAULT_PATTERN: &str = "gpt4";

/// A regular expression that splits text, named or of the user's own.
#[derive(Clone, Debug)]
pub struct Pattern(Choice);

#[derive(Clone, Debug)]
enum Choice {
    Named(&'static Named),
    Own(String),
}

impl Pattern {
    /// Returns the names of patterns.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|named| named.name)
    }

    /// Returns the pattern with a name, or the regular expression that a text is.
    ///
    /// # Errors
    /// If the text is empty, is a word like a name, is no regular expression, or takes too much memory.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(named) = NAMED.iter().find(|named| named.name == text) {
            return Ok(Self(Choice::Named(named)));
        }
        let known = Self::names().collect::<Vec<_>>().join(", ");
        if text.is_empty() {
            return Err(Error::usage(format!(
                "the pattern is empty; name one ({known}) or give an expression"
            )));
        }
        if text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
            let guess = nearest(text, Self::names())
                .map_or_else(String::new, |near| format!("; did you mean {near}?"));
            return Err(Error::usage(format!(
                "pattern {:?} is not one of {known}{guess} (write (?:{}) for this word as an expression)",
                shortened(text, SHOWN),
                shortened(text, SHOWN)
            )));
        }
        let wrong = |what: &str| {
            Error::usage(format!(
                "pattern {:?}: {what}. Give an expression that the tokenizers library reads, or one of \
                 {known}",
                shortened(text, SHOWN)
            ))
        };
        check_expression(text).map_err(|what| wrong(&what))?;
        Regex::new(text).map_err(|e| wrong(&shortened(&e.to_string().replace('\n', " "), 4 * SHOWN)))?;
        Ok(Self(Choice::Own(text.to_owned())))
    }

    /// Returns the name, if it has one.
    pub fn name(&self) -> Option<&'static str> {
        match self.0 {
            Choice::Named(named) => Some(named.name),
            Choice::Own(_) => None,
        }
    }

    /// Returns the regular expression.
    pub fn expression(&self) -> &str {
        match &self.0 {
            Choice::Named(named) => named.expression,
            Choice::Own(text) => text,
        }
    }

    /// Returns where texts may be cut without changing their pre-tokens.
    pub(super) fn cut(&self) -> Cut {
        match self.0 {
            Choice::Named(named) => named.cut,
            Choice::Own(_) => Cut::Nowhere,
        }
    }

    /// Returns the pre-tokenizer of the `tokenizer.json`. What the expression does not match is a pre-token
    /// too.
    pub(super) fn pre_tokenizer(&self) -> Value {
        let bytes = |with_gpt2: bool| {
            json!({
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": with_gpt2,
            })
        };
        if self.name() == Some("gpt2") {
            return bytes(true);
        }
        let split = json!({
            "type": "Split", "pattern": {"Regex": self.expression()}, "behavior": "Isolated", "invert": false,
        });
        json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]})
    }
}

/// Longest part of a pattern that a message shows, in characters.
const SHOWN: usize = 60;

/// A compiled pattern. Clones share nothing that threads would wait for.
#[derive(Clone, Debug)]
pub(super) struct Splitter {
    regex: Regex,
    /// `None` if the expression is matched as it is.
    spaces: Option<Spaces>,
}

impl Splitter {
    /// Compiles a pattern.
    ///
    /// A named one is compiled without its lookahead, `\s+(?!\S)`, which would keep it from being a finite
    /// automaton and take five times as long. The lookahead leaves the last character of a run of white space
    /// to the next match if something else follows, and [`Splitter::split`] does the same.
    ///
    /// # Errors
    /// If it does not compile.
    pub fn new(pattern: &Pattern) -> Result<Self> {
        let compiled = |expression: &str| {
            Regex::new(expression).map_err(|e| Error::usage(format!("the pattern does not compile: {e}")))
        };
        Ok(match &pattern.0 {
            Choice::Named(named) => {
                Self { regex: compiled(&format!(r"{}|\s+", named.before))?, spaces: Some(named.spaces) }
            }
            Choice::Own(text) => Self { regex: compiled(text)?, spaces: None },
        })
    }

    /// Returns true if the time to split a text is known to grow with its length alone.
    pub fn is_linear(&self) -> bool {
        self.spaces.is_some()
    }

    /// Hands the pre-tokens of a text to `take`, in order. Joined, they are the text.
    ///
    /// # Errors
    /// If the expression backtracks too long.
    pub fn split<'t>(&self, text: &'t str, mut take: impl FnMut(&'t str)) -> Result<()> {
        let Some(spaces) = self.spaces else { return self.split_as_is(text, take) };
        let mut at = 0;
        while at < text.len() {
            let found = self.regex.find_from_pos(text, at).map_err(|e| too_long(&e))?;
            let (start, end) = found.map_or((text.len(), text.len()), |found| (found.start(), found.end()));
            if at < start {
                take(&text[at..start]);
            }
            let mut matched = &text[start..end];
            if end < text.len()
                && let Some(last) = matched.chars().next_back()
                && spaces.matches(last)
                && last.len_utf8() < matched.len()
            {
                matched = &matched[..matched.len() - last.len_utf8()];
            }
            if !matched.is_empty() {
                take(matched);
            }
            at = start + matched.len();
        }
        Ok(())
    }

    fn split_as_is<'t>(&self, text: &'t str, mut take: impl FnMut(&'t str)) -> Result<()> {
        let mut at = 0;
        for found in self.regex.find_iter(text) {
            let found = found.map_err(|e| too_long(&e))?;
            let parts = [&text[at..found.start()], found.as_str()];
            parts.into_iter().filter(|part| !part.is_empty()).for_each(&mut take);
            at = found.end();
        }
        if at < text.len() {
            take(&text[at..]);
        }
        Ok(())
    }
}

impl Spaces {
    /// Returns true if a match that ends with this character is one of `\s+(?!\S)|\s+`.
    fn matches(self, last: char) -> bool {
        last.is_whitespace() && (self == Self::All || last != '\n' && last != '\r')
    }
}

fn too_long(error: &fancy_regex::Error) -> Error {
    Error::usage(format!(
        "the pattern cannot be matched on this text ({error}); write it without nested repetitions, or name one \
         of {}",
        Pattern::names().collect::<Vec<_>>().join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    fn pieces(splitter: &Splitter, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        splitter.split(text, |piece| found.push(piece.to_owned())).unwrap();
        found
    }

    /// Returns the pre-tokens of a text that is cut wherever the pattern allows.
    fn when_cut(pattern: &Pattern, splitter: &Splitter, text: &str) -> Vec<String> {
        let (mut found, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let end = pattern.cut().after(text, at);
            found.extend(pieces(splitter, &text[at..end]));
            at = end;
        }
        found
    }

    /// The named patterns: as they are compiled, and as they are written.
    static COMPILED: LazyLock<Vec<(Pattern, Splitter, Splitter)>> = LazyLock::new(|| {
        let compiled = |name| {
            let pattern = Pattern::parse(name).unwrap();
            let splitter = Splitter::new(&pattern).unwrap();
            let as_written = Splitter { regex: Regex::new(pattern.expression()).unwrap(), spaces: None };
            (pattern, splitter, as_written)
        };
        Pattern::names().map(compiled).collect()
    });

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn named_patterns_split_as_written_and_cuts_change_nothing(
            text in r"([ab'stZ1½é٣]|[\n\r \t\u{a0}\u{2028}]{1,3}|[/!\-\u{301}中]|'S|'ſ|''ll| ){0,30}"
        ) {
            for (pattern, splitter, as_written) in &*COMPILED {
                let expected = pieces(as_written, &text);
                prop_assert_eq!(expected.concat(), &*text);
                prop_assert_eq!(&pieces(splitter, &text), &expected, "{:?} {:?}", pattern.name(), text);
                let cut = when_cut(pattern, splitter, &text);
                prop_assert_eq!(&cut, &expected, "{:?} {:?}", pattern.name(), text);
            }
        }
    }

    #[test]
    fn what_an_expression_does_not_match_is_a_pre_token() {
        let pattern = Pattern::parse(r"\d+|x*").unwrap();
        let splitter = Splitter::new(&pattern).unwrap();
        assert_eq!(pieces(&splitter, "ab12xxc"), ["a", "b", "12", "xx", "c"]);
        assert_eq!(pieces(&splitter, ""), [""; 0]);
    }

    #[test]
    fn wrong_patterns_are_refused() {
        for (text, says) in [
            ("", "is empty"),
            ("gtp2", "did you mean gpt2?"),
            ("(a", "pattern \"(a\""),
            (r"[a-z]{9000}", "at most 2048"),
        ] {
            let error = Pattern::parse(text).unwrap_err();
            assert!(error.message().contains(says), "{text}: {error}");
        }
        let nested = Splitter::new(&Pattern::parse(r"(?:(?=a)a+)+$").unwrap()).unwrap();
        let error = nested.split(&format!("{}b", "a".repeat(64)), |_| {}).unwrap_err();
        assert!(error.message().contains("nested repetitions"), "{error}");
    }
}
