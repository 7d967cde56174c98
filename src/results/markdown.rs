//! Text from files as Markdown: values from recipes, commands and logs cannot start markup.

use crate::format::BLANK;

/// Escapes text from a file as one line of Markdown without markup.
pub fn plain(text: &str) -> String {
    let mut out = String::new();
    for c in text.split_whitespace().collect::<Vec<_>>().join(" ").chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '|' | '*' | '`' | '[' | ']' | '\\' => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}

/// Formats text from a file as inline code, also within a table.
pub fn code(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() {
        return BLANK.to_owned();
    }
    format!("`{}`", text.replace('`', "'").replace('|', "\\|"))
}

/// Returns the first digits of a hash, as code.
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

    #[test]
    fn foreign_text_opens_nothing() {
        assert_eq!(plain("a |\n<!-- xrun:end -->"), "a \\| &lt;!-- xrun:end -->");
        assert_eq!(code("a`b|c"), "`a'b\\|c`");
        assert_eq!(code(""), BLANK);
        let made = table(&["a".into(), ">b".into()], &[vec!["1".into(), "2".into()]]);
        assert_eq!(made, "| a | b |\n|---|--:|\n| 1 | 2 |\n");
    }
}
