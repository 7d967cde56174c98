//! Renders text from files as Markdown, so that values from recipes, commands and logs cannot start markup.

use crate::format::{BLANK, printable};

/// Escapes text from a file as a single line of Markdown without markup.
pub fn plain(text: &str) -> String {
    let text = one_line(text);
    let mut out = String::with_capacity(text.len());
    let mut before = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let is_inside_a_word = |other: Option<char>| other.is_some_and(char::is_alphanumeric);
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '|' | '*' | '`' | '[' | ']' | '\\' | '~' => out.extend(['\\', c]),
            '_' if !(is_inside_a_word(before) && is_inside_a_word(rest.peek().copied())) => {
                out.push_str("\\_")
            }
            _ => out.push(c),
        }
        before = Some(c);
    }
    out
}

/// Percent-encodes a relative path, with `/`, for use as a link's target.
pub fn target(path: &str) -> String {
    let mut out = String::new();
    for c in path.chars() {
        if c.is_alphanumeric() || "-._/+=,".contains(c) {
            out.push(c);
        } else {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| out += &format!("%{byte:02X}"));
        }
    }
    out
}

/// Returns a link whose text comes from a file. Encode the target with [`target`].
pub fn link(text: &str, target: &str) -> String {
    format!("[{}]({target})", plain(text))
}

/// Returns text on one line: line breaks become spaces, and harmful or invisible characters become visible.
fn one_line(text: &str) -> String {
    printable(&text.split_whitespace().collect::<Vec<_>>().join(" ")).into_owned()
}

/// Formats text from a file as inline code that is also safe inside a table.
pub fn code(text: &str) -> String {
    let text = one_line(text);
    if text.is_empty() {
        return BLANK.to_owned();
    }
    format!("`{}`", text.replace('`', "'").replace('|', "\\|"))
}

/// Returns the first `digits` digits of a hash, as code.
pub fn short_hash(hash: &str, digits: usize) -> String {
    code(hash.get(..digits).unwrap_or(hash))
}

/// Returns a table. Columns whose heading begins with `>` are right-aligned.
pub fn table(headings: &[String], rows: &[Vec<String>]) -> String {
    let name = |heading: &String| heading.trim_start_matches('>').to_owned();
    let rule = |heading: &String| if heading.starts_with('>') { "--:" } else { "---" };
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut out = line(headings.iter().map(name).collect());
    out += &format!("|{}|\n", headings.iter().map(rule).collect::<Vec<_>>().join("|"));
    rows.iter().for_each(|row| out += &line(row.clone()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::all_escaped;

    #[test]
    fn foreign_text_opens_nothing() {
        assert_eq!(plain("a |\n<!-- xrun:end -->"), "a \\| &lt;!-- xrun:end -->");
        assert_eq!(code("a`b|c"), "`a'b\\|c`");
        assert_eq!(code(""), BLANK);
        assert_eq!(plain("&lt;b> ~~x~~ a_b _c_ \u{1b}[31m"), "&amp;lt;b> \\~\\~x\\~\\~ a_b \\_c\\_ ␛\\[31m");
        for shown in [plain(&all_escaped()), code(&all_escaped())] {
            assert_eq!(printable(&shown), shown);
        }

        assert_eq!(
            link("a]b", &target("r)/a b#<\n>\"?:é|.md")),
            "[a\\]b](r%29/a%20b%23%3C%0A%3E%22%3F%3Aé%7C.md)"
        );
        let made = table(&["a".into(), ">b".into()], &[vec!["1".into(), "2".into()]]);
        assert_eq!(made, "| a | b |\n|---|--:|\n| 1 | 2 |\n");
    }
}
