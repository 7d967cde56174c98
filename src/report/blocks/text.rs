//! Pieces of Markdown: cells, links, tables.

use crate::format::BLANK;
use std::path::{Component, Path};

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

/// A path as a link from a page in the folder `from`, with `/`. Both are absolute.
pub fn link(from: &Path, to: &Path) -> String {
    let (from, to): (Vec<Component<'_>>, Vec<Component<'_>>) =
        (from.components().collect(), to.components().collect());
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..".to_owned(), from.len() - shared);
    let down = to[shared..].iter().map(|part| part.as_os_str().to_string_lossy().replace(' ', "%20"));
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// A picture in a light and a dark version.
pub fn picture(alt: &str, light: &str, dark: &str) -> String {
    let alt = alt.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    format!(
        "<picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"{dark}\">\n  <img alt=\"{alt}\" src=\"{light}\">\n</picture>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_the_page_to_the_file() {
        let link = |from: &str, to: &str| super::link(Path::new(from), Path::new(to));
        assert_eq!(link("/r", "/r/results/a"), "results/a");
        assert_eq!(link("/r/docs/more", "/r/results/a b"), "../../results/a%20b");
        assert_eq!(link("/r/docs", "/elsewhere"), "../../elsewhere");
    }

    #[test]
    fn foreign_text_opens_nothing() {
        assert_eq!(plain("a |\n<!-- xrun:end -->"), "a \\| &lt;!-- xrun:end -->");
        assert_eq!(code("a`b|c"), "`a'b\\|c`");
        assert_eq!(code(""), BLANK);
        let made = table(&["a".into(), ">b".into()], &[vec!["1".into(), "2".into()]]);
        assert_eq!(made, "| a | b |\n|---|--:|\n| 1 | 2 |\n");
        assert!(picture("\"<", "l", "d").contains("alt=\"&quot;&lt;\""));
    }
}
