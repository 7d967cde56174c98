//! JSON lines: a string of the object on each line is a document.

use super::content::Content;
use super::format::{DocumentReader, DocumentSpan, Rules, Scan, Source};
use crate::data::parallel::collect_in_order;
use crate::data::text::{BLOCK_BYTES, TextReader};
use crate::error::{Error, Result};
use crate::format::{printable, shortened};
use crate::policy::MissingField;
use rayon::prelude::*;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt;

/// Longest part of a line, in characters, and most fields that a message shows.
const SHOWN: usize = 60;
const SHOWN_FIELDS: usize = 8;

/// What an object has in the field that holds the text.
#[derive(Debug, PartialEq)]
enum Held<'a> {
    Text(Cow<'a, str>),
    Null,
    /// The object lacks the field.
    Nothing,
}

#[derive(Debug)]
pub(super) struct JsonLines;

impl Source for JsonLines {
    fn tag(&self) -> u8 {
        1
    }

    fn has_fields(&self) -> bool {
        true
    }

    fn scan(&self, content: &dyn Content, rules: &Rules) -> Result<Scan> {
        let mut reader = TextReader::whole(content)?;
        let (mut scan, mut line) = (Scan::default(), 0);
        let (mut text, mut at) = (String::new(), reader.at());
        loop {
            // A line longer than the block: read as much again.
            let block = BLOCK_BYTES.max(text.len());
            let more = reader.append(&mut text, block)?;
            let whole = if more { text.rfind('\n').map_or(0, |end| end + 1) } else { text.len() };
            let mut found = Vec::new();
            let mut start = 0;
            for part in text[..whole].split_inclusive('\n') {
                line += 1;
                if !part.trim().is_empty() {
                    found.push((line, start..start + part.trim_end().len()));
                }
                start += part.len();
            }
            let kept = found.into_par_iter().map(|(line, range)| {
                let json = &text[range.clone()];
                let span = DocumentSpan { at: at + range.start as u64, bytes: range.len() as u64, line };
                Ok((span, text_of(content, line, json, rules)?.map(|text| text.trim().is_empty())))
            });
            for (span, is_empty) in collect_in_order(kept)? {
                match is_empty {
                    Some(false) => scan.documents.push(span),
                    Some(true) => scan.empty += 1,
                    None => scan.missing += 1,
                }
            }
            text.drain(..whole);
            at += whole as u64;
            if !more {
                return Ok(scan);
            }
        }
    }

    fn read<'c>(
        &self,
        content: &'c dyn Content,
        span: &DocumentSpan,
        rules: &Rules,
    ) -> Result<DocumentReader<'c>> {
        let mut json = String::new();
        TextReader::range(content, span.at..span.at + span.bytes).append(&mut json, usize::MAX)?;
        Ok(DocumentReader::Whole(text_of(content, span.line, &json, rules)?.map(Cow::into_owned)))
    }

    fn warning(&self, content: &dyn Content, rules: &Rules) -> Result<Option<String>> {
        let path = content.file().path().display();
        Ok(rules.separator.as_ref().map(|_| {
            format!("{}.document_separator is not used: each line of {path} is a document", rules.table)
        }))
    }
}

/// Reads the text on a line. `None` if the object lacks it and the rules allow that.
fn text_of<'a>(
    content: &dyn Content,
    line: usize,
    json: &'a str,
    rules: &Rules,
) -> Result<Option<Cow<'a, str>>> {
    let wrong = match is_object(json) {
        false => not_an_object(json, rules),
        true => match held(json, rules) {
            Ok(Held::Text(text)) => return Ok(Some(text)),
            Ok(Held::Null | Held::Nothing) if rules.missing == MissingField::Skip => return Ok(None),
            Ok(Held::Null) => null(rules),
            Ok(Held::Nothing) => lacking(json, rules),
            Err(e) => wrong_object(json, rules, &e),
        },
    };
    Err(Error::usage(format!("{}:{line}: {wrong}", content.file().path().display())))
}

/// Finds the field that holds the text in an object; others are ignored.
fn held<'a>(json: &'a str, rules: &Rules) -> serde_json::Result<Held<'a>> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let held = Object { field: &rules.field }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(held)
}

/// Reads an object.
struct Object<'f> {
    field: &'f str,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Held<'de>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Held<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut held = Held::Nothing;
        while let Some(is_field) = map.next_key_seed(Name(self.field))? {
            if !is_field {
                map.next_value::<IgnoredAny>()?;
            } else if held == Held::Nothing {
                held = map.next_value_seed(Text)?;
            } else {
                return Err(A::Error::custom("the field occurs twice"));
            }
        }
        Ok(held)
    }
}

/// Compares a key with this name.
struct Name<'f>(&'f str);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<bool, D::Error> {
        reader.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

/// Reads a string or null.
struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Held<'de>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Held<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Held::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Held::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Held::Null)
    }
}

/// Quotes the name of a field for a message.
fn quoted(field: &str) -> String {
    format!("\"{}\"", shortened(&printable(field), SHOWN))
}

fn is_object(json: &str) -> bool {
    json.trim_start().starts_with('{')
}

/// Says what a line is that does not begin like an object.
fn not_an_object(json: &str, rules: &Rules) -> String {
    let kind = match serde_json::from_str::<Value>(json) {
        Ok(value) => kind(&value),
        Err(_) => "not JSON",
    };
    let shown = shortened(&printable(json.trim()), SHOWN);
    let field = quoted(&rules.field);
    format!("a line of JSON lines is an object with a string {field}, and this one is {kind}: {shown}")
}

/// Says why a line that begins like an object cannot be read.
fn wrong_object(json: &str, rules: &Rules, e: &serde_json::Error) -> String {
    if e.classify() != Category::Data {
        return match non_finite(json) {
            Some((word, column)) => format!(
                "not JSON: {word} in column {column} is not a JSON value, though Python's json.dumps writes it for a \
                 number that is not finite; write null instead"
            ),
            None => {
                let reason = e.to_string();
                let reason = reason.split(" at line ").next().unwrap_or_default();
                format!("not JSON: {} in column {}", shortened(&printable(reason), SHOWN), e.column())
            }
        };
    }
    let field = quoted(&rules.field);
    match fields(json).get(&rules.field) {
        Some(Value::String(_) | Value::Null) | None => format!("the field {field} occurs twice"),
        Some(value) => format!("{field} is {}, and a document is a string", kind(value)),
    }
}

/// Says what to do about a document without text.
fn skip(rules: &Rules) -> String {
    format!("{}.missing = \"skip\" leaves such documents out", rules.table)
}

fn null(rules: &Rules) -> String {
    format!("{} is null, and a document is a string; {}", quoted(&rules.field), skip(rules))
}

/// Says what an object has instead of the field that holds the text.
fn lacking(json: &str, rules: &Rules) -> String {
    let fields = fields(json);
    let mut names: Vec<String> =
        fields.keys().take(SHOWN_FIELDS).map(|name| shortened(&printable(name), SHOWN)).collect();
    names.extend((fields.len() > SHOWN_FIELDS).then(|| "…".to_owned()));
    let has = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    let table = &rules.table;
    let example =
        longest_string(&fields).map_or(String::new(), |name| format!(", such as {table}.field={name}"));
    format!(
        "the object has no {}, but {has}; {table}.field names the field that holds the text{example}, and {}",
        quoted(&rules.field),
        skip(rules)
    )
}

/// Returns all fields of an object; none if it is not valid JSON.
fn fields(json: &str) -> Map<String, Value> {
    serde_json::from_str(json).unwrap_or_default()
}

/// Returns the name of the longest string, if it needs no quotes.
fn longest_string(fields: &Map<String, Value>) -> Option<&str> {
    let strings = fields.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?.len())));
    let (name, _) = strings.max_by_key(|(_, len)| *len)?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (name.len() <= SHOWN && name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_word))
        .then_some(name)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Finds the first `NaN` or `Infinity` outside of strings, with its column in bytes, from 1.
fn non_finite(json: &str) -> Option<(&'static str, usize)> {
    let (mut in_string, mut is_escaped) = (false, false);
    for (at, byte) in json.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            _ => {
                let here = &json.as_bytes()[at..];
                let found = ["NaN", "Infinity"].into_iter().find(|word| here.starts_with(word.as_bytes()));
                if let Some(word) = found {
                    return Some((word, at + 1));
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_not_finite_are_found_outside_of_strings() {
        for (json, found) in [
            (r#"{"a": NaN}"#, Some(("NaN", 7))),
            (r#"{"a": "NaN", "b": -Infinity}"#, Some(("Infinity", 20))),
            (r#"{"a\"NaN": 1, "b": NaN}"#, Some(("NaN", 20))),
            (r#"{"text": "NaN"}"#, None),
        ] {
            assert_eq!(non_finite(json), found, "{json}");
        }
    }
}
