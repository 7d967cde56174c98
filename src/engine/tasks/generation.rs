//! Tasks that a model answers with a text of its own: where the text ends, what in it is the answer, and
//! which answers are right.
//!
//! The rules are those of lm-evaluation-harness: `postprocess_generated_text`, the filters `regex` and
//! `remove_whitespace`, and `exact_match_hf_evaluate`.

use super::python;
use crate::error::{Error, Result};
use crate::format::{printable, shortened};
use fancy_regex::{Captures, Regex};
use serde::Deserialize;

/// Most tokens of a generated text.
const MAX_TOKENS: usize = 4096;

/// Most stop strings and expressions, and the most bytes of each.
const MAX_LISTED: usize = 64;
const MAX_BYTES: usize = 1024;

/// Characters of a value that a message shows.
const SHOWN: usize = 80;

/// The answer of a text in which the expression finds none.
const NOTHING_FOUND: &str = "[invalid]";

/// How a text is generated and judged.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The most tokens of a text.
    pub max_tokens: usize,
    /// A text ends in front of the first of these strings. The end token ends it too.
    pub until: Vec<String>,
    /// Which part of the text is the answer; `None` for all of it.
    extract: Option<Extract>,
    /// True if white space around the text does not count.
    strip: bool,
    /// What matches is removed from the answer and from the right ones before they are compared, in order.
    ignore: Vec<Regex>,
    ignore_case: bool,
    /// ASCII's punctuation, as Python's `string.punctuation`.
    ignore_punctuation: bool,
}

/// The part of a text that is the answer.
#[derive(Clone, Debug)]
struct Extract {
    pattern: Regex,
    take: TakeMatch,
}

/// Which of several matches counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TakeMatch {
    First,
    Last,
}

/// A text that a model generated, and what it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedAnswer {
    /// The text in front of the first stop string.
    pub text: String,
    /// The part of it that is the answer.
    pub answer: String,
    /// True if it is one of the right answers.
    pub is_right: bool,
}

/// The table `[generation]` of a definition.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenGeneration {
    max_tokens: usize,
    until: Vec<String>,
    extract: Option<WrittenExtract>,
    #[serde(default)]
    strip: bool,
    #[serde(default)]
    ignore: Vec<String>,
    #[serde(default)]
    ignore_case: bool,
    #[serde(default)]
    ignore_punctuation: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenExtract {
    pattern: String,
    take: TakeMatch,
}

impl WrittenGeneration {
    /// Checks the table and compiles its expressions.
    pub fn checked(self) -> Result<Generation> {
        if !(1..=MAX_TOKENS).contains(&self.max_tokens) {
            return Err(Error::usage(format!(
                "generation.max_tokens = {}: a text has 1 to {MAX_TOKENS} tokens",
                self.max_tokens
            )));
        }
        for (key, listed) in [("until", &self.until), ("ignore", &self.ignore)] {
            if listed.len() > MAX_LISTED {
                return Err(Error::usage(format!(
                    "generation.{key} has {} entries, and at most {MAX_LISTED} are read",
                    listed.len()
                )));
            }
            if let Some(wrong) = listed.iter().find(|text| text.is_empty() || text.len() > MAX_BYTES) {
                return Err(Error::usage(format!(
                    "generation.{key} has the entry {:?}; an entry has 1 to {MAX_BYTES} bytes",
                    shown(wrong)
                )));
            }
        }
        let extract = self.extract.map(|WrittenExtract { pattern, take }| {
            Ok(Extract { pattern: compile("extract.pattern", &pattern)?, take })
        });
        Ok(Generation {
            max_tokens: self.max_tokens,
            until: self.until,
            extract: extract.transpose()?,
            strip: self.strip,
            ignore: self.ignore.iter().map(|pattern| compile("ignore", pattern)).collect::<Result<_>>()?,
            ignore_case: self.ignore_case,
            ignore_punctuation: self.ignore_punctuation,
        })
    }
}

fn shown(text: &str) -> String {
    shortened(&printable(text), SHOWN)
}

fn compile(key: &str, pattern: &str) -> Result<Regex> {
    let wrong = |why: String| Error::usage(format!("generation.{key} = {:?}: {why}", shown(pattern)));
    if pattern.len() > MAX_BYTES {
        return Err(wrong(format!("an expression has at most {MAX_BYTES} bytes")));
    }
    Regex::new(pattern).map_err(|e| wrong(shown(&e.to_string())))
}

impl Generation {
    /// Judges a generated text by the right answers.
    ///
    /// # Errors
    /// If an expression takes too long on it.
    pub fn judge(&self, generated: &str, right: &[String]) -> Result<GeneratedAnswer> {
        let text = self.cut(generated);
        let mut answer = match &self.extract {
            Some(extract) => extract.answer(text)?,
            None => text.to_owned(),
        };
        if self.strip {
            answer = python::strip(&answer).to_owned();
        }
        let compared = self.compared(&answer)?;
        let mut is_right = false;
        for right in right {
            is_right |= self.compared(right)? == compared;
        }
        Ok(GeneratedAnswer { text: text.to_owned(), answer, is_right })
    }

    /// Cuts a text at each stop string in turn.
    fn cut<'t>(&self, text: &'t str) -> &'t str {
        self.until.iter().fold(text, |text, stop| text.split(stop.as_str()).next().unwrap_or(text))
    }

    /// Returns what of an answer is compared.
    fn compared(&self, answer: &str) -> Result<String> {
        let mut text = answer.to_owned();
        for pattern in &self.ignore {
            text = without(pattern, &text)?;
        }
        if self.ignore_case {
            text = text.to_lowercase();
        }
        if self.ignore_punctuation {
            text.retain(|c| !c.is_ascii_punctuation());
        }
        Ok(text)
    }
}

/// Returns a text without the matches of an expression (`re.sub(pattern, "", text)`).
fn without(pattern: &Regex, text: &str) -> Result<String> {
    let (mut kept, mut end) = (String::new(), 0);
    for found in pattern.find_iter(text) {
        let found = found.map_err(|e| too_slow(&e))?;
        kept += &text[end..found.start()];
        end = found.end();
    }
    Ok(kept + &text[end..])
}

fn too_slow(error: &fancy_regex::Error) -> Error {
    Error::usage(format!(
        "an expression of [generation] fails on the generated text: {}",
        shown(&error.to_string())
    ))
}

impl Extract {
    /// Returns the answer in a text: of the match that counts, the only group; of several groups the first
    /// that is not empty; the whole match if there are none (`re.findall`).
    fn answer(&self, text: &str) -> Result<String> {
        let mut taken = None;
        for found in self.pattern.captures_iter(text) {
            taken = Some(matched(&found.map_err(|e| too_slow(&e))?));
            if self.take == TakeMatch::First {
                break;
            }
        }
        Ok(taken.flatten().map_or_else(|| NOTHING_FOUND.to_owned(), |text| python::strip(&text).to_owned()))
    }
}

/// Returns what a match gives; `None` if all of several groups are empty.
fn matched(found: &Captures<'_>) -> Option<String> {
    let group = |i: usize| found.get(i).map_or("", |group| group.as_str());
    match found.len() {
        1 => Some(group(0).to_owned()),
        2 => Some(group(1).to_owned()),
        groups => (1..groups).map(group).find(|text| !text.is_empty()).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(text: &str) -> Generation {
        toml::from_str::<WrittenGeneration>(text).unwrap().checked().unwrap()
    }

    fn judged(rule: &Generation, text: &str, right: &[&str]) -> (String, bool) {
        let right: Vec<String> = right.iter().map(|right| (*right).to_owned()).collect();
        let found = rule.judge(text, &right).unwrap();
        (found.answer, found.is_right)
    }

    const NUMBERS: &str = r#"
        max_tokens = 256
        until = ["Question:", "</s>"]
        ignore = [",", '\$', '(?s).*#### ', '\.$']
        ignore_case = true
    "#;

    /// Printed by lm-evaluation-harness 0.4.13: filters and `exact_match` of gsm8k on these texts.
    #[test]
    fn numbers_are_found_and_compared_as_by_the_harness() {
        let strict = generation(&format!(
            "{NUMBERS}\nextract = {{ pattern = '#### (\\-?[0-9\\.\\,]+)', take = \"first\" }}"
        ));
        let flexible = generation(&format!(
            "{NUMBERS}\nextract = {{ pattern = '(-?[$0-9.,]{{2,}})|(-?[0-9]+)', take = \"last\" }}"
        ));
        let right = ["He has 3*400=1,200 left.\n#### 1,200"];
        for (text, in_strict, in_flexible) in [
            (" She pays.\n#### 1200\n\nQuestion: a #### 7", ("1200", true), ("1200", true)),
            ("#### 1,200. or #### 5", ("1,200.", true), ("5", false)),
            (" It is $1,200.", ("[invalid]", false), ("$1,200.", true)),
            ("####1200", ("[invalid]", false), ("1200", true)),
            ("no number", ("[invalid]", false), ("[invalid]", false)),
            ("#### -1200", ("-1200", false), ("-1200", false)),
            ("", ("[invalid]", false), ("[invalid]", false)),
        ] {
            let own = |(answer, is_right): (&str, bool)| (answer.to_owned(), is_right);
            assert_eq!(judged(&strict, text, &right), own(in_strict), "{text:?}");
            assert_eq!(judged(&flexible, text, &right), own(in_flexible), "{text:?}");
        }
    }

    #[test]
    fn any_of_several_answers_is_right() {
        let rule = generation(
            "max_tokens = 8\nuntil = [\"\\n\", \".\", \",\"]\nstrip = true\nignore_case = true\nignore_punctuation = true",
        );
        assert_eq!(judged(&rule, " Éclair!\nQuestion", &["x", "éclair"]), ("Éclair!".to_owned(), true));
        assert_eq!(judged(&rule, " a, b", &["a b"]), ("a".to_owned(), false));
        assert_eq!(judged(&rule, "?", &[]), ("?".to_owned(), false));
    }

    #[test]
    fn stop_strings_cut_one_after_another() {
        let rule = generation("max_tokens = 8\nuntil = [\"bc\", \"ab\"]");
        // Behind the cut at "bc", no "ab" is left.
        assert_eq!(judged(&rule, "xabc", &[]).0, "xa");
    }

    #[test]
    fn wrong_tables_are_refused() {
        for (text, message) in [
            ("max_tokens = 0\nuntil = []", "a text has 1 to 4096 tokens"),
            ("max_tokens = 1\nuntil = ['']", "generation.until has the entry"),
            ("max_tokens = 1\nuntil = []\nignore = ['(']", "generation.ignore = \"(\""),
            (
                "max_tokens = 1\nuntil = []\nextract = { pattern = '[', take = 'last' }",
                "generation.extract.pattern",
            ),
        ] {
            let refused = toml::from_str::<WrittenGeneration>(text).unwrap().checked().unwrap_err();
            assert!(refused.message().contains(message), "{refused}");
        }
    }

    #[test]
    fn expressions_that_take_too_long_are_errors() {
        let rule = generation("max_tokens = 1\nuntil = []\nignore = ['(a|a)*(?=b)c']");
        assert!(
            rule.judge(&"a".repeat(64), &[]).unwrap_err().message().contains("fails on the generated text")
        );
    }
}
