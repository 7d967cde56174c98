//! Text of others, made harmless where it is shown: a terminal obeys control characters, and shows what
//! follows an override of the writing direction in another order than it is read.

use std::borrow::Cow;

/// Returns true for characters that a terminal or a reader would obey rather than show.
fn acts(c: char) -> bool {
    matches!(c,
        '\u{0}'..='\u{8}' | '\u{b}'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        // Marks, embeddings, overrides and isolates of the writing direction; separators of lines and
        // paragraphs.
        | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns a text as a person may see it, on a terminal and in logs: control characters become their pictures
/// (`␛`), as in the snippets of recipes, and what has no picture `�`. Line breaks and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| match c {
        '\u{7f}' => '␡',
        c if c < ' ' => char::from_u32(0x2400 + u32::from(c)).unwrap_or('�'),
        _ => '�',
    };
    Cow::Owned(text.chars().map(|c| if acts(c) { shown(c) } else { c }).collect())
}

/// Returns JSON with the same value in which no such character stands as it is.
pub fn harmless_json(json: &str) -> Cow<'_, str> {
    if !json.contains(acts) {
        return Cow::Borrowed(json);
    }
    // Outside of strings JSON has no character of these but carriage returns, which are white space there.
    let escaped = |c: char| match c {
        '\r' => c.to_string(),
        c if acts(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    Cow::Owned(json.chars().map(escaped).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_act_are_shown() {
        assert_eq!(printable("a\tb\n\u{1b}[31mred\u{7}\r\0"), "a\tb\n␛[31mred␇␍␀");
        assert_eq!(printable("\u{7f}\u{9b}31m a\u{202e}b\u{2066}\u{200f}\u{2028}"), "␡�31m a�b���");
        assert!(matches!(printable("Größe 😀 ␛ שלום\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({"a\u{9b}": ["\u{1b}[0m \u{202e} \u{7f} é\n", "\r\n"]});
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let harmless = harmless_json(&text);
            assert!(!harmless.contains(acts), "{harmless}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&harmless).unwrap(), value);
        }
    }
}
