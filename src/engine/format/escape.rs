//! Makes text from elsewhere harmless where it is shown. One table lists the characters that a terminal or a
//! reader would obey or not see; the terminal, logs, Markdown and the page of `xrun view` all escape them the
//! same way.

use std::borrow::Cow;
use std::ops::RangeInclusive;

/// The characters that are shown escaped, in ascending order: controls, everything that Unicode calls default
/// ignorable (`DerivedCoreProperties.txt`), and what sets the writing direction. Line breaks and tabs stay,
/// and so do the variation selectors of emoji, U+FE00 to U+FE0F.
pub const ESCAPED: [RangeInclusive<char>; 19] = [
    '\u{0}'..='\u{8}',
    '\u{b}'..='\u{1f}',
    '\u{7f}'..='\u{9f}',
    // Soft hyphen, combining grapheme joiner, Arabic letter mark.
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{61c}'..='\u{61c}',
    // Hangul fillers, invisible Khmer vowels, Mongolian selectors.
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    // Zero-width characters and direction marks.
    '\u{200b}'..='\u{200f}',
    // Line and paragraph separators, direction embeddings and overrides.
    '\u{2028}'..='\u{202e}',
    // Word joiner, invisible operators, direction isolates.
    '\u{2060}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    // Byte order mark, halfwidth Hangul filler, interlinear annotations.
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    // Shorthand and musical controls.
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    // Tags, and more variation selectors.
    '\u{e0000}'..='\u{e0fff}',
];

fn is_escaped(c: char) -> bool {
    ESCAPED.iter().any(|range| range.contains(&c))
}

/// Returns text that is safe to show: control characters become their pictures (`␛`), all others in
/// [`ESCAPED`] become their code points (`⟨U+202E⟩`).
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if !is_escaped(c) => shown.push(c),
            '\u{7f}' => shown.push('␡'),
            c if c < ' ' => shown.extend(char::from_u32(0x2400 + u32::from(c))),
            c => shown += &format!("⟨U+{:04X}⟩", u32::from(c)),
        }
    }
    Cow::Owned(shown)
}

/// Returns JSON with the same value, in which every character in [`ESCAPED`] is escaped.
pub fn harmless_json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_escaped) {
        return Cow::Borrowed(json);
    }
    let mut harmless = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // Outside of strings, the only one that JSON allows is the carriage return, which is white space
            // there.
            c if c == '\r' || !is_escaped(c) => harmless.push(c),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| harmless += &format!("\\u{unit:04x}")),
        }
    }
    Cow::Owned(harmless)
}

/// Returns a text of all characters in [`ESCAPED`].
pub fn all_escaped() -> String {
    ESCAPED.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_act_or_hide_are_shown() {
        assert_eq!(printable("a\tb\n\u{1b}[31mred\u{7}\r\0"), "a\tb\n␛[31mred␇␍␀");
        assert_eq!(printable("\u{7f}\u{9b}31m a\u{202e}b\u{ad}"), "␡⟨U+009B⟩31m a⟨U+202E⟩b⟨U+00AD⟩");
        assert_eq!(printable("\u{e0041}\u{200b}"), "⟨U+E0041⟩⟨U+200B⟩");
        assert!(matches!(printable("Größe 😀 ❤\u{fe0f} ␛ שלום\n"), Cow::Borrowed(_)));
        assert!(ESCAPED.windows(2).all(|pair| pair[0].end() < pair[1].start()), "in ascending order");
        assert!(!printable(&all_escaped()).contains(is_escaped));
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({"a\u{9b}": [all_escaped(), "\u{1b}[0m é\n", "\r\n"]});
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let harmless = harmless_json(&text);
            assert!(!harmless.contains(is_escaped), "{harmless}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&harmless).unwrap(), value);
        }
    }
}
