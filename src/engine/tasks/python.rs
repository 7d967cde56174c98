//! What Python's strings do where Rust's differ: white space, and the first letter of `capitalize`. Prompts
//! of the reference harness are made by Python.

/// Returns true for white space by `str.isspace`: Unicode's, and the separators U+001C to U+001F.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.strip` without an argument.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.capitalize`: the first character in title case, all others in lower case.
pub(super) fn capitalize(text: &str) -> String {
    let Some(first) = text.chars().next() else { return String::new() };
    // The whole text, because a sigma at the end of a word depends on what stands before.
    let lower = text.to_lowercase();
    let rest = &lower[first.to_lowercase().map(char::len_utf8).sum()..];
    format!("{}{rest}", title(first))
}

/// Returns a character in title case: Unicode's full mapping, of which Rust has only lower and upper case.
fn title(c: char) -> String {
    let upper = || c.to_uppercase().collect::<String>();
    match c {
        'ß' | '\u{587}' | '\u{fb00}'..='\u{fb06}' | '\u{fb13}'..='\u{fb17}' => {
            let upper = c.to_uppercase();
            upper
                .enumerate()
                .map(|(i, c)| if i == 0 { c.to_string() } else { c.to_lowercase().to_string() })
                .collect()
        }
        'Ǆ'..='ǆ' => "ǅ".to_owned(),
        'Ǉ'..='ǉ' => "ǈ".to_owned(),
        'Ǌ'..='ǌ' => "ǋ".to_owned(),
        'Ǳ'..='ǳ' => "ǲ".to_owned(),
        'ა'..='ჺ' | 'ჽ'..='ჿ' | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}' => c.to_string(),
        '\u{1f80}'..='\u{1faf}' => char::from_u32(u32::from(c) | 8).unwrap_or(c).to_string(),
        '\u{1fb3}' => "\u{1fbc}".to_owned(),
        '\u{1fc3}' => "\u{1fcc}".to_owned(),
        '\u{1ff3}' => "\u{1ffc}".to_owned(),
        '\u{1fb2}' | '\u{1fb4}' | '\u{1fb7}' | '\u{1fc2}' | '\u{1fc4}' | '\u{1fc7}' | '\u{1ff2}'
        | '\u{1ff4}' | '\u{1ff7}' => upper().replace('\u{399}', "\u{345}"),
        _ => upper(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by CPython 3.11.7.
    #[test]
    fn text_is_changed_as_by_python() {
        for (text, capitalized) in [
            ("", ""),
            ("she Puts IT on", "She puts it on"),
            ("élan ΟΔΟΣ. ΣΑΣ", "Élan οδος. σας"),
            ("Σ", "Σ"),
            ("ßA", "Ssa"),
            ("ǆX", "ǅx"),
            ("ŉA", "ʼNa"),
            ("ﬁN", "Fin"),
            ("ქᲐ", "ქა"),
            ("\u{1f80}Α", "\u{1f88}α"),
            ("\u{1fb4}Α", "\u{386}\u{345}α"),
            ("İX", "İx"),
            ("5 A", "5 a"),
        ] {
            assert_eq!(capitalize(text), capitalized, "{text}");
        }
        assert_eq!(strip("\u{1c} \u{3000}a b\u{85}\n"), "a b");
    }
}
