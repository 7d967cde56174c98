//! How llama.cpp splits a text into pre-tokens: it knows regular expressions by names of its own
//! (`tokenizer.ggml.pre`), so only a tokenizer with one of them can be written.

use crate::data::tokenizer_training::Pattern;
use crate::error::{Error, Result};
use crate::format::shortened;
use serde_json::Value;

/// Longest pre-tokenizer that a message shows, in characters.
const SHOWN: usize = 400;

/// What splits a text before bytes are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Split {
    /// Nothing.
    Whole,
    /// A regular expression.
    Expression(String),
    /// Every digit by itself, and then GPT-2's expression.
    DigitsThenGpt2,
}

/// Names in llama.cpp, by the pattern that `xrun tokenizer train` knows, and by whether a pre-token that is
/// an entry is taken as it is (`ignore_merges`).
const NAMES: [(&str, bool, &str); 4] = [
    ("gpt2", false, "gpt-2"),
    ("qwen2", false, "qwen2"),
    ("gpt4", true, "llama-bpe"),
    // The same expression as `llama-bpe`.
    ("gpt4", false, "smaug-bpe"),
];

/// Returns llama.cpp's name for a pre-tokenizer. `merges` says whether the tokenizer has any.
///
/// # Errors
/// A usage error with the pre-tokenizer if llama.cpp has no name that means the same.
pub(super) fn name(pre_tokenizer: &Value, ignore_merges: bool, merges: bool) -> Result<&'static str> {
    let refused = |why: &str| {
        Error::usage(format!(
            "llama.cpp cannot split text as this tokenizer does: {why}. Its pre_tokenizer is\n  {}\nTrain with the \
             pattern gpt2, gpt4 or qwen2 of `xrun tokenizer train`, or export a folder with --format hf",
            shortened(&pre_tokenizer.to_string(), SHOWN)
        ))
    };
    let split = split(pre_tokenizer)
        .ok_or_else(|| refused("it is not one regular expression before bytes are merged"))?;
    let expression = match &split {
        // Without merges every byte is a token, however a text is split.
        Split::Whole if !merges && !ignore_merges => return Ok("gpt-2"),
        Split::Whole => return Err(refused("it merges across whole texts")),
        Split::DigitsThenGpt2 if !ignore_merges => return Ok("smollm"),
        Split::DigitsThenGpt2 => return Err(refused("llama.cpp merges in every pre-token")),
        Split::Expression(expression) => expression,
    };
    let known = Pattern::names().find(|name| is(name, expression));
    let named = NAMES.iter().find(|(name, ignores, _)| Some(*name) == known && *ignores == ignore_merges);
    match (named, known) {
        (Some((_, _, name)), _) => Ok(name),
        (None, Some("gpt4o")) => {
            Err(refused("llama.cpp's gpt-4o splits letters with combining marks otherwise"))
        }
        (None, Some(_)) => Err(refused("llama.cpp merges in every pre-token, but ignore_merges is true")),
        (None, None) => Err(refused(&format!("it has no name for the expression {expression}"))),
    }
}

/// Returns true if a pattern with a name is this expression.
fn is(name: &str, expression: &str) -> bool {
    Pattern::parse(name).is_ok_and(|pattern| pattern.expression() == expression)
}

/// Returns what a pre-tokenizer splits by before it replaces bytes with characters; `None` if it is not a
/// form that byte-level tokenizers have.
fn split(pre_tokenizer: &Value) -> Option<Split> {
    let mut parts = Vec::new();
    flatten(pre_tokenizer, &mut parts);
    let (bytes, before) = parts.split_last()?;
    let is_byte_level = bytes["type"] == "ByteLevel" && bytes["add_prefix_space"] == false;
    // The library's default.
    let with_gpt2 = bytes["use_regex"].as_bool().unwrap_or(true);
    if !is_byte_level {
        return None;
    }
    match (before, with_gpt2) {
        ([], true) => Some(Split::Expression(Pattern::parse("gpt2").ok()?.expression().to_owned())),
        ([], false) => Some(Split::Whole),
        ([one], false) if one["type"] == "Split" => {
            // Every expression that llama.cpp knows matches all of a text, so nothing is left to remove.
            let isolates = one["behavior"] == "Isolated" && one["invert"] == false;
            let keeps = one["behavior"] == "Removed" && one["invert"] == true;
            let expression = one["pattern"]["Regex"].as_str().filter(|_| isolates || keeps)?;
            Some(Split::Expression(expression.to_owned()))
        }
        ([one], true) if one["type"] == "Digits" && one["individual_digits"] == true => {
            Some(Split::DigitsThenGpt2)
        }
        _ => None,
    }
}

/// Adds the parts of nested sequences.
fn flatten<'a>(part: &'a Value, parts: &mut Vec<&'a Value>) {
    match part["pretokenizers"].as_array() {
        Some(inner) if part["type"] == "Sequence" => inner.iter().for_each(|part| flatten(part, parts)),
        _ => parts.push(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bytes(with_gpt2: bool) -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": with_gpt2})
    }

    fn sequence(parts: &[Value]) -> Value {
        json!({"type": "Sequence", "pretokenizers": parts})
    }

    fn splitting(expression: &str, behavior: &str, invert: bool) -> Value {
        let first = json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": invert});
        sequence(&[first, bytes(false)])
    }

    fn pattern(name: &str) -> Value {
        splitting(Pattern::parse(name).unwrap().expression(), "Isolated", false)
    }

    #[test]
    fn expressions_that_llama_cpp_knows_have_its_names() {
        let digits = json!({"type": "Digits", "individual_digits": true});
        let gpt4 = Pattern::parse("gpt4").unwrap().expression().to_owned();
        for (pre_tokenizer, ignore_merges, merges, expected) in [
            (bytes(true), false, true, "gpt-2"),
            (sequence(&[bytes(true)]), false, true, "gpt-2"),
            (pattern("gpt2"), false, true, "gpt-2"),
            (pattern("qwen2"), false, true, "qwen2"),
            (pattern("gpt4"), false, true, "smaug-bpe"),
            (pattern("gpt4"), true, true, "llama-bpe"),
            (splitting(&gpt4, "Removed", true), false, true, "smaug-bpe"),
            (sequence(&[digits, bytes(true)]), false, true, "smollm"),
            (bytes(false), false, false, "gpt-2"),
        ] {
            assert_eq!(name(&pre_tokenizer, ignore_merges, merges).unwrap(), expected, "{pre_tokenizer}");
        }
    }

    #[test]
    fn others_are_refused_with_their_text() {
        let prefix = json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true});
        let digits = json!({"type": "Digits", "individual_digits": true});
        let threes = json!({"type": "Digits", "individual_digits": false});
        let gpt2 = Pattern::parse("gpt2").unwrap().expression().to_owned();
        for (pre_tokenizer, ignore_merges, says) in [
            (Value::Null, false, "not one regular expression"),
            (prefix, false, "not one regular expression"),
            (json!({"type": "Whitespace"}), false, "\"Whitespace\""),
            (bytes(false), false, "merges across whole texts"),
            (pattern("gpt4o"), false, "combining marks"),
            (pattern("gpt2"), true, "ignore_merges is true"),
            (splitting("a+|b", "Isolated", false), false, "no name for the expression a+|b"),
            (splitting(&gpt2, "Removed", false), false, "not one regular expression"),
            (splitting(&gpt2, "MergedWithNext", false), false, "not one regular expression"),
            (sequence(&[threes, bytes(true)]), false, "not one regular expression"),
            (sequence(&[digits.clone(), bytes(true)]), true, "merges in every pre-token"),
            (sequence(&[digits, pattern("gpt4")]), false, "not one regular expression"),
        ] {
            let error = name(&pre_tokenizer, ignore_merges, true).unwrap_err();
            assert!(error.message().contains(says), "{says}: {error}");
            assert!(error.message().contains("--format hf"), "{error}");
        }
        // No form but the plain one may have merges left out.
        assert!(name(&bytes(false), true, false).is_err());
    }
}
