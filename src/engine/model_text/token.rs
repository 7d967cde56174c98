//! Splits a model text into tokens.

use super::mistake::{Mistake, fail};
use crate::expression::number;
use crate::format::printable;
use std::borrow::Cow;
use std::ops::Range;

/// Most bytes in a model text.
pub const MAX_BYTES: usize = 64 << 10;

/// Most characters in a name or a quoted word.
pub const MAX_NAME: usize = 64;

/// A token of a model text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token {
    Number(f64),
    Name,
    /// Quoted; the range includes the quotes.
    Word,
    /// One of [`SIGNS`].
    Sign(&'static str),
    /// The end of a line outside parentheses and brackets, or of the text.
    End,
}

/// A token and its byte range.
pub(super) type Placed = (Token, Range<usize>);

/// Operators and punctuation; a sign stands before the signs that it begins with.
const SIGNS: [&str; 20] =
    ["==", "!=", "<=", ">=", "<", ">", "=", "+", "-", "*", "/", "%", "^", "(", ")", "[", "]", ",", ".", ":"];

/// Signs of other languages, what is wrong with each, and what a model text has in its place.
const OF_OTHER_LANGUAGES: [(&str, &str, &str); 10] = [
    ("**", "no operator", "a power is written with ^"),
    ("//", "no operator", "a comment begins with #, and floor(a / b) rounds a quotient down"),
    ("/*", "begins no comment", "a comment begins with #"),
    ("&&", "no operator", "join conditions with and"),
    ("||", "no operator", "join conditions with or"),
    ("&", "no operator", "join conditions with and"),
    ("|", "no operator", "join conditions with or"),
    ("!", "no operator", "write not before a condition"),
    ("@", "no operator", "linear(x, width) multiplies by a trained matrix"),
    ("'", "not part of a model text", "words are in double quotes, such as \"residual\""),
];

/// Splits a text into tokens. Leaves out spaces, comments and empty lines.
///
/// # Errors
/// The first thing that cannot be part of a model text.
pub(super) fn tokens(text: &str) -> Result<Vec<Placed>, Mistake> {
    if text.len() > MAX_BYTES {
        let help = format!("a model text has at most {MAX_BYTES} bytes");
        return fail(&(0..0), format!("{} bytes", text.len()), help);
    }
    let mut lexer = Lexer { text, at: 0, nesting: 0, found: Vec::new() };
    while lexer.at < text.len() {
        lexer.token()?;
    }
    lexer.end_line();
    Ok(lexer.found)
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    /// Parentheses and brackets that are open.
    nesting: usize,
    found: Vec<Placed>,
}

impl Lexer<'_> {
    /// Reads one token, or skips a space or a comment.
    fn token(&mut self) -> Result<(), Mistake> {
        let (bytes, start) = (self.text.as_bytes(), self.at);
        match bytes[start] {
            b' ' | b'\t' => self.at += 1,
            b'\r' if bytes.get(start + 1) == Some(&b'\n') => self.at += 1,
            b'\n' => {
                if self.nesting == 0 {
                    self.end_line();
                }
                self.at += 1;
            }
            b'#' => self.comment()?,
            b'0'..=b'9' => self.number()?,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                self.at = self.run(start, |byte| byte.is_ascii_alphanumeric() || *byte == b'_');
                self.check_length(start..self.at)?;
                self.found.push((Token::Name, start..self.at));
            }
            b'"' => self.word()?,
            _ => self.sign()?,
        }
        Ok(())
    }

    /// Returns where a run of bytes that fulfil a condition ends.
    fn run(&self, from: usize, holds: fn(&u8) -> bool) -> usize {
        let bytes = &self.text.as_bytes()[from..];
        from + bytes.iter().position(|byte| !holds(byte)).unwrap_or(bytes.len())
    }

    fn end_line(&mut self) {
        if self.found.last().is_some_and(|(token, _)| *token != Token::End) {
            self.found.push((Token::End, self.at..self.at));
        }
    }

    /// Skips a comment, which may contain all that is shown as it is.
    fn comment(&mut self) -> Result<(), Mistake> {
        let end = self.run(self.at, |byte| *byte != b'\n');
        let comment = self.text[self.at..end].trim_end_matches('\r');
        let hidden = |c: char| matches!(printable(c.encode_utf8(&mut [0; 4])), Cow::Owned(_));
        if let Some((offset, c)) = comment.char_indices().find(|(_, c)| hidden(*c)) {
            let at = self.at + offset..self.at + offset + c.len_utf8();
            return fail(&at, "a character that cannot be seen", "remove it");
        }
        self.at = end;
        Ok(())
    }

    fn number(&mut self) -> Result<(), Mistake> {
        let (bytes, start) = (self.text.as_bytes(), self.at);
        let mut end = self.run(start, u8::is_ascii_digit);
        if bytes.get(end) == Some(&b'.') {
            let digits = end + 1;
            end = self.run(digits, u8::is_ascii_digit);
            if end == digits {
                return fail(&(start..end), "no digit after the point", "write 2 or 2.0");
            }
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let digits = end + 1 + usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            if bytes.get(digits).is_some_and(u8::is_ascii_digit) {
                end = self.run(digits, u8::is_ascii_digit);
            }
        }
        let value = self.text[start..end].parse().unwrap_or(f64::NAN);
        if let Some(fault) = number::range_error(value) {
            return fail(&(start..end), fault, "kernels compute in fp32");
        }
        self.at = end;
        self.found.push((Token::Number(value), start..end));
        Ok(())
    }

    fn word(&mut self) -> Result<(), Mistake> {
        let start = self.at;
        let end = self.run(start + 1, |byte| !matches!(byte, b'"' | b'\n'));
        if self.text.as_bytes().get(end) != Some(&b'"') {
            return fail(&(start..start + 1), "never closed", "a \" is missing");
        }
        if !self.text[start + 1..end].bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            return fail(&(start..end + 1), "not ASCII", "words are those of recipes, such as \"rope\"");
        }
        self.check_length(start + 1..end)?;
        self.at = end + 1;
        self.found.push((Token::Word, start..self.at));
        Ok(())
    }

    fn check_length(&self, at: Range<usize>) -> Result<(), Mistake> {
        if at.len() <= MAX_NAME {
            return Ok(());
        }
        fail(&at, format!("{} characters", at.len()), format!("a name has at most {MAX_NAME} characters"))
    }

    fn sign(&mut self) -> Result<(), Mistake> {
        let (start, rest) = (self.at, &self.text[self.at..]);
        // `!` begins `!=`, and `/` is an operator, so the longer sign comes first.
        if let Some((sign, label, help)) = OF_OTHER_LANGUAGES.iter().find(|(sign, ..)| rest.starts_with(sign))
            && !rest.starts_with("!=")
        {
            return fail(&(start..start + sign.len()), *label, *help);
        }
        let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) else {
            let c = rest.chars().next().unwrap_or_default();
            return fail(
                &(start..start + c.len_utf8()),
                "not part of a model text",
                "a model text has names, numbers, \"words\", operators, parentheses and # comments",
            );
        };
        match sign {
            "(" | "[" => self.nesting += 1,
            ")" | "]" => self.nesting = self.nesting.saturating_sub(1),
            _ => {}
        }
        self.at += sign.len();
        self.found.push((Token::Sign(sign), start..self.at));
        Ok(())
    }
}
