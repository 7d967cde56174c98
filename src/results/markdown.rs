//! Text of files as Markdown: values that come from recipes, commands and logs open no markup.

use crate::format::BLANK;

/// Text of a file as Markdown text: one line that opens nothing.
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

/// Text of a file as inline code, also within a table.
pub fn code(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() {
        return BLANK.to_owned();
    }
    format!("`{}`", text.replace('`', "'").replace('|', "\\|"))
}

/// The first digits of a hash, as code.
pub fn short_hash(hash: &str, digits: usize) -> String {
    code(hash.get(..digits).unwrap_or(hash))
}

/// A table. Columns whose heading begins with `>` are flush right.
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
